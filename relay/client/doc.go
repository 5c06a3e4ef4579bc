// SPDX-License-Identifier: Apache-2.0

// Package client subscribes to event streams over gRPC: to a relay of ours, or to
// whatever serves the peers' SubscribeKvEvents.
//
// # Terminology
//
//   - A contract is one of the three services that serve a stream: kindex.relay.v1,
//     vllm.grpc.engine, sglang.grpc.scheduler.
//   - A life is what one epoch of a publisher's content is called; its batches are
//     numbered from 0.
//   - A cursor is the last batch of a rank that was handed on.
//   - A rank stands exact while what its [Handler] was told is all that its
//     publisher said.
//
// # How it works
//
//	dial -> contract -> Subscribe(cursors) -> admission of each rank -> Handler
//	 ^                                             |
//	 +---------- the link is dead, a gap ----------+
//
// One goroutine receives and calls handlers; it receives nothing meanwhile, so
// that a slow handler is felt by the server through flow control and nothing is
// queued here beyond the windows of one connection.
//
// While there is no connection a new attempt begins every [Config.DialPeriod], and
// those begun before go on beside it for [Config.DialTimeout]: an attempt whose
// first packets were lost would otherwise hold up the first one that can succeed.
// A connection counts once its handshake is done. A connection on which nothing
// comes is asked for the server's health, and dropped when nothing at all is
// answered within [Config.SilenceTimeout]: a link that was cut for a minute may
// need another minute until its TCP sends again, a new connection needs none.
//
// # What is exact
//
// The relay's own contract says it in band. The peers' contract says it not at
// all, so it is concluded: a rank stands exact after its whole history from number
// 0, or after a snapshot with nothing unknown before it, as long as each number
// follows the one before. A gap is asked for again from the cursor; what does not
// come then is missing until the engine clears its cache or the rank is told
// anew.
//
// A snapshot that ends early, or whose digest is another one than its content's,
// is taken back: the handler is told Reset and the rank is asked for anew.
//
// # Not supported
//
// Several addresses of one relay; proxies; compressed messages.
package client
