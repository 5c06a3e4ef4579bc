// SPDX-License-Identifier: Apache-2.0

package enginehash

import "encoding/binary"

// The major types of CBOR that occur.
const (
	cborUint   = 0
	cborNegInt = 1
	cborBytes  = 2
	cborText   = 3
	cborArray  = 4
	cborNull   = 0xf6
)

// appendCBOR writes a block's tuple as canonical CBOR: definite lengths, shortest
// integers.
func appendCBOR(dst, above []byte, b *Block) []byte {
	dst = cborHead(dst, cborArray, 3)
	dst = append(cborHead(dst, cborBytes, uint64(len(above))), above...)
	dst = cborHead(dst, cborArray, uint64(len(b.Tokens)))
	for _, t := range b.Tokens {
		dst = cborHead(dst, cborUint, uint64(t))
	}
	if b.Lookahead != nil {
		dst = cborHead(dst, cborArray, uint64(1+len(b.Lookahead)))
	}
	if len(b.Keys) == 0 {
		dst = append(dst, cborNull)
	} else {
		dst = cborHead(dst, cborArray, uint64(len(b.Keys)))
		for i := range b.Keys {
			dst = cborKey(dst, &b.Keys[i])
		}
	}
	for _, t := range b.Lookahead {
		dst = cborHead(dst, cborUint, uint64(t))
	}
	return dst
}

func cborKey(dst []byte, k *Key) []byte {
	switch k.Kind {
	case KeyLoRA:
		return cborString(cborString(cborString(cborHead(dst, cborArray, 3), k.word()), k.Name), k.Path)
	case KeyItem:
		return cborInt(cborString(cborString(cborHead(dst, cborArray, 3), k.word()), k.Name), k.Offset)
	case KeySalt:
		return cborString(cborString(cborHead(dst, cborArray, 2), k.word()), k.Name)
	case KeyEmbeds:
		dst = cborString(cborHead(dst, cborArray, 2), k.word())
		return append(cborHead(dst, cborBytes, uint64(len(k.Blob))), k.Blob...)
	case KeyBareText:
		return cborString(dst, k.Name)
	case KeyBareItem:
		return cborInt(cborString(cborHead(dst, cborArray, 2), k.Name), k.Offset)
	case KeyBareBytes:
		return append(cborHead(dst, cborBytes, uint64(len(k.Blob))), k.Blob...)
	case KeyBareNumber:
		return cborInt(dst, k.Offset)
	}
	panic("BUG: enginehash: a key of no kind")
}

func cborString(dst []byte, s string) []byte {
	return append(cborHead(dst, cborText, uint64(len(s))), s...)
}

func cborInt(dst []byte, v int64) []byte {
	if v < 0 {
		return cborHead(dst, cborNegInt, uint64(-1-v))
	}
	return cborHead(dst, cborUint, uint64(v))
}

func cborHead(dst []byte, major byte, n uint64) []byte {
	m := major << 5
	switch {
	case n < 24:
		return append(dst, m|byte(n))
	case n < 1<<8:
		return append(dst, m|24, byte(n))
	case n < 1<<16:
		return binary.BigEndian.AppendUint16(append(dst, m|25), uint16(n))
	case n < 1<<32:
		return binary.BigEndian.AppendUint32(append(dst, m|26), uint32(n))
	}
	return binary.BigEndian.AppendUint64(append(dst, m|27), n)
}
