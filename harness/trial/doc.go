// SPDX-License-Identifier: Apache-2.0

// Package trial is what all measuring commands of the harness share: a fresh process
// for every trial, a progress line, the machine and the foreign load on it, results
// kept trial by trial, medians with their intervals, the report's common fields.
//
// # Terminology
//
//   - A trial is one measurement in one fresh process.
//   - A series is many trials of several arms, interleaved.
//   - An arm is one thing measured: an index kind with its settings, or a peer.
//
// # How to add a command
//
//  1. Write harness/NAME with Options, a Validate that names the flag at fault, and a
//     function that measures once, in this process, and returns a result that embeds
//     [Report].
//  2. Add a run function and an entry to harness.commands: parse flags into Options;
//     with --one, a flag of [Flags], measure and print the result as one JSON line;
//     without it, call [Runs], which starts this program anew with --one for each
//     trial, prints progress and returns the results.
//  3. Print [Summary] of the results as JSON or as text.
//
// The child is told apart by its flags alone. [ChildEnv] is set for it as well, so
// that a test's binary can act as the program.
package trial
