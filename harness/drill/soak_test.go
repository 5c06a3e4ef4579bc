// SPDX-License-Identifier: Apache-2.0

package drill

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"kindex/harness/proc"
	"kindex/harness/publish"
	"kindex/harness/subscribe"
	"kindex/harness/trial"
	"kindex/internal/longtest"
)

// soakEnv is how long the soak takes, as a duration; short where it is not given.
const soakEnv = "KINDEX_SOAK"

const (
	shortSoak   = 30 * time.Second
	soakRate    = 500   // batches a second, both ranks together
	soakHistory = 2_000 // batches of each rank: 8 s
	soakPairs   = 4     // of subscribers that come and go, one of each contract
	soakMost    = 12 * time.Second
	sampleEvery = time.Second

	// flat is how much more memory the last third may take than the first, in medians.
	// What the relay holds is constant by then: a full history, a full cache. Its heap
	// swings by the collector's pace, a fifth or so in medians of a minute; anything
	// that stays behind at every batch or reconnect would double it within minutes: at
	// 500 batches of 2 KB a second a leak of a fiftieth is 12 MB in 10 minutes.
	flat     = 1.25
	flatFrom = 2 * time.Minute // shorter soaks say nothing of it
)

// comer is a subscriber that comes and goes.
type comer interface {
	Rest(d time.Duration)
	Rank(r int) subscribe.Standing
	Counts() subscribe.Counts
	Faults() []string
	Close() error
}

// TestSoak runs a steady stream for a long time, with subscribers of both contracts that
// break off at random and come back before or after their cursor has left the history.
// None may miss a batch that no snapshot covers, all must hold the truth behind every
// batch and at the end, and the relay's memory must stay what it is.
func TestSoak(t *testing.T) {
	longtest.Skip(t)
	duration := shortSoak
	if s := os.Getenv(soakEnv); s != "" {
		var err error
		if duration, err = time.ParseDuration(s); err != nil {
			t.Fatalf("%s: %v", soakEnv, err)
		}
	}
	build(t)
	e := &Env{o: Options{Seed: 5, Slack: slack, Progress: trial.NewProgress(nil, "soak")}, name: "soak"}
	defer func() {
		if err := e.close(); err != nil {
			t.Error(err)
		}
	}()
	o := publish.DefaultOptions()
	o.Rate = soakRate
	r, err := e.setup(t.Context(), o, soakHistory)
	if err != nil {
		t.Fatal(err)
	}
	comers, err := e.comers(r)
	if err != nil {
		t.Fatal(err)
	}
	rss, err := soak(t.Context(), r, comers, duration)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.settle(t.Context()); err != nil {
		t.Error(err)
	}
	judgeComers(t, r, comers)
	third := len(rss) / 3
	first, last := trial.Median(rss[:third]), trial.Median(rss[len(rss)-third:])
	t.Logf("%d batches in %v; resident memory of the relay %.1f MB in the first third, %.1f MB in the last (medians)", r.newest()[0]+r.newest()[1]+2, duration, first/1e6, last/1e6)
	if duration >= flatFrom && last > flat*first {
		t.Errorf("resident memory grew from %.1f to %.1f MB, more than %v times", first/1e6, last/1e6, flat)
	}
}

func (e *Env) comers(r *relayed) ([]comer, error) {
	var out []comer
	for range soakPairs {
		p, err := subscribe.OpenPeer(r.link.Addr(), r.pub)
		if err != nil {
			return nil, err
		}
		e.later(p.Close)
		w, err := subscribe.OpenOwn(r.link.Addr(), r.pub)
		if err != nil {
			return nil, err
		}
		e.later(w.Close)
		out = append(out, p, w)
	}
	return out, nil
}

// soak lets subscribers come and go, and returns the relay's resident bytes, sampled.
func soak(ctx context.Context, r *relayed, comers []comer, d time.Duration) ([]float64, error) {
	rng := rand.New(rand.NewPCG(r.e.o.Seed, 1)) //nolint:gosec // seeded on purpose
	var rss []float64
	tick := time.NewTicker(sampleEvery / 5)
	defer tick.Stop()
	sampled := time.Now()
	for end := time.Now().Add(d); time.Now().Before(end); {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-tick.C:
		}
		if err := errors.Join(r.relay.Ended(), r.index.proc.Ended()); err != nil {
			return nil, err
		}
		if rng.IntN(4) == 0 {
			// Short rests most of the time, some that the history does not cover.
			rest := time.Duration(rng.Float64() * rng.Float64() * float64(soakMost))
			comers[rng.IntN(len(comers))].Rest(max(rest, time.Millisecond))
		}
		if time.Since(sampled) >= sampleEvery {
			sampled = time.Now()
			cost, err := proc.CostOf(r.relay.PID())
			if err != nil {
				return nil, err
			}
			rss = append(rss, float64(cost.RSS))
		}
	}
	return rss, nil
}

// judgeComers demands that every subscriber ends with the truth and met no gap.
func judgeComers(t *testing.T, r *relayed, comers []comer) {
	t.Helper()
	newest := r.newest()
	for i, c := range comers {
		err := proc.Until(t.Context(), settleTime, func() bool {
			for rank := range newest {
				if s := c.Rank(rank); !s.Exact || s.Seq != newest[rank] {
					return false
				}
			}
			return true
		})
		n := c.Counts()
		what := fmt.Sprintf("subscriber %d: %d streams, %d batches, %d snapshots, %d resets, %d refused cursors", i, n.Subscribed, n.Batches, n.Snapshots, n.Resets, n.OutOfRange)
		if err != nil || n.Gaps+n.Wrong+n.Holes > 0 {
			t.Errorf("%s: %v, %d gaps, %d wrong states, %d holes: %q", what, err, n.Gaps, n.Wrong, n.Holes, c.Faults())
		} else {
			t.Log(what)
		}
	}
}
