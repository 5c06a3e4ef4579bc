// SPDX-License-Identifier: Apache-2.0

// Package live is the live content of one rank: which blocks its engine holds now,
// where, and below which parents; what each batch really changes; and snapshots of
// the whole, cut while the stream goes on.
package live
