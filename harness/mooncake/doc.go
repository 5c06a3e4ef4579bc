// SPDX-License-Identifier: Apache-2.0

// Package mooncake measures an index on a corpus: one trial in this process ([One]),
// several in fresh ones ([Runs]), and the highest rate that is sustained ([Sustained]).
//
// # Modes
//
//	bare     all events applied by the measuring thread, no queue; then the same with
//	         lookups inline
//	write    all events waiting in the lanes' queues, then drained
//	lookup   half of the events applied, the later half's lookups timed; then all and all
//	contend  half applied; lanes apply the rest flat out while query threads look up
//	mixed    the whole corpus in order, lookups inline, at most 4,096 events waiting
//
// They are those of the published indexes' tool (harness/peers), which has no bare one.
// With a window the whole corpus is an open loop instead: every operation at its
// deadline. A rate is sustained when in three fresh processes of three all operations
// were issued within 1.01 windows, so that the load was really offered, and at least
// 99 % of the offered rate was achieved.
//
// # Fields
//
// cpu_ns_per_block_op is CPU time of all threads that worked, by block operation;
// lookup_ns are single lookups' times in the mode at hand; cpu_ns_per_lookup is from a
// pass over lookups without clock reads (contend: with them), in bare, write, mixed and
// open loops made once everything is applied.
package mooncake
