// SPDX-License-Identifier: Apache-2.0

// Package live starts an index host, with two mock engines or in front of a real
// fleet, and shows in a table what its streams do and what lookups predict.
//
// With mock engines every recorded request is first asked of the index over
// HTTP, once all that its engine published has been applied, then sent; the
// engine's own number of cached tokens is compared when it answers. Where the
// two differ, the replay of the recording (package verify) must have a rule that
// yields the engine's number.
package live
