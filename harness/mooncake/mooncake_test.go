// SPDX-License-Identifier: Apache-2.0

package mooncake

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"kindex/numa"
)

// search runs Search on an index that keeps up with so many block operations a second
// of a corpus of a million.
func search(t *testing.T, first int, most float64, flaky int) (*Sustainable, int) {
	t.Helper()
	trials := 0
	s, err := Search(t.Context(), first, 0.5, func(_ context.Context, window int) (Offer, error) {
		trials++
		offered := 1e9 / float64(window)
		o := Offer{Offered: offered, Achieved: min(offered, most), Issued: 1}
		if trials == flaky {
			o.Issued = 1.02
		}
		return o, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return s, trials
}

// TestSearch finds known rates from below and from above, to 10 %.
func TestSearch(t *testing.T) {
	for _, first := range []int{1_000, 40, 7, 3} {
		s, trials := search(t, first, 60e6, 0)
		if s.Rate > 60e6/0.99 || s.Fails < 60e6 || s.Fails > 1.12*s.Rate {
			t.Errorf("from %d ms: sustained %.3g, not %.3g, want 10 %% about 6e7", first, s.Rate, s.Fails)
		}
		if trials > 40 {
			t.Errorf("from %d ms: %d trials", first, trials)
		}
	}
	// A generator that was late once: that rate is not sustained.
	s, _ := search(t, 1_000, 60e6, 2)
	if s.Points[0].Sustained || len(s.Points[0].Trials) != 2 || s.Points[1].WindowMS != 2_000 {
		t.Errorf("%+v", s.Points[:2])
	}
	if s, _ := search(t, 1, 0.1, 0); s.Rate != 0 || s.Fails == 0 {
		t.Errorf("nothing sustained: %+v", s)
	}
	// Every second trial on a busy machine: repeated, whatever it found.
	n := 0
	s, err := Search(t.Context(), 100, 0.5, func(_ context.Context, window int) (Offer, error) {
		n++
		o := Offer{Offered: 1e9 / float64(window), Issued: 1, Foreign: float64(n%2) * 0.6}
		if n%2 == 0 {
			o.Achieved = min(o.Offered, 60e6)
		}
		return o, nil
	})
	if err != nil || s.Rate < 50e6 || s.Points[0].Discarded != 3 || !s.Points[0].Sustained {
		t.Errorf("%+v, %v", s, err)
	}
	if _, err := Search(t.Context(), 100, 0.5, func(context.Context, int) (Offer, error) { return Offer{Foreign: 1}, nil }); err == nil || !strings.Contains(err.Error(), "100 ms: discarded 20 times for more than 0.5 foreign CPUs") {
		t.Errorf("always busy: %v", err)
	}
	failing := errors.New("planted")
	if _, err := Search(t.Context(), 5, 0.5, func(context.Context, int) (Offer, error) { return Offer{}, failing }); !errors.Is(err, failing) {
		t.Errorf("%v", err)
	}
	var b strings.Builder
	if err := WriteSustained(&b, []*Sustainable{{Arm: "a", Rate: 2e7, Fails: 3e7, Points: []Point{{WindowMS: 5}}}, {Arm: "b", Rate: 1e7}}); err != nil || !strings.Contains(b.String(), "| b | 10.0 | 0.0 |  | 0 | 2.00 |") {
		t.Errorf("%v:\n%s", err, b.String())
	}
}

const numaMaps = `7f0000000000 bind:0 anon=1536 dirty=1536 N0=1536 kernelpagesize_kB=4
7f0040000000 bind:1 anon=4 dirty=4 N1=4 kernelpagesize_kB=2048
7f0050000000 bind:1 anon=100 N0=10 N1=90 kernelpagesize_kB=4
7f0060000000 default anon=9 N1=9 kernelpagesize_kB=4
7f0070000000 interleave:0-1 anon=10 N0=6 N1=4 kernelpagesize_kB=4
7f0080000000 prefer:0
garbage
`

func TestParseMaps(t *testing.T) {
	all, err := parseMaps(strings.NewReader(numaMaps))
	if err != nil || len(all) != 3 {
		t.Fatalf("%+v, %v, want 3 policies", all, err)
	}
	if all[0].Policy != "bind:0" || all[0].Bytes["0"] != 1536<<12 || all[1].Bytes["1"] != 4<<21+90<<12 || all[1].Bytes["0"] != 10<<12 || all[2].Policy != "interleave:0-1" {
		t.Errorf("%+v", all)
	}
	for i, err := range []error{all[0].check(false), all[1].check(false), all[2].check(true)} {
		if err != nil {
			t.Errorf("%s: %v", all[i].Policy, err)
		}
	}
	for _, test := range []struct {
		p           Placed
		interleaved bool
		want        string
	}{
		{all[0], true, "which was not asked for"},
		{all[2], false, "which was not asked for"},
		{Placed{"bind:1", map[string]int64{"0": 2, "1": 98}}, false, "2 of 100 bytes of bind:1 lie elsewhere"},
		{Placed{"interleave:0-1", map[string]int64{"0": 80, "1": 20}}, true, "node 1 has 20 of 100 bytes"},
		{Placed{"interleave:0-1", map[string]int64{"0": 80}}, true, "node 1 has 0 of 80 bytes"},
		{Placed{"bind:x", nil}, false, "placement: bind:x"},
	} {
		if err := test.p.check(test.interleaved); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%+v: %v, want %q", test.p, err, test.want)
		}
	}
}

// TestPlace: on one node nothing is chosen; on two a lane and its shards share one.
func TestPlace(t *testing.T) {
	o := DefaultOptions()
	o.Lanes, o.Shards = 2, 4
	one := &numa.Topology{Nodes: []numa.Node{{ID: 0, CPUs: []int{0, 1}, Memory: true}}}
	if shards, pins := place(&o, one); len(shards) != 4 || !shards[0].Placement.Anywhere() || pins != nil {
		t.Errorf("one node: %+v, %v", shards, pins)
	}
	two := &numa.Topology{Nodes: []numa.Node{{ID: 0, CPUs: []int{0, 1}, Memory: true, Home: 0}, {ID: 3, CPUs: []int{2}, Memory: true, Home: 3}}}
	shards, pins := place(&o, two)
	for i, want := range []int{0, 3, 0, 3} {
		if got, ok := shards[i].Placement.Node(); !ok || got != want {
			t.Errorf("shard %d on node %d, want %d", i, got, want)
		}
	}
	if len(pins) != 2 || !slices.Equal(pins[0], []int{0, 1}) || !slices.Equal(pins[1], []int{2}) {
		t.Errorf("lanes on CPUs %v", pins)
	}
	o.Memory = "interleave"
	shards, pins = place(&o, two)
	if got := shards[1].Placement.Nodes(); !slices.Equal(got, []int{0, 3}) || pins != nil {
		t.Errorf("interleaved: %v, %v", got, pins)
	}
}
