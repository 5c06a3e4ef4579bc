// SPDX-License-Identifier: Apache-2.0

// Package interop holds the index host and the relay against programs that are not
// ours: the field's own indexer (Dynamo), asked the same questions about the same
// streams; the closest peer's gateway (SMG), routing through our relays, and its
// relay, under our index; and a real engine (vLLM), whose cached-token counts and
// whole history are the truth. The mock engine is held against that one: the same
// requests one at a time, and its scheduler's passes under load.
//
// Its tests are long ones: they install the peers into a cache folder once
// (KINDEX_CACHE, default kindex below the user's cache folder) and run
// everything in a network namespace of its own that has only a loopback, since
// some peers listen on every interface. What a machine cannot do (no Python, no
// registry, no namespaces) skips the test with the reason.
package interop
