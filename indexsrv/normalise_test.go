// SPDX-License-Identifier: Apache-2.0

package indexsrv

import (
	"slices"
	"testing"

	"kindex/internal/kv"
	"kindex/shard"
)

func newTestNormaliser(engine string) *normaliser {
	return newNormaliser(&StreamConfig{Model: testModel, BlockSize: testBlock, Engine: engine})
}

func with(ev kv.Event, edit func(*kv.Event)) kv.Event {
	edit(&ev)
	return ev
}

// What must not count is dropped, each for its reason.
func TestNormaliseDrops(t *testing.T) {
	tests := []struct {
		name string
		ev   kv.Event
		want drop
	}{
		{"plain", storeOf(0, 1), dropNone},
		{"no group, no kind", with(storeOf(0, 1), func(e *kv.Event) { e.HasGroup, e.Spec = false, kv.SpecUnstated }), dropNone},
		{"window group", with(storeOf(0, 1), func(e *kv.Event) { e.Spec = kv.SpecWindow }), dropNonMainGroup},
		{"window without a kind", with(storeOf(0, 1), func(e *kv.Event) { e.Spec, e.HasWindow, e.Window = kv.SpecUnstated, true, 64 }), dropNonMainGroup},
		{"another kind", with(storeOf(0, 1), func(e *kv.Event) { e.Spec = kv.SpecOther }), dropNonMainGroup},
		{"group out of range", with(storeOf(0, 1), func(e *kv.Event) { e.Group = 256 }), dropGroupRange},
		{"negative group", with(storeOf(0, 1), func(e *kv.Event) { e.Group = -1 }), dropGroupRange},
		{"remote locality", with(storeOf(0, 1), func(e *kv.Event) { e.Tier, e.Locality = kv.TierDisk, kv.LocalityRemote }), dropRemoteLocality},
		{"local storage", with(storeOf(0, 1), func(e *kv.Event) { e.Tier, e.Locality = kv.TierDisk, kv.LocalityLocal }), dropNone},
		{"shared tier", with(storeOf(0, 1), func(e *kv.Event) { e.Tier = kv.TierRemote }), dropRemoteTier},
		{"unknown medium", with(storeOf(0, 1), func(e *kv.Event) { e.Tier = kv.TierUnknown }), dropUnknownMedium},
		{"no hashes", with(storeOf(0, 1), func(e *kv.Event) { e.Hashes = nil }), dropNoHashes},
		{"fewer hashes than tokens", with(storeOf(0, 1, 2), func(e *kv.Event) { e.Hashes = e.Hashes[:1] }), dropMisaligned},
		{"a block cut short", with(storeOf(0, 1, 2), func(e *kv.Event) { e.Tokens = e.Tokens[:31] }), dropMisaligned},
		{"tokens, but block size 0", with(storeOf(0, 1), func(e *kv.Event) { e.BlockSize = 0 }), dropMisaligned},
		{"another block size", with(storeOf(0, 1), func(e *kv.Event) { e.BlockSize = 32 }), dropBlockSize},
		{"placeholder", kv.Event{Hashes: []kv.EngineHash{1}, Tier: kv.TierHost}, dropNone},
		{"window placeholder of another size", with(storeOf(0, 1), func(e *kv.Event) { e.Spec, e.BlockSize = kv.SpecOther, 4 }), dropNonMainGroup},
	}
	for _, tc := range tests {
		stores, got := newTestNormaliser("").stored(&tc.ev)
		if got != tc.want || (got == dropNone) != (len(stores) == 1) {
			t.Errorf("%s: got %v and %d stores, want %v", tc.name, got, len(stores), tc.want)
		}
	}
}

// Removals carry a bare group number: its kind is known from the stores.
func TestNormaliseGroupKinds(t *testing.T) {
	n := newTestNormaliser("")
	group := func(ev kv.Event, g int, spec kv.SpecKind) kv.Event {
		ev.Group, ev.HasGroup, ev.Spec = g, true, spec
		return ev
	}
	var rm shard.Remove
	remove := func(g int) drop {
		ev := group(removeOf(1), g, kv.SpecUnstated)
		d := n.removed(&ev)
		if d == dropNone {
			rm = n.removes[len(n.removes)-1]
		}
		return d
	}
	if got := remove(1); got != dropNone || rm.Group != 1 {
		t.Errorf("removal of a group not heard of: got %v of group %d, want none of 1", got, rm.Group)
	}
	for g, spec := range []kv.SpecKind{kv.SpecFull, kv.SpecWindow, kv.SpecFull} {
		ev := group(storeOf(0, 1), g, spec)
		n.stored(&ev)
	}
	for g, want := range []drop{dropNone, dropNonMainGroup, dropNone} {
		if got := remove(g); got != want {
			t.Errorf("removal of group %d: got %v, want %v", g, got, want)
		}
		ev := group(storeOf(0, 1), g, kv.SpecUnstated)
		stores, got := n.stored(&ev)
		if got != want || got == dropNone && stores[0].Group != uint8(g) {
			t.Errorf("store of group %d without a kind: got %v, want %v and its group", g, got, want)
		}
	}
}

