// SPDX-License-Identifier: Apache-2.0

// Before: cache.go. After: nothing.

package engine

import (
	"crypto/sha256"
	"encoding/binary"

	"kindex/internal/kv"
)

// chain makes an engine's own hashes of the blocks of a prompt.
type chain interface {
	// next returns the name of a block below above, nil for the first of a prompt.
	next(above *digest, tokens []uint32, salt string) digest
	// fold returns the wire's integer for a name, as a bit pattern.
	fold(d digest) kv.EngineHash
	form() kv.HashForm
	// annotate adds to an event what its engine says beyond hashes and tokens.
	annotate(e *kv.Event, first bool, salt string)
}

// vllmChain is vLLM's sha256_cbor since 0.31: the digest of the canonical CBOR of
// (digest above or the seed's, tokens, extra keys).
type vllmChain struct{ root digest }

// vllmSeed is what vLLM hashes to root its chains where the environment names no
// seed.
const vllmSeed = "vllm-none-hash"

func newVLLMChain(seed string) *vllmChain {
	return &vllmChain{sha256.Sum256(append(cborHead(nil, 3, uint64(len(seed))), seed...))}
}

func (v *vllmChain) next(above *digest, tokens []uint32, salt string) digest {
	first := above == nil
	if first {
		above = &v.root
	}
	b := append(cborHead(cborHead(nil, 4, 3), 2, uint64(len(above))), above[:]...)
	b = cborHead(b, 4, uint64(len(tokens)))
	for _, t := range tokens {
		b = cborHead(b, 0, uint64(t))
	}
	if !first || salt == "" {
		return sha256.Sum256(append(b, 0xf6))
	}
	b = cborHead(cborHead(b, 4, 1), 4, 2)
	for _, text := range []string{"cache_salt", salt} {
		b = append(cborHead(b, 3, uint64(len(text))), text...)
	}
	return sha256.Sum256(b)
}

func (v *vllmChain) fold(d digest) kv.EngineHash {
	return kv.EngineHash(binary.BigEndian.Uint64(d[len(d)-8:]))
}

func (v *vllmChain) form() kv.HashForm { return kv.FormUnsigned }

// annotate names the one cache group, and puts the salt where vLLM does: an extra
// key of a prompt's first block.
func (v *vllmChain) annotate(e *kv.Event, first bool, salt string) {
	e.HasGroup = true
	if e.Kind != kv.KindStored {
		return
	}
	e.Spec, e.SpecName = kv.SpecFull, "full_attention"
	e.Extra, e.HasExtra = make([][]kv.ExtraKey, len(e.Hashes)), true
	if first && salt != "" {
		e.Extra[0] = []kv.ExtraKey{{Kind: kv.ExtraString, ID: salt}}
	}
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
	}
	return binary.BigEndian.AppendUint32(append(b, m|26), uint32(n))
}

// sglangChain is SGLang's: SHA-256 over the digest above and the tokens.
type sglangChain struct{}

func (sglangChain) next(above *digest, tokens []uint32, salt string) digest {
	var b []byte
	switch {
	case above != nil:
		b = append(b, above[:]...)
	case salt != "":
		root := sha256.Sum256([]byte("sglang-cache-salt-v1\x00" + salt))
		b = append(b, root[:]...)
	}
	for _, t := range tokens {
		b = binary.LittleEndian.AppendUint32(b, t)
	}
	return sha256.Sum256(b)
}

func (sglangChain) fold(d digest) kv.EngineHash {
	return kv.EngineHash(binary.BigEndian.Uint64(d[:]))
}

func (sglangChain) form() kv.HashForm { return kv.FormSigned }

func (sglangChain) annotate(e *kv.Event, _ bool, salt string) {
	if e.Kind == kv.KindStored {
		e.Salt, e.HasSalt = salt, salt != ""
	}
}
