// SPDX-License-Identifier: Apache-2.0

// Package series measures several arms side by side: trials in fresh processes,
// interleaved in an order drawn from the seed, kept one by one, resumed where they
// stopped, and told as medians with intervals, ratios, a table and plots.
//
// # Terminology
//
//   - An arm is one thing measured: this program's index with some settings, a control,
//     or a peer.
//   - A control is this program's index again, in the same binary: as it is, so that
//     its ratio to the first shows the noise, or with other kernels or other placement.
//   - A round measures every arm in every mode once, in an order of its own.
//
// # Files of a series
//
//	series.json   what is measured; a series that is not the same is refused
//	trials.jsonl  one line a trial, also of those discarded
//	report.json   medians, intervals and ratios
//	table.md      the same, to be read
//	MODE.svg      the same, to be looked at
//
// # Rules
//
//   - A trial during which other processes kept more than MaxForeign CPUs busy on
//     average is discarded, counted, and repeated, a bounded number of times.
//   - Intervals are the middle 95 % of 10,000 bootstrap resamples of the median, of
//     ratios of medians resampled apart. Seeds make them repeatable.
package series
