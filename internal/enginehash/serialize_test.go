// SPDX-License-Identifier: Apache-2.0

package enginehash

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
)

// TestPickle compares lengths and SHA-256 of pickles with those that CPython's
// pickle.dumps(x, protocol=5) makes of the same tuples, at the edges of its forms.
func TestPickle(t *testing.T) {
	var above Digest
	for i := range above {
		above[i] = byte(i)
	}
	edges := []uint32{0, 255, 256, 65535, 65536, 1<<31 - 1, 1 << 31, math.MaxUint32}
	item := func(id string, offset int64) Key { return Key{Kind: KeyItem, Name: id, Offset: offset} }
	var offsets, many []Key
	for i, o := range []int64{-1, -256, -1 << 31, -1<<31 - 1, 1 << 31, 1 << 40, -1 << 40, 255, 0, 1 << 62} {
		offsets = append(offsets, item(fmt.Sprint("id", i), o))
	}
	for i := range 200 {
		many = append(many, item(fmt.Sprint("id", i), int64(i)))
	}
	many = append(many, item("same-id", 1), item("same-id", 2))
	same := []Key{item("same-id", 0), item("o", 3), item("same-id", 5)}
	salt := []Key{{Kind: KeySalt, Name: "s"}}
	sevens := slices.Repeat([]uint32{7}, 5)
	for _, c := range []struct {
		name   string
		b      Block
		length int
		want   string
	}{
		{"edges", Block{Tokens: edges}, 87, "887698f3de89c36ba963389214c75c11007925fbd9dfa749aee87b6924503fd8"},
		{"no tokens", Block{}, 51, "db2b72dac49b7beb72f1060b490ac820cb519db9d0f32f91d2660bb197596b00"},
		{"two tokens", Block{Tokens: []uint32{1, 2}}, 56, "78899e9670a29f3e6859a6c4b504d3ada8280b3f2a70e286efcbd9e6b1d510bc"},
		{"offsets", Block{Tokens: []uint32{1, 2, 3}, Keys: offsets}, 222, "695f5bf429c58ab2a69ae2985b351c975a9ed25f1230927e7e9e81d2dc665d6a"},
		{"one object", Block{Tokens: edges, Keys: same, Shared: true}, 125, "2d8af1aa8b4cb7a75349d3f9270a84ade51bdfcf1530d847f9f04166dae7b728"},
		{"equal objects", Block{Tokens: edges, Keys: same}, 133, "37aba9fd7ae151fbd283b76dc4343ddf5cb48ae33e5949fd509c174c13d999a1"},
		{"more than 256 slots", Block{Tokens: edges, Keys: many, Shared: true}, 2809, "4685fa263b5faa6b974887507911b969095c5d8842c222a002167bbe07ba111f"},
		{"long strings", Block{Tokens: sevens, Keys: []Key{
			{Kind: KeyLoRA, Name: strings.Repeat("n", 255), Path: strings.Repeat("p", 256)},
			{Kind: KeySalt, Name: strings.Repeat("s", 300)},
			{Kind: KeyEmbeds, Blob: make([]byte, 32)},
		}}, 967, "a02e799e2fc27e35c77650bf05e3281dc221d8bde0c0d1af2caa285863d5b117"},
		{"bare keys", Block{Tokens: sevens, Keys: []Key{
			{Kind: KeyBareText, Name: "adapter"},
			{Kind: KeyBareItem, Name: "img", Offset: -4},
			{Kind: KeyBareText, Name: "salt"},
			{Kind: KeyBareBytes, Blob: make([]byte, 300)},
		}}, 401, "04e5be8c3e770f611a94a2076efdeca9f930ccd26aa4e2f2aa190801bfda1e4e"},
		{"a number", Block{Tokens: sevens, Keys: []Key{{Kind: KeyBareNumber, Offset: 3}}}, 66, "4e8e84edf21a16cdff03138096289f23843dafc569d54ae5e5348993f0db8d5d"},
		{"lookahead", Block{Tokens: edges, Lookahead: []uint32{1, 2, 300}}, 97, "1f4d3ec50128f74b0ebb3bba0b71bc6a01acdc31ac8febefa0fed5d85a443e1c"},
		{"lookahead of one", Block{Tokens: edges, Keys: salt, Lookahead: []uint32{70000}}, 114, "dae7c9a80d8cfdf65b581642ae6e16366d340ae6c94949aeb5deb2ed95179833"},
		{"lookahead of two", Block{Tokens: edges, Keys: salt, Lookahead: []uint32{70000, 1}}, 116, "334f0c6ed912610c5dd57eaf50c9bb588e06a595389bbfc1bb2ab2a588cf8325"},
	} {
		for _, when := range []string{"first", "again"} { // nothing of one pickle stays for the next
			got := New(SHA256).Bytes(&above, &c.b)
			sum := sha256.Sum256(got)
			if len(got) != c.length || hex.EncodeToString(sum[:]) != c.want {
				t.Errorf("%s, %s: %d bytes, want %d: %x", c.name, when, len(got), c.length, got)
			}
		}
	}
	for _, c := range []struct{ seed, want string }{
		{strings.Repeat("é", 200), "19baf4eec3752328fe58320f2fe06edf44edb0cb8ea652d6af3e04984ce7e6d2"},
		{"", "3279c4b947f331d055c47442171c9ea17712596bd7fe094c31d4a5d432b42d68"},
	} {
		if d := SHA256.None(c.seed); hex.EncodeToString(d[:]) != c.want {
			t.Errorf("seed %.4q has the digest %x, want %s", c.seed, d, c.want)
		}
	}
}

