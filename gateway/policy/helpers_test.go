// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"testing"

	"kindex/gateway/fleet"
)

// newWorkers returns ready workers of so many ranks.
func newWorkers(n, ranks int) []*fleet.Worker {
	ws := make([]*fleet.Worker, n)
	for i := range ws {
		ws[i] = newWorker(i, ranks)
	}
	return ws
}

func newWorker(i, ranks int) *fleet.Worker {
	w := fleet.NewWorker(fmt.Sprintf("w%d", i), &fleet.Spec{
		URL: fmt.Sprintf("http://10.0.%d.%d:8000", i/256, i%256), Instance: fmt.Sprint(i), Ranks: ranks,
		Terms: fleet.Terms{Priority: 50, Cost: 1},
	})
	w.SetState(fleet.Ready)
	return w
}

func newPool(n, ranks int) *fleet.Pool { return fleet.NewPool("m", 1, newWorkers(n, ranks)) }

func seeded(t testing.TB, name string, edit func(*Options)) Policy {
	t.Helper()
	o := DefaultOptions()
	o.Seed = 1
	if edit != nil {
		edit(&o)
	}
	p, err := New(name, o)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func ask(pool *fleet.Pool) *Question {
	return &Question{Pool: pool, Prompt: 4096, BlockSize: 16, Blocks: 256, Rank: -1, Now: fleet.Now()}
}

func decide(t testing.TB, p Policy, q *Question) Decision {
	t.Helper()
	var d Decision
	if err := p.Decide(q, &d); err != nil {
		t.Fatalf("%s: Decide: %v", p.Name(), err)
	}
	if d.Holder == nil {
		t.Fatalf("%s: no holder and no error", p.Name())
	}
	return d
}

// reading sets h's report of so many running requests.
func reading(h *fleet.Holder, running int64, edit func(*fleet.Reading)) {
	r := &fleet.Reading{
		At: fleet.Now(), Running: running, WaitingUncached: -1, Usage: -1, ActiveUsage: -1,
		Throughput: -1, MaxRunning: -1, PrefillPending: -1, SilenceMS: -1,
	}
	h.Stamp(r)
	if edit != nil {
		edit(r)
	}
	h.SetReading(r)
}

func match(h *fleet.Holder, blocks uint32) Match {
	return Match{Holder: h, Blocks: blocks, Device: blocks}
}
