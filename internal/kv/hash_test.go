// SPDX-License-Identifier: Apache-2.0

package kv

import (
	"encoding/binary"
	"math"
	"slices"
	"testing"

	"github.com/zeebo/xxh3"
)

func count(n int) []uint32 {
	out := make([]uint32, n)
	for i := range out {
		out[i] = uint32(i)
	}
	return out
}

// TestHashVectors compares with numbers that others compute: the first two are
// in the public tests of Dynamo's tokens library, the rest are of the reference
// XXH3 (Python's xxhash) under the rule that docs/protocol.md writes down.
func TestHashVectors(t *testing.T) {
	for _, c := range []struct {
		lora, salt string
		tokens     []uint32
		want       ContentHash
	}{
		{"", "", []uint32{1, 2, 3, 4}, 14643705804678351452},
		{"", "", []uint32{5, 6, 7, 8}, 16777012769546811212},
		{"", "", nil, 15128690059815094969},
		{"", "", count(16), 15310707395893867146},
		{"", "", slices.Repeat([]uint32{math.MaxUint32}, 64), 532118000064634773},
		{"adapter", "", []uint32{1, 2, 3, 4}, 5402321046179341001},
		{"", "tenant-a", []uint32{1, 2, 3, 4}, 5738685477468498325},
		{"adapter", "tenant-a", []uint32{1, 2, 3, 4}, 12499490791422058787},
		{"tenant-a", "adapter", count(16), 8974371564177210863},
		{"ü", "", count(16), 3060683511386774911},
	} {
		if got := HashBlock(ContentSeed(c.lora, c.salt), c.tokens, nil); got != c.want {
			t.Errorf("lora %q salt %q: %d tokens hash to %d, want %d", c.lora, c.salt, len(c.tokens), got, c.want)
		}
	}
}

func TestSeedVectors(t *testing.T) {
	for _, c := range []struct {
		lora, salt string
		want       uint64
	}{
		{"", "", 1337},
		{"adapter", "", 15921763708947778582},
		{"", "tenant-a", 1948188790972764086},
		{"adapter", "tenant-a", 17869952499920541331}, // wraps
		{"tenant-a", "adapter", 9987852897901619311},
	} {
		if got := ContentSeed(c.lora, c.salt); got != c.want {
			t.Errorf("seed of lora %q, salt %q is %d, want %d", c.lora, c.salt, got, c.want)
		}
	}
}

