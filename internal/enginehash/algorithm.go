// SPDX-License-Identifier: Apache-2.0

package enginehash

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"github.com/zeebo/xxh3"

	"kindex/internal/kv"
)

// Algorithm is how an engine hashes blocks.
type Algorithm uint8

// The algorithms, by the names that vLLM's --prefix-caching-hash-algo takes, and
// SGLang's one.
const (
	SHA256     Algorithm = iota // vLLM's default
	SHA256CBOR                  // as pickle is Python's alone, for other languages
	XXHash
	XXHashCBOR
	SGLang
	numAlgorithms
)

var algorithmNames = [numAlgorithms]string{"sha256", "sha256_cbor", "xxhash", "xxhash_cbor", "sglang"}

// String returns the engine's name of a.
func (a Algorithm) String() string { return algorithmNames[a] }

// Parse returns the algorithm of that name.
func Parse(name string) (Algorithm, error) {
	if i := slices.Index(algorithmNames[:], name); i >= 0 {
		return Algorithm(i), nil
	}
	return 0, fmt.Errorf("hash algorithm %q: must be one of %s", name, strings.Join(algorithmNames[:], ", "))
}

// VLLM returns vLLM's algorithms, the default first.
func VLLM() []Algorithm { return []Algorithm{SHA256, SHA256CBOR, XXHash, XXHashCBOR} }

// DefaultSeed is the seed text of sha256 and sha256_cbor where the engine runs
// without PYTHONHASHSEED, since vLLM 0.29. Without it xxhash and xxhash_cbor take a
// random text, and so did all before.
const DefaultSeed = "vllm-none-hash"

// MaxSize is the length of the longest digest, in bytes.
const MaxSize = 32

// Size returns the length of a's digests, in bytes.
func (a Algorithm) Size() int {
	if a == XXHash || a == XXHashCBOR {
		return 16
	}
	return 32
}

// Pickles reports whether a writes what it digests by Python's pickle.
func (a Algorithm) Pickles() bool { return a == SHA256 || a == XXHash }

// Digest is the full digest of one block; a shorter one ends in zeros.
type Digest [MaxSize]byte

// Fold returns what a's engine writes on its wire for d.
func (a Algorithm) Fold(d *Digest) kv.EngineHash {
	if a == SGLang {
		return kv.EngineHash(binary.BigEndian.Uint64(d[:8]))
	}
	return kv.EngineHash(binary.BigEndian.Uint64(d[a.Size()-8 : a.Size()]))
}

func (a Algorithm) sum(b []byte) (d Digest) {
	if a.Size() == 16 {
		s := xxh3.Hash128(b).Bytes()
		copy(d[:], s[:])
		return d
	}
	return sha256.Sum256(b)
}

// None returns the digest above vLLM's first blocks, for a seed text: the text of
// PYTHONHASHSEED, or the default.
func (a Algorithm) None(seed string) Digest {
	if a.Pickles() {
		p := pickler{buf: make([]byte, frameAt, frameAt+16+len(seed))}
		p.text(seed)
		return a.sum(p.framed())
	}
	return a.sum(append(cborHead(nil, cborText, uint64(len(seed))), seed...))
}
