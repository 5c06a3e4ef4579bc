// SPDX-License-Identifier: Apache-2.0

package normal

import (
	"slices"
	"testing"

	"kindex/internal/kv"
)

const testBlock = 16

func newTest(engine string) *Normaliser {
	return New(Config{BlockSize: testBlock, Stated: engine == "sglang"})
}

// one returns what a batch of ev alone does, and why it does nothing.
func one(n *Normaliser, ev kv.Event) ([]Op, Reason) {
	before := n.drops
	ops := n.Batch(&kv.Batch{Events: []kv.Event{ev}})
	for _, r := range Reasons {
		if n.drops[r] != before[r] {
			return ops, r
		}
	}
	return ops, none
}

// blockTokens are the tokens of the block that tests call n.
func blockTokens(n uint64) []uint32 {
	t := make([]uint32, testBlock)
	for i := range t {
		t[i] = uint32(n)*testBlock + uint32(i) + 1
	}
	return t
}

// storeOf announces device copies of blocks called by their engine hashes. parent
// 0 is none.
func storeOf(parent uint64, blocks ...uint64) kv.Event {
	ev := kv.Event{Kind: kv.KindStored, BlockSize: testBlock, Spec: kv.SpecFull, HasGroup: true}
	if parent != 0 {
		ev.Parent, ev.HasParent = kv.EngineHash(parent), true
	}
	for _, b := range blocks {
		ev.Hashes = append(ev.Hashes, kv.EngineHash(b))
		ev.Tokens = append(ev.Tokens, blockTokens(b)...)
	}
	return ev
}

// removeOf takes away one device copy each.
func removeOf(blocks ...uint64) kv.Event {
	ev := kv.Event{Kind: kv.KindRemoved, HasGroup: true}
	for _, b := range blocks {
		ev.Hashes = append(ev.Hashes, kv.EngineHash(b))
	}
	return ev
}

func with(ev kv.Event, edit func(*kv.Event)) kv.Event {
	edit(&ev)
	return ev
}

// What must not count is dropped, each for its reason.
func TestDrops(t *testing.T) {
	tests := []struct {
		name string
		ev   kv.Event
		want Reason
	}{
		{"plain", storeOf(0, 1), none},
		{"no group, no kind", with(storeOf(0, 1), func(e *kv.Event) { e.HasGroup, e.Spec = false, kv.SpecUnstated }), none},
		{"window group", with(storeOf(0, 1), func(e *kv.Event) { e.Spec = kv.SpecWindow }), NonMainGroup},
		{"window without a kind", with(storeOf(0, 1), func(e *kv.Event) { e.Spec, e.HasWindow, e.Window = kv.SpecUnstated, true, 64 }), NonMainGroup},
		{"another kind", with(storeOf(0, 1), func(e *kv.Event) { e.Spec = kv.SpecOther }), NonMainGroup},
		{"group out of range", with(storeOf(0, 1), func(e *kv.Event) { e.Group = 256 }), GroupRange},
		{"negative group", with(storeOf(0, 1), func(e *kv.Event) { e.Group = -1 }), GroupRange},
		{"remote locality", with(storeOf(0, 1), func(e *kv.Event) { e.Tier, e.Locality = kv.TierDisk, kv.LocalityRemote }), RemoteLocality},
		{"local storage", with(storeOf(0, 1), func(e *kv.Event) { e.Tier, e.Locality = kv.TierDisk, kv.LocalityLocal }), none},
		{"another's copy", with(storeOf(0, 1), func(e *kv.Event) { e.Tier, e.Ownership = kv.TierHost, "kvcr" }), Ownership},
		{"an owner of this host", with(storeOf(0, 1), func(e *kv.Event) { e.Tier, e.Ownership = kv.TierHost, "offload" }), none},
		{"shared tier", with(storeOf(0, 1), func(e *kv.Event) { e.Tier = kv.TierRemote }), RemoteTier},
		{"unknown medium", with(storeOf(0, 1), func(e *kv.Event) { e.Tier = kv.TierUnknown }), UnknownMedium},
		{"no hashes", with(storeOf(0, 1), func(e *kv.Event) { e.Hashes = nil }), NoHashes},
		{"fewer hashes than tokens", with(storeOf(0, 1, 2), func(e *kv.Event) { e.Hashes = e.Hashes[:1] }), Misaligned},
		{"a block cut short", with(storeOf(0, 1, 2), func(e *kv.Event) { e.Tokens = e.Tokens[:31] }), Misaligned},
		{"tokens, but block size 0", with(storeOf(0, 1), func(e *kv.Event) { e.BlockSize = 0 }), Misaligned},
		{"another block size", with(storeOf(0, 1), func(e *kv.Event) { e.BlockSize = 32 }), BlockSize},
		{"placeholder", kv.Event{Hashes: []kv.EngineHash{1}, Tier: kv.TierHost}, none},
		{"window placeholder of another size", with(storeOf(0, 1), func(e *kv.Event) { e.Spec, e.BlockSize = kv.SpecOther, 4 }), NonMainGroup},
	}
	for _, tc := range tests {
		ops, got := one(newTest(""), tc.ev)
		if got != tc.want || (got == none) != (len(ops) == 1 && ops[0].Kind == Store) {
			t.Errorf("%s: got %v and %d operations, want %v", tc.name, got, len(ops), tc.want)
		}
	}
}