// TestCBOR: the same edges in canonical CBOR, written out.
func TestCBOR(t *testing.T) {
	var above Digest
	for _, c := range []struct {
		name string
		b    Block
		want string // after the digest above
	}{
		{"edges", Block{Tokens: []uint32{0, 23, 24, 255, 256, 65535, 65536, math.MaxUint32}}, "88" + "00" + "17" + "1818" + "18ff" + "190100" + "19ffff" + "1a00010000" + "1affffffff" + "f6"},
		{"no tokens", Block{}, "80f6"},
		{"keys", Block{Keys: []Key{
			{Kind: KeyLoRA, Name: "a", Path: "/a"},
			{Kind: KeyItem, Name: "i", Offset: -1},
			{Kind: KeyItem, Name: "i", Offset: 1 << 32},
			{Kind: KeySalt, Name: "é"},
			{Kind: KeyEmbeds, Blob: []byte{1, 2}},
		}}, "80" + "85" + "83646c6f7261" + "6161" + "622f61" + "83626d6d" + "6169" + "20" + "83626d6d" + "6169" + "1b0000000100000000" + "826a63616368655f73616c74" + "62c3a9" + "826d70726f6d70745f656d62656473" + "420102"},
		{"bare keys", Block{Keys: []Key{
			{Kind: KeyBareText, Name: "a"},
			{Kind: KeyBareItem, Name: "i", Offset: -257},
			{Kind: KeyBareBytes, Blob: []byte{9}},
			{Kind: KeyBareNumber, Offset: 500},
		}}, "80" + "84" + "6161" + "82" + "6169" + "390100" + "4109" + "1901f4"},
		{"lookahead", Block{Tokens: []uint32{1}, Lookahead: []uint32{2, 3}}, "8101" + "83" + "f6" + "0203"},
	} {
		got := hex.EncodeToString(New(SHA256CBOR).Bytes(&above, &c.b))
		if want := "835820" + strings.Repeat("00", 32) + c.want; got != want {
			t.Errorf("%s is written as\n%s, want\n%s", c.name, got, want)
		}
	}
	if got := hex.EncodeToString(New(XXHashCBOR).Bytes(&above, &Block{})); got != "8350"+strings.Repeat("00", 16)+"80f6" {
		t.Errorf("a short digest is written as %s", got)
	}
}

func TestParse(t *testing.T) {
	if _, err := Parse("md5"); err == nil || !strings.Contains(err.Error(), `"md5": must be one of sha256, sha256_cbor, xxhash, xxhash_cbor, sglang`) {
		t.Errorf("md5: %v", err)
	}
}

func TestSumDoesNotAllocate(t *testing.T) {
	b := Block{Tokens: slices.Repeat([]uint32{70_000}, 16), Keys: []Key{{Kind: KeyItem, Name: "img", Offset: 3}}}
	var above Digest
	for a := range numAlgorithms {
		h := New(a)
		if n := testing.AllocsPerRun(10, func() { above = h.Sum(&above, &b) }); n != 0 {
			t.Errorf("%v: %v allocations, want 0", a, n)
		}
	}
}

func BenchmarkSum(b *testing.B) {
	block := Block{Tokens: slices.Repeat([]uint32{70_000}, 16)}
	var above Digest
	for a := range numAlgorithms {
		h := New(a)
		b.Run(a.String(), func(b *testing.B) {
			for b.Loop() {
				above = h.Sum(&above, &block)
			}
		})
	}
}
