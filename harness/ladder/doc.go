// SPDX-License-Identifier: Apache-2.0

// Package ladder offers a corpus to indexes at one rate after the other and tells how
// long lookups take at each.
//
// # Terminology
//
//   - An arm is an index that climbs: this program's, or a peer (harness/peers).
//   - A step is one offered rate, in block operations a second: a window in which the
//     whole corpus is an open loop, every operation at its deadline.
//   - An arm kept up with a step, by the published rule, when all operations were issued
//     within 1.01 windows and all done within 1.10; it sustained it when at least 99 % of
//     what was offered was achieved. Both in every trial of the step.
//
// # Rules
//
// At each step every arm that still climbs is measured, trial by trial in turn, each in
// a fresh process. A trial on a machine that others kept busy is repeated, twice at most,
// and the calmest counts: what it says of the machine is in the table. An arm ends after two steps with which it did not keep up; the ladder
// ends with its last arm. Windows are whole milliseconds, so the rate offered is close
// to the one asked for. Lookups are on the thread that issues operations, as peers have
// them, and their times are service times; from deadline to end is told apart.
package ladder
