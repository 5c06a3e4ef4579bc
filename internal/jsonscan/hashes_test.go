// SPDX-License-Identifier: Apache-2.0

package jsonscan

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"kindex/internal/kv"
)

// TestHashes reads hashes of either sign and refuses what is none.
func TestHashes(t *testing.T) {
	f := func(array string, want []kv.ContentHash, refused bool) {
		t.Helper()
		var s Scanner
		s.Reset([]byte(array))
		got, err := AppendHashes[kv.ContentHash](&s, "block_hashes", nil)
		if (err != nil) != refused || !refused && !slices.Equal(got, want) {
			t.Errorf("%s: got %v, %v, want %v, refused %v", array, got, err, want, refused)
		}
	}
	f(`[1,-1]`, []kv.ContentHash{1, 1<<64 - 1}, false)
	f(`[18446744073709551615,-9223372036854775808]`, []kv.ContentHash{1<<64 - 1, 1 << 63}, false)
	f(`[-583561804111958748]`, []kv.ContentHash{17863182269597592868}, false)
	f(`[18446744073709551616]`, nil, true)
	f(`[-9223372036854775809]`, nil, true)
	f(`[1.0]`, nil, true)
	f(`["1"]`, nil, true)
}

// TestPlainHashes: what is read eight digits at a time is what is read digit by digit,
// whatever stands around it and wherever the text ends.
func TestPlainHashes(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	const marks = ",,,]-0 .e:/x"
	read := func(text []byte) (got []uint64, at int) {
		s := Scanner{b: text}
		return plainHashes[uint64](&s, nil), s.i
	}
	for range 200_000 {
		var text []byte
		for range 1 + rng.IntN(3) {
			if rng.IntN(3) == 0 {
				text = append(text, '-')
			}
			for range rng.IntN(22) {
				text = append(text, '0'+byte(rng.IntN(10)))
			}
			text = append(text, marks[rng.IntN(len(marks))])
		}
		got, at := read(text)
		// One number after the other by the general rule, and its end.
		var want []uint64
		s := Scanner{b: text}
		end := 0
		for s.i < len(text) && (text[s.i] == '-' || '0' <= text[s.i] && text[s.i] <= '9') {
			from := s.i
			v, ok, err := s.Integer(1<<63, math.MaxUint64)
			digits := s.i - from
			if text[from] == '-' {
				digits--
			}
			if err != nil || !ok || digits > 19 || s.i == len(text) || text[s.i] != ',' && text[s.i] != ']' {
				break
			}
			want, end = append(want, v), s.i
			if text[s.i] == ']' {
				break
			}
			if s.i++; s.i < len(text) && text[s.i] == ' ' {
				s.i++
			}
		}
		if !slices.Equal(got, want) || at != end {
			t.Fatalf("%q: got %d up to %d, want %d up to %d", text, got, at, want, end)
		}
	}
}

func BenchmarkHashesBody(b *testing.B) {
	rng := rand.New(rand.NewPCG(5, 6))
	var body []byte
	for range 64 {
		body = fmt.Appendf(body, ",%d", int64(rng.Uint64()))
	}
	body[0] = '['
	body = append(body, ']')
	var dst []uint64
	for b.Loop() {
		var s Scanner
		s.Reset(body)
		var err error
		if dst, err = AppendHashes(&s, "block_hashes", dst[:0]); err != nil || len(dst) != 64 {
			b.Fatal(len(dst), err)
		}
	}
}
