// SPDX-License-Identifier: Apache-2.0

// Package exact holds indexes against the reference, question by question.
//
// # What is compared
//
// Every index kind with every number of shards is told the same events as the
// reference, and asked the same questions: one by one, as sets of holders, and in a
// batch with beginnings of the same chain (an index that answers these two by the first
// is asked them now and then). An answer is right when it names the same
// holders with the same depths in all tiers and nobody twice. A question is wrong for an
// index when one of its answers is.
//
// # Parts
//
//   - A corpus: every lookup, with all events before it applied.
//   - Holes, three workloads as the published indexes' tool has them: workers use prompts
//     that share their beginnings, and lose random blocks from the middle. Of a used
//     prompt the absent blocks are stored again; or everything from the first absent one
//     on; or, after half of the steps, nothing.
//   - Random: prompts of the corpus, in part held, in all local tiers, by workers of
//     which some have names of their own for blocks; losses, clears, blocks stored
//     without their parents. Questions are whole prompts, beginnings, prompts with a
//     block replaced, or gone on from. It goes on until so many questions were asked.
//
// At the end of each part the whole content is compared, position by position.
package exact
