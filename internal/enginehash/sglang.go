// SPDX-License-Identifier: Apache-2.0

package enginehash

import (
	"crypto/sha256"
	"encoding/binary"

	"kindex/internal/kv"
)

// The words that separate SGLang's namespaces, since 0.5.19 and 0.5.22.
const (
	saltWord      = "sglang-cache-salt-v1\x00"
	namespaceWord = "sglang-kv-event-namespace-v1"
)

// appendPage writes what SGLang digests for one page.
func appendPage(dst []byte, above *Digest, b *Block) []byte {
	if above != nil {
		dst = append(dst, above[:]...)
	}
	if b.Second == nil {
		for _, t := range b.Tokens {
			dst = binary.LittleEndian.AppendUint32(dst, t)
		}
		return dst
	}
	for i, t := range b.Tokens {
		dst = binary.LittleEndian.AppendUint32(dst, t)
		dst = binary.LittleEndian.AppendUint32(dst, b.Second[i])
	}
	return dst
}

// SaltRoot returns the digest above the first pages of a salted chain. An empty
// salt is none: the result is nil.
func SaltRoot(salt string) *Digest {
	if salt == "" {
		return nil
	}
	d := Digest(sha256.Sum256(append([]byte(saltWord), salt...)))
	return &d
}

// Namespace is how SGLang (0.5.22 and later) hides a chain of a namespace of its
// own: each hash is hashed again before it is published.
//
// An adapter's chains are hidden under the request's extra key, which ends in the
// adapter's id and is not on the wire. With the configuration's "format": "dynamo"
// every chain with an extra key or a salt is hidden, under both.
type Namespace Digest

// MakeNamespace returns the namespace of an extra key and a salt; nil is none,
// which is not "".
func MakeNamespace(extraKey, salt *string) Namespace {
	b := []byte(namespaceWord)
	for _, s := range []*string{extraKey, salt} {
		if s == nil {
			b = append(b, 0)
			continue
		}
		b = binary.LittleEndian.AppendUint64(append(b, 1), uint64(len(*s)))
		b = append(b, *s...)
	}
	return sha256.Sum256(b)
}

// Hide returns the hash that is published for h.
func (n *Namespace) Hide(h kv.EngineHash) kv.EngineHash {
	var b [MaxSize + 8]byte
	copy(b[:], n[:])
	binary.BigEndian.PutUint64(b[MaxSize:], uint64(h))
	s := sha256.Sum256(b[:])
	return kv.EngineHash(binary.BigEndian.Uint64(s[:8]))
}
