// SPDX-License-Identifier: Apache-2.0

// Before: soak.go. After: soak_window.go and soak_faults.go.

package drill

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"kindex/harness/link"
	"kindex/harness/proc"
	"kindex/harness/publish"
)

// soakKeeps is the relays' history, in batches of each rank: short, so that it is full,
// and their memory what it will be, within the first windows.
const soakKeeps = 1_000

// The index hosts, and what the memory of each is told as.
const (
	steadyName     = "steady"
	restartedName  = "restarted"
	steadyIndex    = "index " + steadyName
	restartedIndex = "index " + restartedName
)

// world is a fleet of engines and two index hosts that follow all of them: one runs from
// the begin to the end, so that its memory can be judged; one is killed at times.
type world struct {
	e       *Env
	rate    int
	workers []*soakWorker
	hosts   []*soakHost // steady, restarted
}

// soakWorker is one engine and how it is followed.
type soakWorker struct {
	name   string
	pub    *publish.Publisher
	relay  *proc.Process // nil: straight at its sockets
	links  []*link.Link
	fields map[string]any
	bound  int // batches of a rank that the engine can replay
}

// soakHost is one index host.
type soakHost struct {
	name  string
	index atomic.Pointer[indexHost]

	lives map[*soakWorker]map[int]int // the looker's own

	// By worker, the life that it cannot know all of: it was started when the engine's
	// replay went no longer back to that life's begin.
	mu      sync.Mutex
	partial map[*soakWorker]int
}

// knows reports whether the host can know all of an engine's present life.
func (h *soakHost) knows(k *soakWorker) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	life, ok := h.partial[k]
	return !ok || life != k.pub.Life()
}

func (e *Env) openWorld(ctx context.Context, workers int, load publish.Options) (*world, error) {
	w := &world{e: e, rate: load.Rate}
	for i := range workers {
		k, err := e.openWorker(ctx, i, load)
		if err != nil {
			return nil, err
		}
		w.workers = append(w.workers, k)
	}
	for _, name := range []string{steadyName, restartedName} {
		h := &soakHost{name: name, partial: map[*soakWorker]int{}, lives: map[*soakWorker]map[int]int{}}
		w.hosts = append(w.hosts, h)
		if err := w.startHost(ctx, h); err != nil {
			return nil, err
		}
	}
	return w, nil
}

func (e *Env) openWorker(ctx context.Context, i int, load publish.Options) (*soakWorker, error) {
	load.Seed = e.o.Seed*maxWorkers + uint64(i)
	k := &soakWorker{name: "w" + strconv.Itoa(i), bound: load.Buffer}
	var err error
	if k.pub, err = publish.Open(load); err != nil {
		return nil, err
	}
	e.later(k.pub.Close)
	r := &rig{e: e, src: k.pub}
	if i%2 == 0 {
		var pub, replay string
		if k.links, pub, replay, err = r.linkRanks(); err != nil {
			return nil, err
		}
		k.fields = registration(k.pub, pub, replay)
	} else {
		addr, err := r.startRelay(ctx, soakKeeps)
		if err != nil {
			return nil, err
		}
		k.relay = r.beside.relay
		l, err := link.Open(addr)
		if err != nil {
			return nil, err
		}
		e.later(l.Close)
		k.links = []*link.Link{l}
		k.fields = registration(k.pub, l.Addr(), "")
	}
	k.fields["instance_id"] = k.name
	return k, nil
}

// startHost starts an index host that knows all engines, and nothing of before.
func (w *world) startHost(ctx context.Context, h *soakHost) error {
	index, err := w.e.startIndex(ctx)
	if err != nil {
		return err
	}
	index.plant = w.e.o.plant
	var errs []error
	for _, k := range w.workers {
		errs = append(errs, index.registerAs(ctx, k.fields))
		if k.relay == nil && k.rolled() {
			h.mu.Lock()
			h.partial[k] = k.pub.Life()
			h.mu.Unlock()
		}
	}
	h.index.Store(index)
	return errors.Join(errs...)
}

// rolled reports whether the engine's replay goes no longer back to its life's begin, or
// soon will not.
func (k *soakWorker) rolled() bool {
	for rank := range k.pub.Ranks() {
		if k.pub.Newest(rank) > uint64(k.bound)*9/10 {
			return true
		}
	}
	return false
}

// newest returns each rank's newest batch.
func (k *soakWorker) newest() []uint64 { return (&rig{src: k.pub}).newest() }

// ended returns an error if a program of the world ended by itself.
func (w *world) ended() error {
	for _, k := range w.workers {
		if k.relay != nil {
			if err := k.relay.Ended(); err != nil {
				return fmt.Errorf("%s: %w", k.name, err)
			}
		}
	}
	for _, h := range w.hosts {
		if err := h.index.Load().proc.Ended(); err != nil {
			return fmt.Errorf("%s: %w", h.name, err)
		}
	}
	return nil
}

// quietTime bounds how long hosts may take to be exact once all is silent: as long as a
// connection that was refused may wait for its next try, and then some.
const quietTime = 8 * time.Second

// quiet holds every host's view of every engine against the truth, all being silent, and
// returns how long the last took to be exact.
func (w *world) quiet(ctx context.Context) (took time.Duration, wrongs []string, err error) {
	began := time.Now()
	for _, h := range w.hosts {
		for _, k := range w.workers {
			what := ""
			_ = proc.Until(ctx, time.Until(began.Add(quietTime)), func() bool {
				what = w.judge(ctx, h, k)
				return what == ""
			})
			if ctx.Err() != nil {
				return 0, nil, ctx.Err()
			}
			if what != "" {
				wrongs = append(wrongs, fmt.Sprintf("%s of %s: %s", h.name, k.name, what))
			}
		}
	}
	return time.Since(began), wrongs, nil
}

// judge says what is wrong with a host's view of a silent engine; "": nothing. One that
// cannot know all must say so.
func (w *world) judge(ctx context.Context, h *soakHost, k *soakWorker) string {
	seen, err := h.index.Load().observeOf(ctx, k.name)
	if err != nil {
		return err.Error()
	}
	what := wrong(seen, k.pub, k.newest())
	if what == "" || h.knows(k) {
		return what
	}
	for rank := range k.pub.Ranks() {
		if o := seen[rank]; o.status == "active" {
			if rec, ok := k.pub.Record(rank, k.pub.Life(), o.seq); !ok || !o.has || rec.Truth != o.sum {
				return fmt.Sprintf("rank %d is active and cannot know all of batch %d", rank, o.seq)
			}
		}
	}
	return ""
}
