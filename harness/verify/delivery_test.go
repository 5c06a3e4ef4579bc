// SPDX-License-Identifier: Apache-2.0

package verify

import (
	"math/rand/v2"
	"path/filepath"
	"testing"

	"kindex/harness/record"
	"kindex/relay/wire"
)

// late moves messages behind up to three of the lines that follow them, as a
// slow socket would, each stream's own order kept.
func late(f *record.File, rng *rand.Rand) {
	held := map[string]int{} // lines until a source delivers again
	var waiting, out []record.Line
	for _, l := range f.Lines {
		var still []record.Line
		blocked := map[string]bool{}
		for _, w := range waiting {
			if held[w.Msg.Src]--; held[w.Msg.Src] < 0 && !blocked[w.Msg.Src] {
				w.T = l.T
				out = append(out, w)
				continue
			}
			blocked[w.Msg.Src] = true
			still = append(still, w)
		}
		waiting = still
		if l.Msg != nil {
			if len(still) == 0 || !blocked[l.Msg.Src] {
				held[l.Msg.Src] = rng.IntN(4)
			}
			waiting = append(waiting, l)
			continue
		}
		out = append(out, l)
	}
	f.Lines = append(out, waiting...)
	number(f)
}

// twice delivers some messages again, later.
func twice(f *record.File, rng *rand.Rand) {
	var out, seen []record.Line
	for _, l := range f.Lines {
		out = append(out, l)
		if l.Ctl != nil && l.Ctl.Op == "engine_start" {
			seen = nil
		}
		if l.Msg != nil {
			seen = append(seen, l)
		}
		if len(seen) > 0 && rng.IntN(4) == 0 {
			again := seen[rng.IntN(len(seen))]
			again.T = l.T
			out = append(out, again)
		}
	}
	f.Lines = out
	number(f)
}

// lost takes messages out of the live stream that only a replay then shows.
func lost(f *record.File, rng *rand.Rand) {
	replays := map[int]*record.Replay{}
	var out []record.Line
	gone := false // never the last: nothing would show that it is missing
	for i, l := range f.Lines {
		if l.Msg == nil {
			out = append(out, l)
			continue
		}
		rank, ok := record.PubRank(l.Msg.Src)
		_, payload, seq, err := wire.ParseMessage(l.Msg.Frames)
		if !ok || err != nil {
			out = append(out, l)
			continue
		}
		if replays[rank] == nil {
			replays[rank] = &record.Replay{Src: "replay" + l.Msg.Src[3:], Ended: true}
		}
		replays[rank].Messages = append(replays[rank].Messages, wire.MakeReplay(wire.ReplayTopic, "", seq, payload))
		gone = seq > 0 && !gone && rng.IntN(3) == 0 && !lastOf(f, i)
		if !gone {
			out = append(out, l)
		}
	}
	end := out[len(out)-1].T
	for _, r := range replays {
		out = append(out, record.Line{T: end, Kind: record.KindReplay, Replay: r})
	}
	f.Lines = out
	number(f)
}

func lastOf(f *record.File, i int) bool {
	for _, l := range f.Lines[i+1:] {
		if l.Msg != nil && l.Msg.Src == f.Lines[i].Msg.Src {
			return false
		}
	}
	return true
}

func number(f *record.File) {
	for i := range f.Lines {
		f.Lines[i].N = i + 2
	}
}

// TestDelivery changes how the recorded messages arrive: late, twice, or only
// through a replay. What the engine held and hit is the same, and so the facts
// must explain every number still.
func TestDelivery(t *testing.T) {
	for name, change := range map[string]func(*record.File, *rand.Rand){"late": late, "twice": twice, "lost and replayed": lost} {
		t.Run(name, func(t *testing.T) {
			sum := NewReport()
			for i, path := range fixtures(t, "*") {
				f, err := record.Read(path)
				if err != nil {
					t.Fatal(err)
				}
				if f.Header.Scenario == "restart" && name == "lost and replayed" {
					continue // a replay shows one life only
				}
				change(f, rand.New(rand.NewPCG(1, uint64(i)))) //nolint:gosec // seeded on purpose
				r, err := File(f, Options{Index: "reference", truthOnly: true})
				if err != nil {
					t.Fatal(err)
				}
				for _, fault := range r.Faults {
					t.Errorf("%s %v", filepath.Base(path), fault)
				}
				sum.add(r)
			}
			t.Logf("%d requests: %d exact, %v; %d tables: %d exact, %v", sum.Credit.Requests, sum.Credit.Exact, sum.Credit.Rules,
				sum.EngineTable.Checks, sum.EngineTable.Exact, sum.EngineTable.Rules)
		})
	}
}

// TestOtherNumbers gives every request another number of cached tokens than its
// engine's, a block less or more: no rule may explain one. (A few are what a lookup
// predicts where a rule would have told otherwise.)
func TestOtherNumbers(t *testing.T) {
	for i, path := range fixtures(t, "*") {
		f, err := record.Read(path)
		if err != nil {
			t.Fatal(err)
		}
		size := max(f.Header.MainBlockSize(), 1)
		changed := 0
		for j := range f.Lines {
			if resp := f.Lines[j].Resp; resp != nil && resp.Cached != nil {
				n := *resp.Cached + size
				if (i+j)%2 == 0 && n > size {
					n -= 2 * size
				}
				resp.Cached = &n
				changed++
			}
		}
		r, err := File(f, Options{Index: "reference", truthOnly: true})
		if err != nil {
			t.Fatal(err)
		}
		if r.Credit.Explained != 0 || r.Credit.Wrong+r.Credit.Exact != changed || r.Credit.Exact > 3 {
			t.Errorf("%s: of %d wrong numbers %d are seen and %d are exact; rules %v", filepath.Base(path), changed, r.Credit.Wrong, r.Credit.Exact, r.Credit.Rules)
		}
	}
}
