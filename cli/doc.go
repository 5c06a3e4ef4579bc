// SPDX-License-Identifier: Apache-2.0

// Package cli is the operator's tool: what a fleet's index holds and why, what its
// streams do, and whether the index is what its engines say. It asks hosts over the
// contracts that everybody has, and engines and relays as any subscriber does.
//
// A command writes tables for people, or with --json values for programs, whose
// shapes docs/cli.md gives; it ends with a status that says how it went: see
// [Run]. It never prints a token id unless it is told to, and no token.
package cli
