// SPDX-License-Identifier: Apache-2.0

// Package live starts an index host without a gateway, with two mock engines that play
// recordings or for a real fleet, and shows in a table what its streams do and what
// lookups predict. Package whole shows it with all that stands around it.
//
// With mock engines every recorded request is first asked of the index over
// HTTP, once all that its engine published has been applied, then sent; the
// engine's own number of cached tokens is compared when it answers. Where the
// two differ, the replay of the recording (package verify) must have a rule that
// yields the engine's number.
package live
