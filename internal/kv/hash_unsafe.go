// SPDX-License-Identifier: Apache-2.0

package kv

import (
	"encoding/binary"
	"unsafe"
)

// littleEndian is true where a uint32 in memory already has the wire's byte
// order, so that tokens are hashed in place: converting them byte by byte costs
// 3 to 5 times the hash.
var littleEndian = func() bool {
	x := uint32(1)
	return *(*byte)(unsafe.Pointer(&x)) == 1
}()

// tokenBytes returns tokens as little-endian bytes, aliasing them where the
// machine's byte order allows.
func tokenBytes(tokens []uint32) []byte {
	if len(tokens) == 0 {
		return nil
	}
	if littleEndian {
		return unsafe.Slice((*byte)(unsafe.Pointer(&tokens[0])), 4*len(tokens))
	}
	b := make([]byte, 0, 4*len(tokens))
	for _, t := range tokens {
		b = binary.LittleEndian.AppendUint32(b, t)
	}
	return b
}
