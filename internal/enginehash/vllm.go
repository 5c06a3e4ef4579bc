// SPDX-License-Identifier: Apache-2.0

package enginehash

// KeyKind is the shape of one extra key in the tuple that is hashed.
type KeyKind uint8

// The shapes. Since vLLM 0.31 a key is a tuple that begins with a word. From 0.20
// to 0.30 it is what the wire shows; before 0.20 an item is its bare identifier,
// and before 0.12 an adapter is its number.
const (
	KeyLoRA   KeyKind = iota // ("lora", Name, Path), on every block
	KeyItem                  // ("mm", Name, Offset): a multimodal item that overlaps the block
	KeySalt                  // ("cache_salt", Name), on the first block
	KeyEmbeds                // ("prompt_embeds", Blob): the digest of the block's embeddings

	KeyBareText   // Name: an adapter, a salt, an item without an offset
	KeyBareItem   // (Name, Offset)
	KeyBareBytes  // Blob
	KeyBareNumber // Offset: an adapter's number
)

// Key is one extra key.
type Key struct {
	Kind   KeyKind
	Name   string
	Path   string // KeyLoRA
	Blob   []byte
	Offset int64 // KeyItem, KeyBareItem: item start minus block start, in tokens; KeyBareNumber: the number
}

// Block is what goes into one block's hash besides the digest above.
type Block struct {
	Tokens []uint32
	Second []uint32 // SGLang's bigram pages: the second token of each pair; else nil
	Keys   []Key    // vLLM
	// Lookahead are tokens after the block that its hash covers too (vLLM 0.33 with
	// speculative decoding); nil: none, and the tuple is another one.
	Lookahead []uint32
	// Shared says that equal identifiers of two items are one object; see the
	// package's comment.
	Shared bool
}

// Hasher computes digests by one algorithm.
//
// Concurrency: one goroutine. It allocates nothing once its buffer has grown.
type Hasher struct {
	alg Algorithm
	p   pickler
	buf []byte
}

// New returns a hasher.
func New(a Algorithm) *Hasher { return &Hasher{alg: a} }

// Algorithm returns what the hasher computes.
func (h *Hasher) Algorithm() Algorithm { return h.alg }

// Sum returns the digest of b below above. A nil above means that there is none:
// SGLang's first pages without a salt.
//
// Cost: about half a microsecond for a block of 16 tokens.
func (h *Hasher) Sum(above *Digest, b *Block) Digest { return h.alg.sum(h.Bytes(above, b)) }

// Bytes returns what Sum digests. It is valid until the next call.
func (h *Hasher) Bytes(above *Digest, b *Block) []byte {
	switch {
	case h.alg == SGLang:
		h.buf = appendPage(h.buf[:0], above, b)
		return h.buf
	case h.alg.Pickles():
		return h.p.block(above[:h.alg.Size()], b)
	}
	h.buf = appendCBOR(h.buf[:0], above[:h.alg.Size()], b)
	return h.buf
}

// word returns the word that a key's tuple begins with, or "".
func (k *Key) word() string {
	switch k.Kind {
	case KeyLoRA:
		return "lora"
	case KeyItem:
		return "mm"
	case KeySalt:
		return "cache_salt"
	case KeyEmbeds:
		return "prompt_embeds"
	case KeyBareText, KeyBareItem, KeyBareBytes, KeyBareNumber:
	}
	return ""
}
