// SPDX-License-Identifier: Apache-2.0

// Package verify replays recordings of real engines through decoding,
// admission and an index, and compares what the index then says with the
// reference index and with the engine's own truth.
//
// # What is compared
//
// After every batch: the index under test against the reference, content,
// counters and the lookups of every chain. At every state line: memberships
// against the engine's own block table. For every answer with truth: the tokens
// a lookup predicts against the tokens the engine found cached. For every truth
// line: the decoded events, all fields.
//
// # Rules
//
// A prediction is made from what had arrived when the request was sent, by the
// main attention groups, and so may differ from the engine's number for reasons
// that the recording shows: a clear that was not published yet, a message on its
// way, a window group. Each such reason is a rule: a predicate over recorded
// facts that must yield the engine's exact number. What no rule yields is wrong.
//
// The numbers of the rules come from the replica (replica.go), a second and
// independent model: plain maps over decoded events, every cache group, no
// hashing of content, and a state between any two events of a batch.
package verify
