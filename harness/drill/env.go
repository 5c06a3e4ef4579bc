// SPDX-License-Identifier: Apache-2.0

package drill

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"kindex/harness/link"
	"kindex/harness/proc"
	"kindex/harness/publish"
	"kindex/harness/subscribe"
)

// How long programs may take to do what is no part of a rule.
const (
	startTime  = 20 * time.Second
	settleTime = 20 * time.Second
)

// Env is what one drill works with. Whatever it starts ends with it.
//
// Concurrency: programs may be started by several goroutines at once.
type Env struct {
	o      Options
	name   string
	mu     sync.Mutex
	ends   []func() error // guarded by mu
	waits  *waits         // nil: none are counted
	strict bool           // lookups are held against their rule whatever they waited
}

// count begins to count what programs wait for a CPU, until the drill ends.
func (e *Env) count(ctx context.Context) {
	e.waits = newWaits()
	ctx, cancel := context.WithCancel(ctx)
	var watching sync.WaitGroup
	watching.Go(func() { e.waits.watch(ctx) })
	e.later(func() error { cancel(); watching.Wait(); return nil })
}

// within returns how long a rule's d is here.
func (e *Env) within(d time.Duration) time.Duration {
	if e.o.Slack > 1 {
		return time.Duration(float64(d) * e.o.Slack)
	}
	return d
}

// later has fn called when the drill ends, in reverse order.
func (e *Env) later(fn func() error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ends = append(e.ends, fn)
}

// close ends everything. Nothing is started any more.
func (e *Env) close() error {
	e.mu.Lock()
	ends := e.ends
	e.ends = nil
	e.mu.Unlock()
	var errs []error
	for _, end := range slices.Backward(ends) {
		errs = append(errs, end())
	}
	return errors.Join(errs...)
}

func (e *Env) sayf(format string, args ...any) {
	e.o.Progress.Sayf("%s: %s", e.name, fmt.Sprintf(format, args...))
}

// start starts one of the build's programs.
func (e *Env) start(name string, args ...string) (*proc.Process, error) {
	return e.startIn(nil, name, args...)
}

// startIn starts one in a network of its own, where n is not nil.
func (e *Env) startIn(n *namespace, name string, args ...string) (*proc.Process, error) {
	path, err := proc.Find(name)
	if err != nil {
		return nil, err
	}
	path, args = n.command(path, args)
	p, err := proc.Start(path, nil, args...)
	if err != nil {
		return nil, err
	}
	e.waits.add(p.PID())
	e.later(func() error { p.Kill(); return nil })
	return p, nil
}

// relayed is an engine of several ranks, a relay beside it, a link, and behind that an
// index host and subscribers of both contracts.
type relayed struct {
	e       *Env
	pub     *publish.Publisher
	args    []string // of the relay
	http    string   // its HTTP address
	link    *link.Link
	relay   *proc.Process
	index   *indexHost
	peer    *subscribe.Peer
	own     *subscribe.Own
	began   [2]subscribe.Counts // of peer and own at the fault's begin
	history int
}

// setup starts everything and waits until everybody is exact.
func (e *Env) setup(ctx context.Context, o publish.Options, history int) (*relayed, error) {
	o.Seed = e.o.Seed
	r := &relayed{e: e, history: history}
	var err error
	if r.pub, err = publish.Open(o); err != nil {
		return nil, err
	}
	e.later(r.pub.Close)
	ports, err := publish.FreePorts(2)
	if err != nil {
		return nil, err
	}
	addr := "127.0.0.1:" + strconv.Itoa(ports)
	r.http = "127.0.0.1:" + strconv.Itoa(ports+1)
	r.args = []string{
		"--engine", fmt.Sprintf("vllm=%s,replay=%s,ranks=%d,name=%s", r.pub.Pub(), r.pub.Replay(), o.Ranks, instance),
		"--listen", addr, "--http", r.http, "--history-batches", strconv.Itoa(history),
	}
	if err := r.startRelay(ctx); err != nil {
		return nil, err
	}
	if r.link, err = link.Open(addr); err != nil {
		return nil, err
	}
	e.later(r.link.Close)
	if r.index, err = e.startIndex(ctx); err != nil {
		return nil, err
	}
	if err := r.index.register(ctx, r); err != nil {
		return nil, err
	}
	if r.peer, err = subscribe.OpenPeer(r.link.Addr(), r.pub); err != nil {
		return nil, err
	}
	e.later(r.peer.Close)
	if r.own, err = subscribe.OpenOwn(r.link.Addr(), r.pub); err != nil {
		return nil, err
	}
	e.later(r.own.Close)
	if _, err := r.exact(ctx, time.Now(), startTime); err != nil {
		return nil, fmt.Errorf("before the fault: %w", err)
	}
	if err := r.subscribersReach(ctx, r.newest()); err != nil {
		return nil, fmt.Errorf("before the fault: %w", err)
	}
	r.mark()
	return r, nil
}

