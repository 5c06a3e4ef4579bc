// SPDX-License-Identifier: Apache-2.0

// Package trial is what all measuring commands of the harness share: a fresh process
// for every trial, a progress line, the machine and the foreign load on it, medians with
// their intervals, the report's common fields, the cache folder.
//
// # Terminology
//
//   - A trial is one measurement in one fresh process.
//   - Foreign load is how many CPUs others kept busy meanwhile, on average.
//
// # How to add a measuring command
//
//  1. Write harness/NAME: Options with Validate, whose errors name the flag at fault, and
//     Args, the flags that give a child the same options and --one; a Result that embeds
//     [Report]; a function One that measures once, in this process. harness/replay has
//     targets, lanes, open loops and the comparison with the reference; harness/corpus has
//     corpora and ready steps.
//  2. Write harness/cmd_NAME.go with a run function, and give it an entry in
//     harness.commands. It parses flags (c.parse adds --cpu-features: take asm.Level()
//     after it), prints a usage error as one line and exit code 2, and with --one prints
//     One's result as a line of JSON.
//  3. Without --one it calls [Fresh], which starts this program anew for each trial, then
//     [Summarize], and prints machine, medians and all trials, as JSON or as text.
//
// harness/mooncake and harness/cmd_mooncake.go are the example. A test of the harness
// package is the program itself: its TestMain acts as Main when [ChildEnv] is set, which
// it is for every child and nothing else looks at.
package trial
