// SPDX-License-Identifier: Apache-2.0

// Package gatewayreplay replays a trace through gateways before a fleet of mock engines,
// one after the other, in rounds, and tells what each made of the same requests.
//
// A variant is one way of routing: ours by each kind of index, in turns, or the peer's. A
// run is one variant in one round: it starts engines, index and gateway afresh, so that
// all caches are empty, waits until every worker is ready, and replays with package
// openloop. The first variant of a round is another one in the next.
//
// # Files
//
//	plan.json              what is replayed, by which programs; another one is refused
//	runs/VARIANT/N/        round N: openloop's files, result.json, and the gateway's metrics.txt
//	report.json, table.md  medians, and ratios of runs of one round
//	FIGURE.svg             the same, to be looked at
//
// A run whose result.json is there is not done again, so a stopped series goes on where
// it stopped; more rounds and variants may be asked for later.
//
// # The peer
//
// By HTTP it does not take prompts of token ids, and by gRPC it tokenises itself: both
// get prompts of words, each a token of the engines' and of the tokenizer that the peer
// is given. These have other tokens than the ids that ours gets, and the same lengths
// and shared beginnings; [ChainText] is ours with the peer's prompts.
package gatewayreplay