// Where group 0 is a window group, an event that names no group still counts.
func TestNormaliseNoGroup(t *testing.T) {
	n := newTestNormaliser("")
	window := with(storeOf(0, 1), func(e *kv.Event) { e.Spec = kv.SpecWindow })
	n.stored(&window)
	bare := kv.Event{Hashes: []kv.EngineHash{1}, Tier: kv.TierHost}
	if _, d := n.stored(&bare); d != dropNone {
		t.Errorf("store: got %v, want none", d)
	}
	bare.Kind = kv.KindRemoved
	if d := n.removed(&bare); d != dropNone {
		t.Errorf("removal: got %v, want none", d)
	}
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

// The LoRA name, the salt and the identifiers of items are told apart, though all
// may be bare strings.
func TestNormaliseExtraKeys(t *testing.T) {
	digest := kv.ExtraKey{Kind: kv.ExtraBytes, ID: "\x01\x02"}
	tests := []struct {
		name   string
		lora   string
		parent uint64
		keys   [][]kv.ExtraKey
		salt   string
		extra  [][]byte // nil: no block has keys of its own
	}{
		{name: "nothing", keys: [][]kv.ExtraKey{nil, nil}},
		{name: "salt", keys: [][]kv.ExtraKey{keys(text("s")), nil}, salt: "s"},
		{name: "lora", lora: "x", keys: [][]kv.ExtraKey{keys(text("x")), keys(text("x"))}},
		{name: "lora and salt", lora: "x", keys: [][]kv.ExtraKey{keys(text("x"), text("s")), keys(text("x"))}, salt: "s"},
		{name: "lora and a salt of the same text", lora: "x", keys: [][]kv.ExtraKey{keys(text("x"), text("x")), keys(text("x"))}, salt: "x"},
		{name: "lora below a parent", lora: "x", parent: 9, keys: [][]kv.ExtraKey{keys(text("x")), keys(text("x"))}},
		{
			name: "image over two blocks", keys: [][]kv.ExtraKey{nil, keys(item("i", 8)), keys(item("i", -8))},
			extra: [][]byte{{}, encoded(item("i", 8)), encoded(item("i", -8))},
		},
		{
			name: "lora, image, salt and embeddings", lora: "x",
			keys: [][]kv.ExtraKey{keys(text("x"), item("i", 3), text("s"), digest), keys(text("x"))},
			salt: "s", extra: [][]byte{encoded(item("i", 3), digest), {}},
		},
		{
			name: "bare image over two blocks", keys: [][]kv.ExtraKey{keys(text("i")), keys(text("i"))},
			extra: [][]byte{encoded(text("i")), encoded(text("i"))},
		},
		{
			name: "bare image and salt", keys: [][]kv.ExtraKey{keys(text("i"), text("s")), keys(text("i"))},
			salt: "s", extra: [][]byte{encoded(text("i")), encoded(text("i"))},
		},
		{
			name: "bare image in a later block", keys: [][]kv.ExtraKey{nil, keys(text("i"))},
			extra: [][]byte{{}, encoded(text("i"))},
		},
		{
			name: "bare image below a parent", parent: 9, keys: [][]kv.ExtraKey{keys(text("i")), nil},
			extra: [][]byte{encoded(text("i")), {}},
		},
	}
	for _, tc := range tests {
		blocks := []uint64{1, 2, 3}[:len(tc.keys)]
		ev := with(storeOf(tc.parent, blocks...), func(e *kv.Event) {
			e.Extra, e.HasExtra, e.LoRAName = tc.keys, true, tc.lora
		})
		stores, d := newTestNormaliser("").stored(&ev)
		if d != dropNone || len(stores) != 1 {
			t.Errorf("%s: got %v and %d stores", tc.name, d, len(stores))
			continue
		}
		seed := kv.ContentSeed(tc.lora, tc.salt)
		if got := stores[0].Namespace; got != testModel.Namespace(seed) {
			t.Errorf("%s: got another namespace than LoRA %q, salt %q", tc.name, tc.lora, tc.salt)
		}
		if !slices.EqualFunc(stores[0].Blocks.Extra, tc.extra, slices.Equal[[]byte]) {
			t.Errorf("%s: extra keys: got %q, want %q", tc.name, stores[0].Blocks.Extra, tc.extra)
		}
		for i, b := range blocks {
			var extra []byte
			if tc.extra != nil {
				extra = tc.extra[i]
			}
			if want := kv.HashBlock(seed, blockTokens(b), extra); stores[0].Contents[i] != want {
				t.Errorf("%s: block %d: got content %x, want %x", tc.name, i, stores[0].Contents[i], want)
			}
		}
	}
}

// An adapter is named, or numbered from 1; SGLang's salt is a field of its own,
// on every event.
func TestNormaliseNamespaces(t *testing.T) {
	tests := []struct {
		name   string
		engine string
		edit   func(*kv.Event)
		lora   string
		salt   string
		stated bool
	}{
		{"bare", "", func(*kv.Event) {}, "", "", false},
		{"name", "", func(e *kv.Event) { e.LoRAName = "x" }, "x", "", false},
		{"name and number", "", func(e *kv.Event) { e.LoRAName, e.LoRAID, e.HasLoRAID = "x", 3, true }, "x", "", false},
		{"number", "", func(e *kv.Event) { e.LoRAID, e.HasLoRAID = 3, true }, "lora-id:3", "", false},
		{"number 0", "", func(e *kv.Event) { e.HasLoRAID = true }, "", "", false},
		{"salt field", "", func(e *kv.Event) { e.Salt, e.HasSalt = "s", true }, "", "s", true},
		{"empty salt field", "", func(e *kv.Event) { e.HasSalt = true }, "", "", true},
		{"sglang", "sglang", func(*kv.Event) {}, "", "", true},
		{"salt field below a parent", "sglang", func(e *kv.Event) { e.Parent, e.HasParent, e.Salt, e.HasSalt = 9, true, "s", true }, "", "s", true},
	}
	for _, tc := range tests {
		ev := with(storeOf(0, 1), tc.edit)
		stores, d := newTestNormaliser(tc.engine).stored(&ev)
		if d != dropNone {
			t.Errorf("%s: got %v", tc.name, d)
			continue
		}
		if st := stores[0]; st.Namespace != testModel.Namespace(kv.ContentSeed(tc.lora, tc.salt)) || st.Stated != tc.stated {
			t.Errorf("%s: got stated %v, or another namespace; want LoRA %q, salt %q, stated %v", tc.name, st.Stated, tc.lora, tc.salt, tc.stated)
		}
	}
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

// The memory of keyed blocks is bounded.
func TestKeyedBounded(t *testing.T) {
	n := newTestNormaliser("")
	for h := range uint64(5 * keyedGeneration) {
		ev := with(storeOf(0, 1), func(e *kv.Event) {
			e.Hashes[0] = kv.EngineHash(h)
			e.Extra, e.HasExtra = [][]kv.ExtraKey{keys(text("s"))}, true
		})
		n.stored(&ev)
	}
	if got := len(n.keyed) + len(n.keyedBefore); got > 2*keyedGeneration {
		t.Errorf("got %d hashes kept, want at most %d", got, 2*keyedGeneration)
	}
	if !n.isKeyed(5*keyedGeneration-1) || n.isKeyed(0) {
		t.Error("got the newest forgotten or the oldest kept")
	}
}

// Bigram pages count by each pair's first token; lookahead tokens do not count,
// and are told.
func TestBigramAndLookahead(t *testing.T) {
	f := newFeedTest(t, false, nil)
	ev := with(storeOf(0, 1), func(e *kv.Event) {
		e.Second = append(slices.Clone(e.Tokens[1:]), 99)
		e.Lookahead = [][]uint32{{5, 6, 7}}
	})
	stores, d := f.norm.stored(&ev)
	if d != dropNone || stores[0].Contents[0] != kv.HashBlock(kv.HashSeed, blockTokens(1), nil) {
		t.Errorf("got %v, or a content of more than the first tokens", d)
	}
	if got := f.Status().Lookahead; got != 3 {
		t.Errorf("lookahead: got %d, want 3", got)
	}
}
