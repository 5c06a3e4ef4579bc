// SPDX-License-Identifier: Apache-2.0

package verify

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"

	"github.com/zeebo/xxh3"

	"kindex/harness/record"
	"kindex/internal/kv"
	"kindex/relay/wire"
)

// hasher computes vLLM's own hashes of a request's blocks (releases since 0.31):
// each is the digest of (hash above, tokens, extra keys), as Python's pickle or
// canonical CBOR writes that tuple. A model of window groups alone is the one
// place where the wire ties no tokens to hashes.
type hasher struct {
	none []byte
	sum  func([]byte) []byte
	cbor bool
}

// newHasher returns the hasher that a recording's header describes, or nil where
// it does not say enough.
func newHasher(h *record.Header) *hasher {
	none, err := hex.DecodeString(h.NoneHash)
	if err != nil || len(none) == 0 {
		return nil
	}
	out := &hasher{none: none}
	switch h.HashAlgo {
	case "sha256", "sha256_cbor":
		out.sum = func(b []byte) []byte { s := sha256.Sum256(b); return s[:] }
	case "xxhash", "xxhash_cbor":
		out.sum = func(b []byte) []byte { s := xxh3.Hash128(b).Bytes(); return s[:] }
	default:
		return nil
	}
	out.cbor = len(h.HashAlgo) > 5 && h.HashAlgo[len(h.HashAlgo)-5:] == "_cbor"
	return out
}

// tag is one extra key as it is hashed: a word, and what it says.
type tag struct {
	word   string
	text   []string
	offset int64 // of an item
	item   bool
}

// hashes returns the engine hashes of r's whole blocks over tokens.
func (h *hasher) hashes(r *request, tokens []uint32, size int) []kv.EngineHash {
	var out []kv.EngineHash
	for _, d := range h.digests(r, tokens, size) {
		out = append(out, wire.Fold(d))
	}
	return out
}

func (h *hasher) digests(r *request, tokens []uint32, size int) [][]byte {
	var out [][]byte
	above := h.none
	for i := range len(tokens) / size {
		var tags []tag
		if r.req.LoRA != nil {
			tags = append(tags, tag{word: "lora", text: []string{r.req.LoRA.Name, r.req.LoRA.Path}})
		}
		for _, k := range r.keys(i*size, size) {
			tags = append(tags, tag{word: "mm", text: []string{k.ID}, offset: k.Offset, item: true})
		}
		if i == 0 && r.req.Salt != "" {
			tags = append(tags, tag{word: "cache_salt", text: []string{r.req.Salt}})
		}
		above = h.sum(h.serialize(above, tokens[i*size:(i+1)*size], tags))
		out = append(out, above)
	}
	return out
}

func (h *hasher) serialize(above []byte, tokens []uint32, tags []tag) []byte {
	if h.cbor {
		return cborBlock(above, tokens, tags)
	}
	return pickleBlock(above, tokens, tags)
}

// cborBlock writes the tuple as canonical CBOR: definite lengths, shortest ints.
func cborBlock(above []byte, tokens []uint32, tags []tag) []byte {
	b := cborHead(nil, 4, 3)
	b = append(cborHead(b, 2, uint64(len(above))), above...)
	b = cborHead(b, 4, uint64(len(tokens)))
	for _, t := range tokens {
		b = cborHead(b, 0, uint64(t))
	}
	if len(tags) == 0 {
		return append(b, 0xf6)
	}
	b = cborHead(b, 4, uint64(len(tags)))
	for _, t := range tags {
		n := 1 + len(t.text)
		if t.item {
			n++
		}
		b = cborHead(b, 4, uint64(n))
		for _, s := range append([]string{t.word}, t.text...) {
			b = append(cborHead(b, 3, uint64(len(s))), s...)
		}
		switch {
		case t.item && t.offset < 0:
			b = cborHead(b, 1, uint64(-1-t.offset))
		case t.item:
			b = cborHead(b, 0, uint64(t.offset))
		}
	}
	return b
}

