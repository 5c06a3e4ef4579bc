// SPDX-License-Identifier: Apache-2.0

//go:build !race

package shard_test

// raceEnabled says that the race detector watches: everything takes ten times
// as long.
const raceEnabled = false
