// SPDX-License-Identifier: Apache-2.0

// Before: soak_window.go. After: the world, broken and mended.

package drill

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"time"

	"kindex/harness/proc"
)

// Injected is one fault of a window.
type Injected struct {
	Kind    string  `json:"kind"`
	Worker  string  `json:"worker,omitempty"` // absent: it is of no engine
	At      float64 `json:"at_s"`             // from the window's begin
	Seconds float64 `json:"seconds"`
	worker  *soakWorker
}

// soakFault is a kind of fault, to be injected and mended within d.
type soakFault struct {
	kind   string
	fleet  bool // of no one engine
	inject func(ctx context.Context, w *world, k *soakWorker, d time.Duration) error
}

var soakFaults = []soakFault{
	{"batches-dropped", false, func(_ context.Context, _ *world, k *soakWorker, _ time.Duration) error {
		k.pub.Drop(dropped)
		return nil
	}},
	{"publisher-delayed", false, func(ctx context.Context, _ *world, k *soakWorker, d time.Duration) error {
		k.pub.Delay(delayBy)
		defer k.pub.Delay(0)
		return pause(ctx, d)
	}},
	{"publisher-restarted", false, func(ctx context.Context, _ *world, k *soakWorker, _ time.Duration) error {
		return k.pub.Restart(ctx, true, restartDown)
	}},
	{"engine-restarted", false, func(ctx context.Context, _ *world, k *soakWorker, _ time.Duration) error {
		return k.pub.Restart(ctx, false, restartDown)
	}},
	{"engine-killed", false, func(ctx context.Context, _ *world, k *soakWorker, d time.Duration) error {
		return k.pub.Restart(ctx, false, d)
	}},
	{"engine-partitioned", false, func(ctx context.Context, _ *world, k *soakWorker, d time.Duration) error {
		for _, l := range k.links {
			l.Cut()
			defer l.Heal()
		}
		return pause(ctx, d)
	}},
	{"engine-unreachable", false, func(ctx context.Context, _ *world, k *soakWorker, d time.Duration) error {
		var errs []error
		for _, l := range k.links {
			errs = append(errs, l.Refuse())
		}
		errs = append(errs, pause(ctx, d))
		for _, l := range k.links {
			errs = append(errs, l.Accept())
		}
		return errors.Join(errs...)
	}},
	{"engine-paused", false, func(ctx context.Context, w *world, k *soakWorker, d time.Duration) error {
		k.pub.SetRate(0)
		defer k.pub.SetRate(w.rate)
		return pause(ctx, d)
	}},
	{"cpu-starved", true, func(ctx context.Context, _ *world, _ *soakWorker, d time.Duration) error {
		for range 2 * runtime.NumCPU() {
			p, err := proc.Start("/bin/sh", nil, "-c", "while :; do :; done")
			if err != nil {
				return err
			}
			defer p.Kill()
		}
		return pause(ctx, d)
	}},
	{"index-restarted", true, func(ctx context.Context, w *world, _ *soakWorker, d time.Duration) error {
		h := w.hosts[1]
		h.index.Load().proc.Kill()
		if err := pause(ctx, d); err != nil {
			return err
		}
		return w.startHost(ctx, h)
	}},
}

// mostFaults is how many faults a window has at most.
const mostFaults = 3

// plan draws a window's faults: those of one seed and number are the same, whatever was
// before. Each is over after span, and no engine has two.
func plan(seed uint64, number int, workers []*soakWorker, span time.Duration) []Injected {
	rng := rand.New(rand.NewPCG(seed, uint64(number))) //nolint:gosec // seeded on purpose
	order := rng.Perm(len(workers))
	var out []Injected
	fleet := map[string]bool{}
	for range 1 + rng.IntN(mostFaults) {
		f := &soakFaults[rng.IntN(len(soakFaults))]
		// Short faults more often than long ones, a third of the span at most.
		seconds := 0.5 + rng.Float64()*rng.Float64()*(span.Seconds()/3-0.5)
		in := Injected{Kind: f.kind, At: rng.Float64() * (span.Seconds() - seconds), Seconds: seconds}
		switch {
		case f.fleet && fleet[f.kind], !f.fleet && len(order) == 0:
			continue
		case f.fleet:
			fleet[f.kind] = true
		default:
			in.worker, order = workers[order[0]], order[1:]
			in.Worker = in.worker.name
		}
		out = append(out, in)
	}
	return out
}

// breakAll injects faults at their times, and returns once all are mended.
func (w *world) breakAll(ctx context.Context, faults []Injected) error {
	began := time.Now()
	errs := make([]error, len(faults))
	var all sync.WaitGroup
	for i := range faults {
		all.Go(func() {
			in := &faults[i]
			if errs[i] = pause(ctx, time.Until(began.Add(seconds(in.At)))); errs[i] != nil {
				return
			}
			w.e.o.Progress.Sayf("%s %s", in.Kind, in.Worker)
			for _, f := range soakFaults {
				if f.kind != in.Kind {
					continue
				}
				if err := f.inject(ctx, w, in.worker, seconds(in.Seconds)); err != nil {
					errs[i] = fmt.Errorf("%s %s: %w", in.Kind, in.Worker, err)
				}
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
