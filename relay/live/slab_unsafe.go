// SPDX-License-Identifier: Apache-2.0

package live

import "unsafe"

// The sizes that the memory a block takes is made of.
const (
	_ = uint(48 - unsafe.Sizeof(record{}))
	_ = uint(12 - unsafe.Sizeof(node{}))
)

// slabBytes returns the bytes of one chunk of a slab of T.
func slabBytes[T any]() uint64 { return uint64(unsafe.Sizeof([slabLen]T{})) }
