// SPDX-License-Identifier: Apache-2.0

// Package load keeps what an engine says of its load, one [Reading] a rank, and
// writes it as the record that rides on every batch of a stream.
//
// # Sources
//
// A [Meter] reads one engine for all its ranks, from what is configured:
//
//   - its HTTP server: Prometheus text at /metrics (vLLM, SGLang), JSON at
//     /v1/loads or /get_load (SGLang). Which of them is there is found out by
//     asking, in the order of the engine's kind, remembered, and found out again
//     once it has failed a few times in a row;
//   - SGLang's load socket, which pushes;
//   - its own gRPC service, where nothing else is configured.
//
// Where two sources speak of one rank, the newer reading counts and the older
// fills in what the newer does not say.
//
// # Truth
//
// A reading carries the time when it was so. An engine that cannot be reached
// keeps its last reading, whose age grows: nobody takes silence for idleness.
// What an engine does not say is absent, which is not zero.
//
// # Concurrency
//
// Readings are immutable. One goroutine per source writes them; anybody reads
// the newest by one atomic load, so that a stream never waits for an engine's
// HTTP server. A [Pacer] belongs to one subscription and one goroutine.
package load
