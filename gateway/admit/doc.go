// SPDX-License-Identifier: Apache-2.0

// Package admit bounds how many requests a gateway carries at once.
//
// A [Gate] has places, and a queue before them. Who finds no place waits in the order
// of coming, for a bounded time; who finds the queue full is told at once, and when to
// come again. A caller that gives up leaves the queue in that moment and its turn is
// nobody's loss.
package admit
