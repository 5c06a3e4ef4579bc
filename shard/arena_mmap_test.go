// SPDX-License-Identifier: Apache-2.0

//go:build linux && !race

package shard

import "testing"

// systemResident returns how many lines of the arena lie in memory, as the system
// says.
func systemResident(t *testing.T, a *arena) (lines uint64, ok bool) {
	t.Helper()
	n, err := a.region.Resident()
	if err != nil {
		t.Fatal(err)
	}
	return n / lineBytes, true
}
