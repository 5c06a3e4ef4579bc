// SPDX-License-Identifier: Apache-2.0

package cli

// explainHead begins what is said of each.
const explainHead = "model m: 5 blocks of 4 tokens\n\n"

// explainGolden is what is said of each instance of TestExplainReasons.
var explainGolden = map[string]struct{ reasons, text string }{
	"whole": {"complete", explainHead + `instance whole rank 0: 5 of 5 blocks
  blocks 0..4  device
  why: all 5 blocks are held
`},
	"absent": {"not_stored", explainHead + `instance absent rank 0: 2 of 5 blocks
  blocks 0..1  device
  blocks 2..4  not held
  why: block 2 is not held: never stored or evicted
`},
	"tiers": {"not_stored", explainHead + `instance tiers rank 0: 4 of 5 blocks (device 2, device or host 3)
  block  0     device
  block  1     device+host
  block  2     host
  block  3     disk
  block  4     not held
  why: block 4 is not held: never stored or evicted
`},
	"hole": {"hole", explainHead + `instance hole rank 0: 1 of 5 blocks
  block  0     device
  blocks 1..2  not held
  blocks 3..4  device
  why: block 1 is not held, never stored or evicted, and 2 blocks further down are, from block 3 on
`},
	"orphan": {"orphan_waiting", explainHead + `instance orphan rank 0: 1 of 5 blocks
  block  0     device
  blocks 1..2  not held, waits for its parent
  blocks 3..4  not held
  why: block 1 was stored and waits for its parent, which is not held
`},
	"size": {"not_stored+other_block_size+stream_degraded", explainHead + `instance size rank 0: 1 of 5 blocks, stream degraded
  block  0     device
  blocks 1..4  not held
  why: block 1 is not held: never stored or evicted
  why: the engine's blocks are not of 4 tokens: 1 event left out
  why: the stream is degraded: the engine's block size is 2, registered was 4
`},
	"lossy": {"not_stored+stream_degraded", explainHead + `instance lossy rank 0: 1 of 5 blocks, stream degraded
  block  0     device
  blocks 1..4  not held
  why: block 1 is not held: never stored or evicted
  why: the stream is degraded: batches 0 to 0 lost: the replay begins at 1
`},
	"away": {"not_stored+stream_failed", explainHead + `instance away rank 0: 0 of 5 blocks, stream failed
  blocks 0..4  not held
  why: block 0 is not held: never stored or evicted
  why: the stream is failed: no connection to tcp://ADDR for 300ms: dial tcp ADDR: connect: connection refused
`},
}

const explainTail = `model m: 2 blocks of 4 tokens, and 3 tokens more

instance whole rank 0: 2 of 2 blocks
  blocks 0..1  device
  why: the last 3 tokens fill no block of 4
`
