// SPDX-License-Identifier: Apache-2.0

// Package lookup is the question that an index host answers and the answer it
// gives, whatever the way between the two: a call, shared memory, gRPC, HTTP.
//
// It holds values, kinds of errors and one interface; no I/O, no locks. Servers map
// the kinds to their own statuses, clients map those back, so that a caller sees
// the same kind and the same line of text over every way.
package lookup
