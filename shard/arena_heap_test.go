// SPDX-License-Identifier: Apache-2.0

//go:build !linux || race

package shard

import "testing"

// systemResident knows nothing of the Go heap.
func systemResident(*testing.T, *arena) (lines uint64, ok bool) { return 0, false }
