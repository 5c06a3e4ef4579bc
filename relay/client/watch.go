// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	relayv1 "kindex/proto/kindex/relay/v1"
)

// watch looks whether a stream's link is alive. Where nothing comes it asks for
// the server's health: whatever is answered, that it is served or not, is a sign
// of life. A ping of HTTP/2 would do, too, but servers of engines end a connection
// that pings more often than every 30 s.
//
// Concurrency: the client's goroutine.
type watch struct {
	c    *Client
	conn *grpc.ClientConn

	life    time.Time // last sign of life
	asked   time.Time // when the server's health was asked for last
	asking  bool
	proven  bool      // an answer came on this stream
	answers chan bool // whether it was a sign of life

	// How far a relay of ours is, asked for again while a rank is catching up.
	aim       time.Time // when it was asked for last
	aiming    bool
	described chan *relayv1.DescribeResponse // nil: it did not say
}

// aimPeriod is the pause between two questions how far the relay is. Chosen, not
// measured.
const aimPeriod = 100 * time.Millisecond

func newWatch(c *Client, conn *grpc.ClientConn) *watch {
	return &watch{
		c: c, conn: conn, life: c.now(), aim: c.now(),
		answers: make(chan bool, 1), described: make(chan *relayv1.DescribeResponse, 1),
	}
}

// patience is how long nothing may come before the server is asked.
func (w *watch) patience() time.Duration { return w.c.cfg.SilenceTimeout / 3 }

// next returns how long from now there is something to look at.
func (w *watch) next() time.Duration {
	w.c.work.Lock()
	defer w.c.work.Unlock()
	at := w.life.Add(w.c.cfg.SilenceTimeout)
	if !w.asking {
		ask := w.life
		if ask.Before(w.asked) {
			ask = w.asked
		}
		at = earlier(at, ask.Add(w.patience()))
	}
	if w.c.st.Connected {
		at = earlier(at, w.settle(w.c.now()))
	}
	return max(at.Sub(w.c.now()), 0)
}

// earlier returns the earlier one; b may be zero, for never.
func earlier(a, b time.Time) time.Time {
	if !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// look does what is due. An error ends the stream.
func (w *watch) look(ctx context.Context) error {
	now := w.c.now()
	if now.Sub(w.life) >= w.c.cfg.SilenceTimeout {
		return fmt.Errorf("%w for %v", errSilent, w.c.cfg.SilenceTimeout)
	}
	if !w.asking && now.Sub(w.life) >= w.patience() && now.Sub(w.asked) >= w.patience() {
		w.asking, w.asked = true, now
		go func() {
			ctx, cancel := context.WithTimeout(ctx, w.c.cfg.SilenceTimeout)
			defer cancel()
			_, err := healthv1.NewHealthClient(w.conn).Check(ctx, &healthv1.HealthCheckRequest{})
			w.answers <- alive(err)
		}()
	}
	if w.proven && !w.c.st.Connected {
		w.c.connected()
	}
	if w.c.st.Connected && !w.settle(now).IsZero() && w.c.contract == ContractOwn && !w.aiming && now.Sub(w.aim) >= aimPeriod {
		w.aiming, w.aim = true, now
		go func() {
			resp, _ := w.c.describe(ctx, w.conn) // it is asked again
			w.described <- resp
		}()
	}
	return nil
}

// settle ends catching up where it is time. It returns when to look again, zero for
// not before something comes.
func (w *watch) settle(now time.Time) (again time.Time) {
	for _, r := range w.c.ranks {
		if !r.catching {
			continue
		}
		was := r.told
		at := r.settle(now)
		if r.told != was {
			w.c.publish(r)
		}
		if r.catching && w.c.contract == ContractOwn && !w.aiming {
			at = earlier(w.aim.Add(aimPeriod), at)
		}
		if again.IsZero() {
			again = at
		} else {
			again = earlier(again, at)
		}
	}
	return again
}

// aimed takes how far the relay is.
func (w *watch) aimed(resp *relayv1.DescribeResponse) {
	w.aiming = false
	if resp != nil {
		w.c.aim(resp)
	}
}

// answered takes how the question for the server's health ended.
func (w *watch) answered(alive bool) {
	w.asking = false
	if alive {
		w.life, w.proven = w.c.now(), true
	}
}

// alive reports whether a call that ended with err was answered by the server.
func alive(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled:
		return false
	default:
		return true
	}
}

// wait waits until nothing of w runs any more. The stream's context has ended.
func (w *watch) wait() {
	if w.asking {
		<-w.answers
	}
	if w.aiming {
		<-w.described
	}
}
