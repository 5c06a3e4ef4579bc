// SPDX-License-Identifier: Apache-2.0

package fleet

import "testing"

// TestPrefillRate: the rate is that of the holder, however many prompts share the time,
// and of long prompts of streams that came to a first token alone.
func TestPrefillRate(t *testing.T) {
	const ms = 1_000_000
	long := Work{Prompt: 10_000, Cached: 2_000, Stream: true}
	take := func(h *Holder, w Work, at int64) *Lease {
		l := h.Take(w)
		l.Since = at
		return l
	}
	for _, test := range []struct {
		name string
		run  func(h *Holder)
		want float64
	}{
		{"nothing", func(*Holder) {}, 0},
		{"one", func(h *Holder) { take(h, long, 0).Moved(200 * ms) }, 40_000},
		{"a later token", func(h *Holder) { l := take(h, long, 0); l.Moved(200 * ms); l.Moved(900 * ms) }, 40_000},
		{"one after the other, all of them at once", func(h *Holder) {
			a, b, c := take(h, long, 0), take(h, long, 0), take(h, long, 0)
			a.Moved(200 * ms)
			b.Moved(400 * ms)
			c.Moved(600 * ms)
		}, 40_000},
		{"a change is taken by and by", func(h *Holder) { take(h, long, 0).Moved(200 * ms); take(h, long, 0).Moved(100 * ms) }, 45_000},
		{"short", func(h *Holder) { take(h, Work{Prompt: 2_000, Stream: true}, 0).Moved(200 * ms) }, 0},
		{"cached", func(h *Holder) { take(h, Work{Prompt: 9_000, Cached: 8_000, Stream: true}, 0).Moved(200 * ms) }, 0},
		{"in one piece", func(h *Holder) { take(h, Work{Prompt: 9_000}, 0).Moved(200 * ms) }, 0},
		{"given up", func(h *Holder) { take(h, long, 0).Release() }, 0},
		{"beside one given up", func(h *Holder) {
			a, b := take(h, long, 0), take(h, long, 0)
			a.Release()
			b.Moved(200 * ms)
		}, 40_000},
		{"at once", func(h *Holder) { take(h, long, 0).Moved(0) }, 0},
		{"incredible", func(h *Holder) { take(h, long, 0).Moved(1) }, fastestRate},
	} {
		w := NewWorker("w", &Spec{URL: "http://h:1", Models: []string{"m"}})
		test.run(w.Holders[0])
		if got := w.Holders[0].PrefillRate(); got != test.want {
			t.Errorf("%s: %v tokens a second, want %v", test.name, got, test.want)
		}
	}
}
