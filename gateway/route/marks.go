// SPDX-License-Identifier: Apache-2.0

// Before: place.go, which sets them. After: metrics and traces.

package route

// Marks say when the parts of a placement began and ended, by fleet.Now; 0: there was
// no such part. What is done once for all tries keeps the marks of the first.
type Marks struct {
	Resolve, Resolved int64 // tokens of the prompt
	Lookup, LookedUp  int64 // who holds them
	Decide, Decided   int64
}
