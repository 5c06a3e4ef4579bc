// SPDX-License-Identifier: Apache-2.0

//go:build !race

package shard

// RaceEnabled says that the race detector watches: everything takes ten times
// as long.
const RaceEnabled = false
