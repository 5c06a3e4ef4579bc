// SPDX-License-Identifier: Apache-2.0

package whole

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"kindex/harness/live"
	"kindex/harness/openloop"
	"kindex/harness/proc"
)

// startTime is how long a program may take until it is ready.
const startTime = 20 * time.Second

// run is one run.
type run struct {
	cfg     Config
	screen  *live.Screen
	began   time.Time
	dir     string          // of the socket
	procs   []*proc.Process // in the order in which they were started
	gateway string          // URLs
	index   string
	admin   string // of the mock fleet

	mu       sync.Mutex
	round    int
	standing *openloop.Standing // nil: none yet
	failed   int                // requests of rounds before
	example  string
}

// Run starts what cfg says, shows the table on out until ctx ends or the time is over,
// and stops all it started. An error is what went wrong on the way, or requests that
// failed.
func Run(ctx context.Context, cfg Config, out io.Writer) (err error) {
	r := &run{cfg: cfg, screen: live.NewScreen(out), began: time.Now()}
	defer func() {
		if serr := r.stop(); err == nil {
			err = serr
		}
	}()
	if err := r.start(ctx); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	r.hints()
	if cfg.For > 0 {
		// No deadline: requests then are cut off, and did not take too long.
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx)
		defer time.AfterFunc(cfg.For, cancel).Stop()
	}
	if err := r.play(ctx); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.standing; s != nil && r.failed+s.Failed > 0 {
		return fmt.Errorf("%d requests failed, such as: %s", r.failed+s.Failed, r.example)
	}
	return nil
}

// play replays and shows until ctx ends; the last table is of when all is still there.
func (r *run) play(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	replayed := make(chan error, 1)
	if len(r.cfg.Workers) > 0 {
		close(replayed)
	} else {
		go func() {
			replayed <- r.replay(ctx)
			close(replayed)
			cancel()
		}()
	}
	err := r.show(ctx)
	cancel()
	if rerr := <-replayed; err == nil {
		err = rerr
	}
	if err == nil {
		r.draw(context.WithoutCancel(ctx))
	}
	return err
}

// replay sends the trace again and again. Each round is of other tokens, so that what is
// cached of the one before is worth nothing, and goes first: as good as empty caches, with
// which the oracle begins.
func (r *run) replay(ctx context.Context) error {
	o := openloop.DefaultOptions()
	o.URL, o.Oracle, o.Rows, o.Speedup = r.gateway, r.admin, r.cfg.Rows, r.cfg.Speedup
	o.Watch = r.see
	for ctx.Err() == nil {
		r.mu.Lock()
		r.round++
		o.Seed = uint64(r.round) //nolint:gosec // from 1
		r.mu.Unlock()
		if _, err := openloop.Run(ctx, &o, nil); err != nil && ctx.Err() == nil {
			return err
		}
		r.mu.Lock()
		r.failed += r.standing.Failed
		r.standing.Failed = 0
		r.mu.Unlock()
	}
	return nil
}

// see takes what the replay says of itself.
func (r *run) see(s *openloop.Standing) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.standing = s
	if s.Example != "" {
		r.example = s.Example
	}
}

// hints says where to ask.
func (r *run) hints() {
	r.screen.Printf("gateway at %s\n"+
		"  curl -s -i %s/v1/chat/completions -H 'Content-Type: application/json' -H 'X-Kindex-Explain: 1' -d '{\"model\":\"%s\",\"messages\":[{\"role\":\"user\",\"content\":\"who holds this prompt?\"}],\"max_tokens\":8}'\n"+
		"  curl -s %s/workers\n", r.gateway, r.gateway, r.model(), r.gateway)
	if r.index != "" {
		r.screen.Printf("index host at %s, for people %s/ui\n  %s top --host %s\n", r.index, r.index, r.cfg.program("kindex"), r.index)
	}
}

// model is one to try.
func (r *run) model() string {
	ctx, cancel := context.WithTimeout(context.Background(), askTime)
	defer cancel()
	if l, err := look(ctx, r.gateway); err == nil {
		for i := range l.workers {
			if m := l.workers[i].Model; m != "" {
				return m
			}
		}
	}
	return "MODEL"
}

// stop ends all programs, the last first.
func (r *run) stop() error {
	var errs []error
	for i := range r.procs {
		errs = append(errs, r.procs[len(r.procs)-1-i].Stop())
	}
	if r.dir != "" {
		errs = append(errs, os.RemoveAll(r.dir))
	}
	return errors.Join(errs...)
}
