// SPDX-License-Identifier: Apache-2.0

package indexsrv

import (
	"testing"

	"kindex/internal/kv"
)

func with(ev kv.Event, edit func(*kv.Event)) kv.Event {
	edit(&ev)
	return ev
}

// keys builds one block's extra keys.
func keys(ks ...kv.ExtraKey) []kv.ExtraKey { return ks }

func text(s string) kv.ExtraKey { return kv.ExtraKey{Kind: kv.ExtraString, ID: s} }

func item(id string, at int64) kv.ExtraKey {
	return kv.ExtraKey{Kind: kv.ExtraItem, ID: id, Offset: at}
}

func encoded(ks ...kv.ExtraKey) []byte {
	var b []byte
	for _, k := range ks {
		b = kv.AppendExtraKey(b, k)
	}
	return b
}

// Equal tokens under a base model, an adapter, a salt and two images answer only
// to themselves; in a hybrid model only the main group counts.
func TestNamespacesApart(t *testing.T) {
	f := newFeedTest(t, false, nil).connect()
	spread := func(h uint64, edit func(*kv.Event)) kv.Event {
		return with(storeOf(0, 11, 12, 13, 14), func(e *kv.Event) {
			for i := range e.Hashes {
				e.Hashes[i] = kv.EngineHash(h) + kv.EngineHash(i)
			}
			e.Extra, e.HasExtra = make([][]kv.ExtraKey, 4), true
			edit(e)
		})
	}
	all := []kv.Event{
		spread(100, func(e *kv.Event) {
			e.LoRAName = "x"
			for i := range e.Extra {
				e.Extra[i] = keys(text("x"))
			}
		}),
		spread(200, func(e *kv.Event) { e.Extra[0] = keys(text("s")) }),
		spread(300, func(e *kv.Event) { e.Extra[0] = keys(item("i1", 0)) }),
		spread(400, func(e *kv.Event) { e.Extra[0] = keys(item("i2", 0)) }),
	}
	f.live(0, all...)
	// The bare namespace is not filled yet: none of the others answers for it.
	if got := depth(f.w, f.h, 11, 12, 13, 14); got != 0 {
		t.Errorf("bare: depth %d, want 0", got)
	}
	f.live(1, storeOf(0, 11, 12, 13, 14))
	image := func(id string) []kv.ContentHash {
		c := chainOf(kv.HashSeed, 11, 12, 13, 14)
		c[0] = kv.HashBlock(kv.HashSeed, blockTokens(11), encoded(item(id, 0)))
		return c
	}
	lora, salt := kv.ContentSeed("x", ""), kv.ContentSeed("", "s")
	for _, tc := range []struct {
		name  string
		seed  uint64
		chain []kv.ContentHash
		want  uint32
	}{
		{"bare", kv.HashSeed, chainOf(kv.HashSeed, 11, 12, 13, 14), 4},
		{"lora", lora, chainOf(lora, 11, 12, 13, 14), 4},
		{"salt", salt, chainOf(salt, 11, 12, 13, 14), 4},
		{"both", kv.ContentSeed("x", "s"), chainOf(kv.ContentSeed("x", "s"), 11), 0},
		{"image 1", kv.HashSeed, image("i1"), 4},
		{"image 2", kv.HashSeed, image("i2"), 4},
		{"image 3", kv.HashSeed, image("i3"), 0},
	} {
		var got uint32
		for _, m := range f.w.Lookup(testModel.Namespace(tc.seed), tc.chain, nil) {
			got = m.Any
		}
		if got != tc.want {
			t.Errorf("%s: depth %d, want %d", tc.name, got, tc.want)
		}
	}

	hybrid := newFeedTest(t, false, nil).connect()
	hybrid.live(0, storeOf(0, 11, 12), with(storeOf(0, 11, 12, 13, 14), func(e *kv.Event) {
		e.Group, e.Spec, e.SpecName, e.Window, e.HasWindow = 1, kv.SpecWindow, "sliding_window", 64, true
	}))
	if got := depth(hybrid.w, hybrid.h, 11, 12, 13, 14); got != 2 {
		t.Errorf("hybrid: depth %d, want 2", got)
	}
}

// What follows a salted block lies in its namespace, although only the first
// block of a chain carries the salt.
func TestSaltInherited(t *testing.T) {
	f := newFeedTest(t, false, nil).connect()
	f.live(0, with(storeOf(0, 1), func(e *kv.Event) { e.Extra, e.HasExtra = [][]kv.ExtraKey{keys(text("s"))}, true }))
	f.live(1, with(storeOf(1, 2), func(e *kv.Event) { e.Extra, e.HasExtra = make([][]kv.ExtraKey, 1), true }))
	seed := kv.ContentSeed("", "s")
	if got := depthIn(f.w, f.h, seed, 1, 2); got != 2 {
		t.Errorf("depth %d in the salt's namespace, want 2", got)
	}
	if got := depth(f.w, f.h, 1, 2); got != 0 {
		t.Errorf("depth %d in the bare namespace, want 0", got)
	}
}

// An announcement of a lower tier that repeats a block's tokens without its keys
// adds a copy of that block, and does not move it to where the tokens alone are.
func TestLowerTierWithoutKeys(t *testing.T) {
	f := newFeedTest(t, false, nil).connect()
	ks := [][]kv.ExtraKey{keys(text("s")), keys(item("i", 0)), nil, nil}
	seed := kv.ContentSeed("", "s")
	chain := chainOf(seed, 1, 2, 3, 4)
	chain[1] = kv.HashBlock(seed, blockTokens(2), encoded(item("i", 0)))
	f.live(0, with(storeOf(0, 1, 2, 3, 4), func(e *kv.Event) { e.Extra, e.HasExtra = ks, true }))
	f.live(1, with(storeOf(0, 1, 2, 3, 4), func(e *kv.Event) { e.Medium = "CPU" }), with(storeOf(4, 5), func(e *kv.Event) { e.Medium = "CPU" }))
	f.live(2, removeOf(1, 2, 3, 4))
	chain = append(chain, kv.HashBlock(seed, blockTokens(5), nil))
	ms := f.w.Lookup(testModel.Namespace(seed), chain, nil)
	if len(ms) != 1 || ms[0].Any != 5 || ms[0].Host != 5 || ms[0].Device != 0 {
		t.Errorf("got %+v, want 5 blocks in the host tier", ms)
	}
	if got := depth(f.w, f.h, 1); got != 0 {
		t.Errorf("bare namespace: depth %d, want 0", got)
	}
	// A hash whose keys are known and that is nowhere now is not stored by its
	// tokens either.
	f.live(3, with(removeOf(1, 2, 3, 4), func(e *kv.Event) { e.Medium = "CPU" }))
	f.live(4, with(storeOf(0, 1), func(e *kv.Event) { e.Medium = "CPU" }))
	if got := depth(f.w, f.h, 1); got != 0 {
		t.Errorf("bare namespace, after all: depth %d, want 0", got)
	}
	if st := f.Status(); st.Dropped["store_unknown"] != 1 {
		t.Errorf("got %s; want 1 store_unknown", statusLine(st))
	}
}
