// SPDX-License-Identifier: Apache-2.0

// Package churn measures an index that stays as big as it is while its content goes
// round: decode blocks stored one by one below prompts, the oldest evicted one by one.
//
// # Workload
//
// Prompts of equal length are drawn from a pool; each worker holds so many of them for
// ever, so that each is held by several workers. Every worker decodes a few sequences at
// once, each below the last block of one of its prompts: an event stores one block. A
// sequence ends after a length that is exponential about a mean. Once a worker holds as
// many blocks as it may, each store comes after the removal, in an event of its own, of
// the last block that is left of the sequence which ended first. So half of the events
// are stores and half are removals, all of one block, and runs grow and shrink at their
// ends all the time.
//
// Filling is a segment of its own, the others are equal parts of the events or of the
// time that was asked for.
//
// # Method
//
// Events are made in chunks ahead. The thread's CPU clock is read once after each event:
// the difference is what the event took, less one clock read where means are told, which
// is measured. After each chunk the clock is read as often with nothing between (the
// control): what that shows above 100 us and 1 ms is the machine's, not the index's. So
// is what comes in one trial and not at the same event in the others.
// Then some of the sequences that are being decoded are looked up, each timed by the
// monotonic clock, and every answer is held against what the workload knows: who holds
// the prompt, and who how much of the sequence.
package churn