// startRelay starts the relay and waits until it is ready.
func (r *relayed) startRelay(ctx context.Context) error {
	var err error
	if r.relay, err = r.e.start("relay", r.args...); err != nil {
		return err
	}
	client := http.Client{Timeout: time.Second}
	err = proc.Until(ctx, startTime, func() bool {
		if r.relay.Ended() != nil {
			return true
		}
		resp, err := client.Get("http://" + r.http + "/readyz") //nolint:noctx // bounded by its timeout
		if err != nil {
			return false
		}
		_ = resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
	if ended := r.relay.Ended(); ended != nil {
		return ended
	}
	if err != nil {
		return fmt.Errorf("the relay is not ready: %w", err)
	}
	return nil
}

// newest returns each rank's newest batch.
func (r *relayed) newest() []uint64 {
	out := make([]uint64, r.pub.Ranks())
	for i := range out {
		if n := r.pub.Newest(i); n > 0 {
			out[i] = n - 1
		}
	}
	return out
}

// mark notes what the subscribers met so far: from here on the drill judges.
func (r *relayed) mark() {
	r.index.plant = r.e.o.plant
	r.began = [2]subscribe.Counts{r.peer.Counts(), r.own.Counts()}
}

// since returns what the subscribers met since the mark.
func (r *relayed) since() (peer, own subscribe.Counts) {
	return minus(r.peer.Counts(), r.began[0]), minus(r.own.Counts(), r.began[1])
}

func minus(a, b subscribe.Counts) subscribe.Counts {
	return subscribe.Counts{
		Subscribed: a.Subscribed - b.Subscribed, Batches: a.Batches - b.Batches, Snapshots: a.Snapshots - b.Snapshots,
		Chunks: a.Chunks - b.Chunks, Blocks: a.Blocks - b.Blocks, Gaps: a.Gaps - b.Gaps, Stale: a.Stale - b.Stale,
		Resets: a.Resets - b.Resets, OutOfRange: a.OutOfRange - b.OutOfRange, Holes: a.Holes - b.Holes,
		Wrong: a.Wrong - b.Wrong, Checked: a.Checked - b.Checked,
	}
}

// subscribersReach waits until both subscribers hold the truth of batches from floor on.
func (r *relayed) subscribersReach(ctx context.Context, floor []uint64) error {
	reached := func(stand func(int) subscribe.Standing) bool {
		for rank := range floor {
			s := stand(rank)
			if !s.Has || s.Seq < floor[rank] || !s.Exact || s.Life != r.pub.Life() {
				return false
			}
		}
		return true
	}
	err := proc.Until(ctx, settleTime, func() bool {
		return r.relay.Ended() != nil || reached(r.peer.Rank) && reached(r.own.Rank)
	})
	if ended := r.relay.Ended(); ended != nil {
		return ended
	}
	if err == nil {
		return nil
	}
	var where strings.Builder
	for rank := range floor {
		fmt.Fprintf(&where, ", rank %d is at %s by the peer's contract and at %s by ours, batch %d is due", rank, r.peer.Rank(rank), r.own.Rank(rank), floor[rank])
	}
	return fmt.Errorf("the subscribers are not exact%s: %w", where.String(), err)
}

// settle silences the publisher and demands that everybody holds its last word, and that
// no state on the way was wrong.
func (r *relayed) settle(ctx context.Context) error {
	r.pub.Delay(0)
	r.pub.SetRate(0)
	if err := pause(ctx, 50*time.Millisecond); err != nil {
		return err
	}
	if err := r.subscribersReach(ctx, r.newest()); err != nil {
		return fmt.Errorf("at the end: %w", err)
	}
	if _, err := r.exact(ctx, time.Now(), settleTime); err != nil {
		return fmt.Errorf("at the end: %w", err)
	}
	var errs []error
	for _, s := range []struct {
		contract string
		counts   subscribe.Counts
		faults   []string
	}{{"the peer's contract", r.peer.Counts(), r.peer.Faults()}, {"our contract", r.own.Counts(), r.own.Faults()}} {
		if s.counts.Wrong+s.counts.Gaps > 0 {
			errs = append(errs, fmt.Errorf("%s: %d wrong states, %d gaps: %v", s.contract, s.counts.Wrong, s.counts.Gaps, s.faults))
		}
	}
	return errors.Join(errs...)
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
