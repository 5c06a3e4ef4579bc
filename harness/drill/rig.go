// SPDX-License-Identifier: Apache-2.0

// Before: faults.go. After: index.go and watch.go.

package drill

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"kindex/harness/link"
	"kindex/harness/publish"
)

// source is an engine whose truth is known.
type source interface {
	truth
	shape
	Pub() string    // rank 0's event endpoint, rank r at port + r
	Replay() string // the same of the replay endpoint
	Newest(rank int) uint64
	SetRate(rate int) // 0: silence
}

// rig is one engine and index hosts that follow it in every way that there is: straight
// at its sockets, and behind a relay beside it.
type rig struct {
	e       *Env
	src     source
	pub     *publish.Publisher // src, where it is one
	net     *namespace         // of the index hosts; nil: this one
	beside  *relayed           // the relay's process
	faces   []*face
	watched bool
}

// face is one way to follow an engine.
type face struct {
	name   string // direct, relayed
	links  []*link.Link
	fields map[string]any // its registration
	watch  *watch

	index atomic.Pointer[indexHost]
}

func (f *face) host() *indexHost { return f.index.Load() }

// rig starts an engine's publisher and everything else, and waits until all are exact.
func (e *Env) rig(ctx context.Context, o publish.Options, n *namespace) (*rig, error) {
	o.Seed, o.Host = e.o.Seed, n.engineHost()
	pub, err := publish.Open(o)
	if err != nil {
		return nil, err
	}
	e.later(pub.Close)
	return e.rigOf(ctx, pub, n)
}

// rigOf is rig for an engine that runs.
func (e *Env) rigOf(ctx context.Context, src source, n *namespace) (*rig, error) {
	r := &rig{e: e, src: src, net: n}
	r.pub, _ = src.(*publish.Publisher)
	relay, err := r.startRelay(ctx, bigHistory)
	if err != nil {
		return nil, err
	}
	direct := &face{name: "direct"}
	pub, replay := src.Pub(), src.Replay()
	if n == nil {
		if direct.links, pub, replay, err = r.linkRanks(); err != nil {
			return nil, err
		}
	}
	direct.fields = registration(src, pub, replay)
	behind := &face{name: "relayed"}
	if n == nil {
		l, err := link.Open(relay)
		if err != nil {
			return nil, err
		}
		e.later(l.Close)
		behind.links, relay = []*link.Link{l}, l.Addr()
	}
	behind.fields = registration(src, relay, "")
	r.faces = []*face{direct, behind}
	if err := r.each(func(f *face) error { return r.startFace(ctx, f) }); err != nil {
		return nil, err
	}
	if _, err := r.exact(ctx, time.Now(), startTime); err != nil {
		return nil, fmt.Errorf("before the fault: %w", err)
	}
	for _, f := range r.faces {
		f.host().plant = e.o.plant
		f.watch = r.watch(ctx, f)
	}
	r.watched = true
	return r, nil
}

// startRelay starts a relay beside the engine, which keeps so many batches of each rank,
// and returns where it serves.
func (r *rig) startRelay(ctx context.Context, history int) (string, error) {
	port, err := publish.FreePorts(2)
	if err != nil {
		return "", err
	}
	addr := net.JoinHostPort(r.net.engineHost(), strconv.Itoa(port))
	r.beside = &relayed{e: r.e, http: net.JoinHostPort("127.0.0.1", strconv.Itoa(port+1))}
	r.beside.args = []string{
		"--engine", fmt.Sprintf("vllm=%s,replay=%s,ranks=%d,name=%s", r.src.Pub(), r.src.Replay(), r.src.Ranks(), instance),
		"--listen", addr, "--http", r.beside.http, "--history-batches", strconv.Itoa(history),
	}
	return addr, r.beside.startRelay(ctx)
}

// linkRanks puts a link before each socket of the engine, at ports side by side.
func (r *rig) linkRanks() (links []*link.Link, pub, replay string, err error) {
	n := r.src.Ranks()
	first, err := publish.FreePorts(2 * n)
	if err != nil {
		return nil, "", "", err
	}
	for i, base := range []string{r.src.Pub(), r.src.Replay()} {
		host, port, err := net.SplitHostPort(strings.TrimPrefix(base, "tcp://"))
		if err != nil {
			return nil, "", "", err
		}
		from, err := strconv.Atoi(port)
		if err != nil {
			return nil, "", "", err
		}
		for rank := range n {
			l, err := link.OpenAt(fmt.Sprintf("127.0.0.1:%d", first+i*n+rank), net.JoinHostPort(host, strconv.Itoa(from+rank)))
			if err != nil {
				return nil, "", "", err
			}
			r.e.later(l.Close)
			links = append(links, l)
		}
	}
	return links, fmt.Sprintf("tcp://127.0.0.1:%d", first), fmt.Sprintf("tcp://127.0.0.1:%d", first+n), nil
}

// startFace starts an index host that knows the engine, and nothing of before.
func (r *rig) startFace(ctx context.Context, f *face) error {
	h, err := r.e.startIndexIn(ctx, r.net)
	if err != nil {
		return err
	}
	if err := h.registerAs(ctx, f.fields); err != nil {
		return err
	}
	if r.watched {
		h.plant = r.e.o.plant
	}
	f.index.Store(h)
	return nil
}

