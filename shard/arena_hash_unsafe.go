// SPDX-License-Identifier: Apache-2.0

package shard

import (
	"unsafe"

	"kindex/internal/kv"
)

// engineWords returns hashes as plain words, aliasing them.
func engineWords(h []kv.EngineHash) []uint64 {
	return unsafe.Slice((*uint64)(unsafe.SliceData(h)), len(h))
}

// contentWords returns hashes as plain words, aliasing them.
func contentWords(h []kv.ContentHash) []uint64 {
	return unsafe.Slice((*uint64)(unsafe.SliceData(h)), len(h))
}