func TestExtraKeyVectors(t *testing.T) {
	item := func(id string, offset int64) ExtraKey { return ExtraKey{Kind: ExtraItem, ID: id, Offset: offset} }
	for _, c := range []struct {
		name string
		keys []ExtraKey
		want ContentHash
	}{
		{"none", nil, 14643705804678351452},
		{"an item begun before", []ExtraKey{item("img", -4)}, 1704154337281153339},
		{"an item", []ExtraKey{item("img", 0)}, 4231522098229451155},
		{"a bare identifier", []ExtraKey{{Kind: ExtraString, ID: "img"}}, 13791414050863096257},
		{"a digest", []ExtraKey{{Kind: ExtraBytes, ID: "\x01\xff"}}, 8126886888396495500},
		{"two items", []ExtraKey{item("img", -4), item("img2", 7)}, 16593023074371761614},
	} {
		var extra []byte
		for _, k := range c.keys {
			extra = AppendExtraKey(extra, k)
		}
		if got := HashBlock(HashSeed, []uint32{1, 2, 3, 4}, extra); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}

// TestExtraKeysDoNotRunTogether: lists of keys that differ are encoded
// differently, wherever one key ends and the next begins.
func TestExtraKeysDoNotRunTogether(t *testing.T) {
	s := func(id string) ExtraKey { return ExtraKey{Kind: ExtraString, ID: id} }
	lists := [][]ExtraKey{
		{},
		{s("")},
		{s(""), s("")},
		{s("ab")},
		{s("a"), s("b")},
		{s("b"), s("a")},
		{{Kind: ExtraBytes, ID: "ab"}},
		{{Kind: ExtraItem, ID: "ab"}},
		{{Kind: ExtraItem, ID: "ab", Offset: 1}},
		{{Kind: ExtraItem, ID: "ab", Offset: -1}},
		{{Kind: ExtraItem, ID: "a", Offset: 'b'}},
	}
	seen := map[string]int{}
	for i, keys := range lists {
		var b []byte
		for _, k := range keys {
			b = AppendExtraKey(b, k)
		}
		if j, ok := seen[string(b)]; ok {
			t.Errorf("lists %d and %d are encoded alike: %x", j, i, b)
		}
		seen[string(b)] = i
	}
}

func TestBlocks(t *testing.T) {
	extra := AppendExtraKey(nil, ExtraKey{Kind: ExtraItem, ID: "img", Offset: -4})
	b := Blocks{Tokens: []uint32{1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4}, BlockSize: 4, Extra: [][]byte{nil, nil, extra}}
	want := []ContentHash{9, 14643705804678351452, 16777012769546811212, 1704154337281153339}
	if got := b.AppendHashes([]ContentHash{9}, HashSeed); !slices.Equal(got, want) {
		t.Errorf("hashes are %d, want %d", got, want)
	}
	dst := make([]ContentHash, 0, 3)
	b.Extra = nil
	if n := testing.AllocsPerRun(10, func() { dst = b.AppendHashes(dst[:0], HashSeed) }); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
	for _, size := range []int{0, -1} {
		if n := (&Blocks{Tokens: b.Tokens, BlockSize: size}).Len(); n != 0 {
			t.Errorf("%d blocks of size %d, want 0", n, size)
		}
	}
}

// TestTokenBytes compares the bytes in place with those written one by one.
func TestTokenBytes(t *testing.T) {
	tokens := []uint32{0, 1, 0x01020304, math.MaxUint32}
	var want []byte
	for _, x := range tokens {
		want = binary.LittleEndian.AppendUint32(want, x)
	}
	defer func(was bool) { littleEndian = was }(littleEndian)
	for _, in := range []bool{littleEndian, false} {
		littleEndian = in
		if got := tokenBytes(tokens); !slices.Equal(got, want) {
			t.Errorf("in place %v: %x, want %x", in, got, want)
		}
		if got := tokenBytes(nil); len(got) != 0 {
			t.Errorf("in place %v: no tokens are %x", in, got)
		}
	}
}

func TestModelKeys(t *testing.T) {
	if got := MakeModelKey("", "m", "default"); got != 18190174403082313197 {
		t.Errorf("key of model m is %d, want 18190174403082313197", got)
	}
	seen := map[ModelKey][3]string{}
	for _, n := range [][3]string{
		{"", "m", "default"},
		{"t", "m", "default"},
		{"", "tm", "default"},
		{"", "m", ""},
		{"m", "", "default"},
		{"", "mdefault", ""},
		{"", "", ""},
	} {
		k := MakeModelKey(n[0], n[1], n[2])
		if other, ok := seen[k]; ok {
			t.Errorf("%q and %q have one key", n, other)
		}
		seen[k] = n
	}
	m := MakeModelKey("t", "m", "default")
	for _, seed := range []uint64{HashSeed, 0, math.MaxUint64, ContentSeed("adapter", "tenant-a")} {
		if got := m.Seed(m.Namespace(seed)); got != seed {
			t.Errorf("seed %d comes back as %d", seed, got)
		}
	}
	if m.Namespace(HashSeed) == MakeModelKey("", "m", "default").Namespace(HashSeed) {
		t.Error("two tenants share a namespace")
	}
}

func TestNames(t *testing.T) {
	for tier, want := range map[Tier]string{
		TierDevice: "device", TierHost: "host", TierDisk: "disk", TierRemote: "remote", TierUnknown: "unknown", 9: "tier(9)",
	} {
		if got := tier.String(); got != want {
			t.Errorf("tier %d is called %q, want %q", uint8(tier), got, want)
		}
	}
	for kind, want := range map[Kind]string{
		KindStored: "BlockStored", KindRemoved: "BlockRemoved", KindCleared: "AllBlocksCleared", 9: "unknown",
	} {
		if got := kind.String(); got != want {
			t.Errorf("kind %d is called %q, want %q", uint8(kind), got, want)
		}
	}
}

// FuzzHashBlock: hashing in place is hashing the little-endian bytes, and an
// extra key always makes another block.
func FuzzHashBlock(f *testing.F) {
	f.Add(uint64(HashSeed), []byte{1, 0, 0, 0, 2, 0, 0, 0}, "img", int64(-4))
	f.Fuzz(func(t *testing.T, seed uint64, raw []byte, id string, offset int64) {
		tokens := make([]uint32, len(raw)/4)
		for i := range tokens {
			tokens[i] = binary.LittleEndian.Uint32(raw[4*i:])
		}
		plain := HashBlock(seed, tokens, nil)
		if want := xxh3.HashSeed(raw[:4*len(tokens)], seed); uint64(plain) != want {
			t.Fatalf("%x under seed %d: %d, want %d", raw, seed, plain, want)
		}
		extra := AppendExtraKey(nil, ExtraKey{Kind: ExtraItem, ID: id, Offset: offset})
		if HashBlock(seed, tokens, extra) == plain {
			t.Fatalf("%x with item %q at %d hashes as without", raw, id, offset)
		}
	})
}

func BenchmarkHashBlock(b *testing.B) {
	tokens := count(16)
	for b.Loop() {
		HashBlock(HashSeed, tokens, nil)
	}
}

// TestValidExtraKeys: what is encoded is valid, and no proper part of it is, nor
// what is longer.
func TestValidExtraKeys(t *testing.T) {
	var all []byte
	ends := map[int]bool{0: true}
	for _, k := range []ExtraKey{
		{Kind: ExtraItem, ID: "img", Offset: -4}, {Kind: ExtraString, ID: ""}, {Kind: ExtraBytes, ID: "\x01\xff"}, {Kind: ExtraItem, ID: "", Offset: 1 << 40},
	} {
		all = AppendExtraKey(all, k)
		ends[len(all)] = true
	}
	for i := range len(all) + 1 {
		if got := ValidExtraKeys(all[:i]); got != ends[i] {
			t.Errorf("the first %d bytes of %x: %v, want %v", i, all, got, ends[i])
		}
	}
	for _, b := range [][]byte{{0, 0, 0, 0, 0}, {4, 0, 0, 0, 0}, {2, 255, 255, 255, 255, 0}, {1, 255, 255, 255, 255, 0}} {
		if ValidExtraKeys(b) {
			t.Errorf("%x is valid", b)
		}
	}
}
