// SPDX-License-Identifier: Apache-2.0

package ladder

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"kindex/harness/mooncake"
	"kindex/harness/peers"
	"kindex/harness/trial"
)

// keeper keeps up with so much, by arm.
func keeper(most map[string]float64, asked *[]string) ask {
	return func(_ context.Context, arm string, windowMS int) (Trial, error) {
		*asked = append(*asked, arm)
		offered := 1e9 / float64(windowMS) // of a corpus of a million
		ok := offered <= most[arm]
		return Trial{
			Offer: mooncake.Offer{Offered: offered, Achieved: min(offered, most[arm]), Issued: 1}, KeptUp: ok,
			Lookup: &trial.Latency{Samples: 9, P50: 10, P99: uint32(100 + len(*asked)), P999: 500, Max: 900},
		}, nil
	}
}

// TestClimb: rates go up, arms end after two steps that they do not keep up with, and
// the report is of our last one that was kept up with.
func TestClimb(t *testing.T) {
	o := DefaultOptions()
	o.First, o.Factor, o.Runs, o.Peers = 1e6, 2, 3, []string{"smg-chain"}
	var asked []string
	c, err := climb(t.Context(), &o, 1e6, trial.NewProgress(nil, ""), keeper(map[string]float64{Ours: 5e6, "smg-chain": 1.5e6}, &asked))
	if err != nil {
		t.Fatal(err)
	}
	var ours, peer []bool
	for i, s := range c.Steps {
		if len(s.Trials) != 3 || s.Lookup.P999 != 500 || s.Lookup.Max != 900 || s.P99.Min >= s.P99.Max || s.Sustained != s.KeptUp {
			t.Errorf("step %d: %+v", i, s)
		}
		if s.Arm == Ours {
			ours = append(ours, s.KeptUp)
		} else {
			peer = append(peer, s.KeptUp)
		}
	}
	// 1, 2, 4, 8 and 16 M.
	if !slices.Equal(ours, []bool{true, true, true, false, false}) || !slices.Equal(peer, []bool{true, false, false}) {
		t.Errorf("ours %v, the peer %v", ours, peer)
	}
	if c.Offered != 4e6 || c.Achieved != 4e6 || !*c.KeptUp || c.Lookup.P50 != 10 {
		t.Errorf("report %+v", c.Report)
	}
	if !slices.Equal(asked[:4], []string{Ours, "smg-chain", Ours, "smg-chain"}) {
		t.Errorf("%v: trials are not in turn", asked[:4])
	}
	var b strings.Builder
	if err := c.WriteText(&b); err != nil || !strings.Contains(b.String(), "| 8.00 | kindex | 5.00 | no | no | 10 |") {
		t.Errorf("%v:\n%s", err, b.String())
	}
}

// TestClimbEnds: with the steps, with the shortest window, with an error.
func TestClimbEnds(t *testing.T) {
	var asked []string
	all := keeper(map[string]float64{Ours: 1e18}, &asked)
	o := DefaultOptions()
	o.Steps = 4
	if c, err := climb(t.Context(), &o, 1e9, trial.NewProgress(nil, ""), all); err != nil || len(c.Steps) != 4 {
		t.Errorf("%v, %d steps", err, len(c.Steps))
	}
	o.Steps, o.Factor = 200, 10
	if c, err := climb(t.Context(), &o, 1e6, trial.NewProgress(nil, ""), all); err != nil || c.Steps[len(c.Steps)-1].WindowMS != 1 || len(c.Steps) > 5 {
		t.Errorf("%v, %+v", err, c.Steps)
	}
	failing := errors.New("planted")
	if _, err := climb(t.Context(), &o, 1e6, trial.NewProgress(nil, ""), func(context.Context, string, int) (Trial, error) { return Trial{}, failing }); !errors.Is(err, failing) {
		t.Errorf("%v", err)
	}
	// Nothing kept up with: the report is of the first step.
	c, err := climb(t.Context(), &o, 1e6, trial.NewProgress(nil, ""), keeper(map[string]float64{}, &asked))
	if err != nil || len(c.Steps) != giveUp || *c.KeptUp || c.Offered != c.Steps[0].Offered {
		t.Errorf("%v, %+v", err, c)
	}
}

// TestCalm: on a busy machine a trial is repeated, and the calmest counts.
func TestCalm(t *testing.T) {
	for _, test := range []struct {
		loads     []float64
		best      float64
		discarded int
	}{{[]float64{0.1}, 0.1, 0}, {[]float64{2, 0.4}, 0.4, 1}, {[]float64{2, 0.9, 1.5}, 0.9, 2}} {
		n := 0
		got, discarded, err := calm(t.Context(), 0.5, Ours, 1, func(context.Context, string, int) (Trial, error) {
			n++
			return Trial{Foreign: test.loads[n-1]}, nil
		})
		if err != nil || n != len(test.loads) || got.Foreign != test.best || discarded != test.discarded {
			t.Errorf("%v: %d trials, %+v, %d discarded, %v", test.loads, n, got, discarded, err)
		}
	}
}

func TestPeerTrial(t *testing.T) {
	r := peerTrial(&peers.Run{Offered: 5, Achieved: 4, IssuedOverWindow: 1.2, KeptUp: false, Service: &peers.Times{Samples: 3, P50: 1, P99: 2, P999: 3, Max: 4}}, 0.5)
	if r.Offered != 5 || r.Issued != 1.2 || r.Sustained() || *r.Lookup != (trial.Latency{Samples: 3, P50: 1, P99: 2, P999: 3, Max: 4}) || r.Foreign != 0.5 {
		t.Errorf("%+v", r)
	}
}
