// SPDX-License-Identifier: Apache-2.0

// Package planted wraps an index with one known fault, so that a proof can show
// that it would see it. A proof that a planted fault passes proves nothing.
//
// Each [Fault] is a mistake that an index could well make; it changes what
// reaches the index beneath or what comes back, and leaves the rest alone.
// For tests only.
package planted