func cborHead(b []byte, major byte, n uint64) []byte {
	m := major << 5
	switch {
	case n < 24:
		return append(b, m|byte(n))
	case n < 1<<8:
		return append(b, m|24, byte(n))
	case n < 1<<16:
		return binary.BigEndian.AppendUint16(append(b, m|25), uint16(n))
	case n < 1<<32:
		return binary.BigEndian.AppendUint32(append(b, m|26), uint32(n))
	}
	return binary.BigEndian.AppendUint64(append(b, m|27), n)
}

// pickler writes Python's pickle protocol 5 for these shapes. Every string,
// bytes and tuple takes the next memo slot; a tag's word is one object wherever
// it stands, so that its second use is a reference to the slot of its first.
type pickler struct {
	b    []byte
	memo int
	word map[string]int
}

func pickleBlock(above []byte, tokens []uint32, tags []tag) []byte {
	p := pickler{word: map[string]int{}}
	p.b = append(p.b, 'C', byte(len(above)))
	p.b = append(p.b, above...)
	p.memoize()
	p.tuple(len(tokens), func(i int) { p.int(int64(tokens[i])) })
	if len(tags) == 0 {
		p.b = append(p.b, 'N')
	} else {
		p.tuple(len(tags), func(i int) { p.tag(tags[i]) })
	}
	p.b = append(p.b, 0x87)
	p.memoize()
	p.b = append(p.b, '.')
	out := binary.LittleEndian.AppendUint64([]byte{0x80, 5, 0x95}, uint64(len(p.b)))
	return append(out, p.b...)
}

func (p *pickler) memoize() {
	p.b = append(p.b, 0x94)
	p.memo++
}

// tuple writes n items, which each writes itself.
func (p *pickler) tuple(n int, each func(i int)) {
	if n == 0 {
		p.b = append(p.b, ')')
		return
	}
	if n > 3 {
		p.b = append(p.b, '(')
	}
	for i := range n {
		each(i)
	}
	if n > 3 {
		p.b = append(p.b, 't')
	} else {
		p.b = append(p.b, byte(0x84+n))
	}
	p.memoize()
}

func (p *pickler) tag(t tag) {
	n := 1 + len(t.text)
	if t.item {
		n++
	}
	p.tuple(n, func(i int) {
		switch {
		case i == 0:
			if slot, ok := p.word[t.word]; ok {
				p.b = append(p.b, 'h', byte(slot))
				return
			}
			p.word[t.word] = p.memo
			p.str(t.word)
		case i <= len(t.text):
			p.str(t.text[i-1])
		default:
			p.int(t.offset)
		}
	})
}

func (p *pickler) str(s string) {
	if len(s) < 256 {
		p.b = append(p.b, 0x8c, byte(len(s)))
	} else {
		p.b = binary.LittleEndian.AppendUint32(append(p.b, 'X'), uint32(len(s)))
	}
	p.b = append(p.b, s...)
	p.memoize()
}

func (p *pickler) int(v int64) {
	switch {
	case v >= 0 && v < 1<<8:
		p.b = append(p.b, 'K', byte(v))
	case v >= 0 && v < 1<<16:
		p.b = binary.LittleEndian.AppendUint16(append(p.b, 'M'), uint16(v))
	case v >= -1<<31 && v < 1<<31:
		p.b = binary.LittleEndian.AppendUint32(append(p.b, 'J'), uint32(int32(v)))
	default: // as many bytes as the number and its sign need
		n := 5
		for n < 8 && (v>>(8*n-1) != 0 && v>>(8*n-1) != -1) {
			n++
		}
		p.b = append(p.b, 0x8a, byte(n))
		p.b = append(p.b, binary.LittleEndian.AppendUint64(nil, uint64(v))[:n]...)
	}
}
