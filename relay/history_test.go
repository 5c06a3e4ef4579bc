// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"bytes"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
)

// A history is what a plain list says, whatever comes: limits, places, finds.
func TestHistoryAgainstList(t *testing.T) {
	for seed := range uint64(30) {
		rng := rand.New(rand.NewPCG(seed, 1))
		maxEntries, maxBytes := 1+rng.IntN(40), int64(1+rng.IntN(20_000))
		h := newHistory(maxEntries, maxBytes)
		h.lag = limits{maxEntries + rng.IntN(20), maxBytes + int64(rng.IntN(5000))}
		var list, all []entry // the window, and what is kept in all
		seq, index := uint64(rng.IntN(3)), uint64(0)
		for range 400 {
			if rng.IntN(150) == 0 {
				h.reset()
				list, all, seq = nil, nil, 0
			}
			e := entry{from: seq, to: seq, check: rng.Uint64()}
			if rng.IntN(10) == 0 {
				e.hole, e.to, e.why = true, seq+uint64(rng.IntN(5)), "lost"
			} else {
				body := bytes.Repeat([]byte{byte(seq)}, rng.IntN(700))
				e.bodies[FormOwn], e.bodies[FormPeer] = h.keep(body), h.keep(body[:len(body)/2])
			}
			h.add(e)
			list, all = append(list, e), append(all, e)
			seq = e.to + 1
			index++
			for len(all) > 1 && (len(all) > h.lag.entries || charge(all) > h.lag.bytes) {
				all = all[1:]
			}
			for total := charge(list); len(list) > 1 && (len(list) > maxEntries || total > maxBytes); total = charge(list) {
				list = list[1:]
			}
			if h.len() != len(list) || h.head != index || h.bytes != charge(list) {
				t.Fatalf("seed %d: %d entries of %d bytes up to %d, want %d of %d up to %d", seed, h.len(), h.bytes, h.head, len(list), charge(list), index)
			}
			if h.kept() != len(all) || h.old+h.bytes != charge(all) {
				t.Fatalf("seed %d: %d entries of %d bytes in all, want %d of %d", seed, h.kept(), h.old+h.bytes, len(all), charge(all))
			}
			for i := range all {
				want, got := &all[i], h.at(h.tail+uint64(i))
				if got.from != want.from || got.to != want.to || got.check != want.check || !bytes.Equal(got.bodies[FormOwn], want.bodies[FormOwn]) {
					t.Fatalf("seed %d: entry %d is %+v, want %+v", seed, i, got, want)
				}
			}
			ask := uint64(rng.IntN(int(seq) + 3))
			wantAt, wantFound, wantAfter := h.head, false, h.head
			for i := range slices.Backward(list) {
				if list[i].to >= ask {
					wantAt, wantFound = h.from+uint64(i), list[i].from <= ask
				}
				if list[i].from > ask {
					wantAfter = h.from + uint64(i)
				}
			}
			if at, found := h.find(ask); at != wantAt || found != wantFound {
				t.Fatalf("seed %d: number %d found at %d, %t, want %d, %t", seed, ask, at, found, wantAt, wantFound)
			}
			if after := h.after(ask); after != wantAfter {
				t.Fatalf("seed %d: after number %d comes %d, want %d", seed, ask, after, wantAfter)
			}
		}
	}
}

func charge(list []entry) (n int64) {
	for i := range list {
		n += list[i].charge()
	}
	return n
}

// The newest entry is kept whatever it weighs, until the next one comes.
func TestHistoryKeepsTheNewest(t *testing.T) {
	h := newHistory(10, 1000)
	for seq := range uint64(3) {
		h.add(entry{from: seq, to: seq, bodies: [numForms][]byte{h.keep(make([]byte, 100_000))}})
		if h.len() != 1 || h.at(h.from).to != seq {
			t.Fatalf("after %d: %d entries", seq, h.len())
		}
	}
}

// What is charged is what the memory is: a full history grows no further, and its
// bytes are the charge but for a twentieth and the pages at its ends.
func TestHistoryMemory(t *testing.T) {
	const entries, body = 10_000, 800
	h := newHistory(entries, 1<<40)
	add := func(n int) {
		b := make([]byte, body)
		for range n {
			q := h.head
			h.add(entry{from: q, to: q, bodies: [numForms][]byte{h.keep(b[:body/4]), h.keep(b[:3*body/4])}})
		}
	}
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	add(entries)
	full := heap() - before
	add(5 * entries)
	later := heap() - before
	limit := h.bytes + h.bytes/20 + 3*pageSize
	if full > limit || later > limit || later < h.bytes/2 {
		t.Errorf("the heap holds %d bytes for a charge of %d, and %d after five times as many more; want at most %d", full, h.bytes, later, limit)
	}
	if n := testing.AllocsPerRun(1000, func() { add(1) }); n > 2 {
		t.Errorf("%v allocations an entry, want those of the test itself", n)
	}
	runtime.KeepAlive(&h)
}
