// SPDX-License-Identifier: Apache-2.0

// Package fleet is what a gateway knows of its workers: who they are, how they
// stand, what they carry.
//
// A [Worker] is one registration of an engine: the same URL registered again is
// another Worker, so that nothing of the old one, a lease or a veto, can touch the
// new one. Each of its data-parallel ranks is a [Holder], which is what decisions
// name. What moves with every request or reading is atomic and lies in these two;
// who is there is a [Pool] for each model, immutable and replaced as a whole.
//
// # Concurrency
//
// Any goroutine may read anything. Who writes what stands at each field.
package fleet