// Removals carry a bare group number: its kind is known from the stores.
func TestGroupKinds(t *testing.T) {
	n := newTest("")
	group := func(ev kv.Event, g int, spec kv.SpecKind) kv.Event {
		ev.Group, ev.HasGroup, ev.Spec = g, true, spec
		return ev
	}
	var rm Op
	remove := func(g int) Reason {
		ops, r := one(n, group(removeOf(1), g, kv.SpecUnstated))
		if r == none {
			rm = ops[0]
		}
		return r
	}
	if got := remove(1); got != none || rm.Group != 1 {
		t.Errorf("removal of a group not heard of: got %v of group %d, want none of 1", got, rm.Group)
	}
	for g, spec := range []kv.SpecKind{kv.SpecFull, kv.SpecWindow, kv.SpecFull} {
		one(n, group(storeOf(0, 1), g, spec))
	}
	for g, want := range []Reason{none, NonMainGroup, none} {
		if got := remove(g); got != want {
			t.Errorf("removal of group %d: got %v, want %v", g, got, want)
		}
		ops, got := one(n, group(storeOf(0, 1), g, kv.SpecUnstated))
		if got != want || got == none && ops[0].Group != uint8(g) {
			t.Errorf("store of group %d without a kind: got %v, want %v and its group", g, got, want)
		}
	}
}