// each does something of every face at once and says whose errors are whose.
func (r *rig) each(do func(f *face) error) error {
	errs := make([]error, len(r.faces))
	var all sync.WaitGroup
	for i, f := range r.faces {
		all.Go(func() {
			if err := do(f); err != nil {
				errs[i] = fmt.Errorf("%s: %w", f.name, err)
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// tell is each with something to say of every face, in their order.
func (r *rig) tell(do func(f *face) (string, error)) (string, error) {
	said := make([]string, len(r.faces))
	err := r.each(func(f *face) (err error) {
		text, err := do(f)
		if text != "" {
			said[slices.Index(r.faces, f)] = f.name + " " + text
		}
		return err
	})
	said = slices.DeleteFunc(said, func(s string) bool { return s == "" })
	return strings.Join(said, ", "), err
}

// newest returns each rank's newest batch.
func (r *rig) newest() []uint64 {
	out := make([]uint64, r.src.Ranks())
	for i := range out {
		if n := r.src.Newest(i); n > 0 {
			out[i] = n - 1
		}
	}
	return out
}

// exact demands that every index holds what was published by now, so long after from.
func (r *rig) exact(ctx context.Context, from time.Time, limit time.Duration) (string, error) {
	floor := r.newest()
	return r.tell(func(f *face) (string, error) {
		took, err := exactWithin(ctx, f.host(), r.src, floor, from, limit, stayFor, r.e.waits)
		if err != nil {
			return "", errors.Join(err, r.beside.relay.Ended(), f.host().proc.Ended())
		}
		return round(took).String(), nil
	})
}

// counts returns what the index hosts count of all ranks, by face.
func (r *rig) counts(ctx context.Context) (map[string]listener, error) {
	out := map[string]listener{}
	var mu sync.Mutex
	err := r.each(func(f *face) error {
		ls, err := f.host().listeners(ctx)
		if err != nil {
			return err
		}
		var sum listener
		for _, l := range ls {
			sum.Gaps += l.Gaps
			sum.Recovered += l.Recovered
			sum.Lost += l.Lost
			sum.Restarts += l.Restarts
		}
		mu.Lock()
		out[f.name] = sum
		mu.Unlock()
		return nil
	})
	return out, err
}

// Lookups that settle asks, and how long any may take while a fault is under way.
const (
	finalLookups = 100
	lookupTime   = time.Second
)

// settle silences the engine and demands that every index holds its last word, answers
// lookups by it, and claimed nothing wrong all the while.
func (r *rig) settle(ctx context.Context) (string, error) {
	r.src.SetRate(0)
	if err := pause(ctx, 50*time.Millisecond); err != nil {
		return "", err
	}
	if _, err := r.exact(ctx, time.Now(), settleTime); err != nil {
		return "", fmt.Errorf("at the end: %w", err)
	}
	return r.tell(func(f *face) (string, error) {
		said, err := f.watch.verdict()
		return said, errors.Join(err, r.answers(ctx, f))
	})
}

// answers holds lookups of a silent engine's prompts against its truth.
func (r *rig) answers(ctx context.Context, f *face) error {
	rng := rand.New(rand.NewPCG(r.e.o.Seed, 8)) //nolint:gosec // seeded on purpose
	if l, ok := r.src.(*liveEngine); ok {
		return l.answers(ctx, f, rng)
	}
	for range finalLookups {
		prompt, ok := r.pub.Sample(rng)
		if !ok {
			return nil
		}
		depth, degraded, err := f.host().lookup(ctx, &prompt)
		if err != nil {
			return err
		}
		if degraded || !slices.Equal(depth, prompt.Depth) {
			return fmt.Errorf("at the end: a prompt of %d tokens is held to %v by the ranks, the index says %v (degraded: %v)", len(prompt.Tokens), prompt.Depth, depth, degraded)
		}
	}
	return nil
}

// shown demands that each index tells of a fault so long after it was armed.
func (r *rig) shown(ctx context.Context, limits map[string]time.Duration) (string, error) {
	return r.tell(func(f *face) (string, error) {
		limit, ok := limits[f.name]
		if !ok {
			return "", nil
		}
		limit = r.e.within(limit)
		for {
			armed, now := f.watch.armedAt(), time.Now()
			if took, ok := f.watch.shownAfter(); ok {
				if took > limit && took > r.e.waits.allows(limit, armed, armed.Add(took)) {
					return "", fmt.Errorf("its state told of it after %s, of which programs waited %s for a CPU: the rule allows %s", round(took), round(r.e.waits.of(armed, armed.Add(took))), limit)
				}
				return round(took).String(), nil
			}
			if now.Sub(armed) > limit && now.Sub(armed) > r.e.waits.allows(limit, armed, now) {
				return "", fmt.Errorf("its state does not tell of it within %s", limit)
			}
			if err := pause(ctx, watchEvery); err != nil {
				return "", err
			}
		}
	})
}
