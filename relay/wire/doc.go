// SPDX-License-Identifier: Apache-2.0

// Package wire reads and writes what engines publish: batches of cache events,
// the messages they travel in, and load readings.
package wire