// Where group 0 is a window group, an event that names no group still counts.
func TestNoGroup(t *testing.T) {
	n := newTest("")
	one(n, with(storeOf(0, 1), func(e *kv.Event) { e.Spec = kv.SpecWindow }))
	bare := kv.Event{Hashes: []kv.EngineHash{1}, Tier: kv.TierHost}
	if _, r := one(n, bare); r != none {
		t.Errorf("store: got %v, want none", r)
	}
	bare.Kind = kv.KindRemoved
	if _, r := one(n, bare); r != none {
		t.Errorf("removal: got %v, want none", r)
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
func TestExtraKeys(t *testing.T) {
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
		stores, r := one(newTest(""), ev)
		if r != none || len(stores) != 1 {
			t.Errorf("%s: got %v and %d stores", tc.name, r, len(stores))
			continue
		}
		seed := kv.ContentSeed(tc.lora, tc.salt)
		if got := stores[0]; got.Seed != seed || got.LoRA != tc.lora || got.Salt != tc.salt {
			t.Errorf("%s: got LoRA %q, salt %q, seed %x; want LoRA %q, salt %q, their seed", tc.name, got.LoRA, got.Salt, got.Seed, tc.lora, tc.salt)
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
func TestNamespaces(t *testing.T) {
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
		stores, r := one(newTest(tc.engine), ev)
		if r != none {
			t.Errorf("%s: got %v", tc.name, r)
			continue
		}
		if st := stores[0]; st.Seed != kv.ContentSeed(tc.lora, tc.salt) || st.LoRA != tc.lora || st.Salt != tc.salt || st.Stated != tc.stated {
			t.Errorf("%s: got LoRA %q, salt %q, stated %v; want LoRA %q, salt %q, stated %v", tc.name, st.LoRA, st.Salt, st.Stated, tc.lora, tc.salt, tc.stated)
		}
	}
}

// The memory of keyed blocks is bounded.
func TestKeyedBounded(t *testing.T) {
	n := newTest("")
	for h := range uint64(5 * keyedGeneration) {
		ev := with(storeOf(0, 1), func(e *kv.Event) {
			e.Hashes[0] = kv.EngineHash(h)
			e.Extra, e.HasExtra = [][]kv.ExtraKey{keys(text("s"))}, true
		})
		one(n, ev)
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
	n := newTest("")
	ev := with(storeOf(0, 1), func(e *kv.Event) {
		e.Second = append(slices.Clone(e.Tokens[1:]), 99)
		e.Lookahead = [][]uint32{{5, 6, 7}}
	})
	stores, r := one(n, ev)
	if r != none || stores[0].Contents[0] != kv.HashBlock(kv.HashSeed, blockTokens(1), nil) {
		t.Errorf("got %v, or a content of more than the first tokens", r)
	}
	if got := n.Lookahead(); got != 3 {
		t.Errorf("lookahead: got %d, want 3", got)
	}
}

// An unknown block size is that of the first whole blocks of a main group in each
// life; what comes in another size is dropped, counted and told in its place.
func TestLearnedBlockSize(t *testing.T) {
	sized := func(size, blocks int, edit func(*kv.Event)) kv.Event {
		ev := kv.Event{Kind: kv.KindStored, BlockSize: size, Spec: kv.SpecFull, HasGroup: true}
		for b := range blocks {
			ev.Hashes = append(ev.Hashes, kv.EngineHash(100+b))
			for i := range size {
				ev.Tokens = append(ev.Tokens, uint32(b*size+i))
			}
		}
		if edit != nil {
			edit(&ev)
		}
		return ev
	}
	n := New(Config{})
	for _, tc := range []struct {
		name string
		ev   kv.Event
		want Reason
		size int
	}{
		{"of a window group", sized(8, 1, func(e *kv.Event) { e.Spec = kv.SpecWindow; e.Group = 1 }), NonMainGroup, 0},
		{"placeholder", kv.Event{Hashes: []kv.EngineHash{1}, Tier: kv.TierHost}, none, 0},
		{"no size", sized(4, 1, func(e *kv.Event) { e.BlockSize = 0 }), Misaligned, 0},
		{"cut short", sized(8, 2, func(e *kv.Event) { e.Tokens = e.Tokens[:15] }), Misaligned, 0},
		{"the first whole", sized(32, 2, nil), none, 32},
		{"another", sized(64, 1, nil), BlockSize, 32},
		{"the same", sized(32, 1, nil), none, 32},
	} {
		if _, got := one(n, tc.ev); got != tc.want || n.BlockSize() != tc.size {
			t.Errorf("%s: got %v, block size %d; want %v, %d", tc.name, got, n.BlockSize(), tc.want, tc.size)
		}
	}

	ops := n.Batch(&kv.Batch{Events: []kv.Event{sized(32, 1, nil), sized(16, 1, nil), {Kind: kv.KindCleared}, removeOf(100)}})
	var kinds []Kind
	for i, op := range ops {
		kinds = append(kinds, op.Kind)
		if op.Event != i {
			t.Errorf("operation %d is of event %d, want %d", i, op.Event, i)
		}
	}
	if want := []Kind{Store, Mismatch, Clear, Remove}; !slices.Equal(kinds, want) || ops[1].Size != 16 {
		t.Errorf("got operations %v, size %d; want %v, 16", kinds, ops[1].Size, want)
	}

	n.Restart()
	if _, got := one(n, sized(16, 1, nil)); got != none || n.BlockSize() != 16 {
		t.Errorf("another life: got %v, block size %d; want none, 16", got, n.BlockSize())
	}
	given := New(Config{BlockSize: 16})
	given.Restart()
	if _, got := one(given, sized(32, 1, nil)); got != BlockSize || given.BlockSize() != 16 {
		t.Errorf("a given size: got %v, block size %d; want block_size, 16", got, given.BlockSize())
	}
}

// Every reason is listed once and has a label of its own.
func TestReasons(t *testing.T) {
	labels := map[string]bool{}
	for _, r := range Reasons {
		labels[r.String()] = true
	}
	if len(labels) != int(numReasons)-1 || labels["none"] || labels[""] {
		t.Errorf("got the labels %v, want %d", labels, numReasons-1)
	}
}

// A batch whose buffers have grown costs no memory.
func TestBatchAllocs(t *testing.T) {
	n := newTest("")
	b := kv.Batch{Events: []kv.Event{removeOf(1, 2), storeOf(0, 1, 2, 3), storeOf(3, 4)}}
	n.Batch(&b)
	if got := testing.AllocsPerRun(100, func() { n.Batch(&b) }); got != 0 {
		t.Errorf("%v allocations a batch, want 0", got)
	}
}

// BenchmarkBatch is one store of 8 blocks of 16 tokens.
func BenchmarkBatch(b *testing.B) {
	n := newTest("")
	batch := kv.Batch{Events: []kv.Event{storeOf(0, 1, 2, 3, 4, 5, 6, 7, 8)}}
	b.ReportAllocs()
	for b.Loop() {
		n.Batch(&batch)
	}
}
