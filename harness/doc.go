// SPDX-License-Identifier: Apache-2.0

// Package harness is the program that proves, shows and measures the others:
// recordings replayed against an oracle, a table of live streams, benchmarks.
package harness
