// SPDX-License-Identifier: Apache-2.0

// Package engine is a small live engine, or a fleet of them in one process: it
// answers requests over OpenAI's API and the gRPC contract of a real one, keeps a
// prefix cache as that one does, publishes the cache's events over real sockets in
// that one's own layout, says the truth about all of it, and breaks when told to.
//
// # Parts
//
//	admin*.go, fault.go    the truth, and what goes wrong on purpose
//	front*.go, gate.go     requests in, answers out; ports that can be closed
//	tokenizer.go           words to tokens and back
//	fleet.go, journal.go   the workers of a fleet; what became of each request
//	engine.go              the ranks of one engine; who gets a request
//	rank.go                one rank: passes in time, requests in, batches and answers out
//	sched.go               what each pass computes
//	cache.go, pool.go      one rank's prefix cache: values in, events out
//	windows.go, host.go    what it has beside its main group: window groups, a second tier
//	chain.go, prompt.go    the engines' own hashes
//	timing.go              how long a pass takes; calibration.go reads that from a file
//	model.go               a rank whose time is its owner's
//	publisher.go           sequence, replay buffer, PUB and ROUTER
//
// Each part knows only the one below. What is below rank.go knows no clock, no
// socket and no goroutine, so that the same requests in the same order give the
// same events, and a [Model] is the engine without its time.
//
// # What is as in the real engine, and what is not
//
// As in vLLM 0.32: block hashes, batches, framings, replay; passes with a budget of
// tokens, running requests first, prompts in shares, admission by the whole prompt,
// preemption of the request that came last, which is computed again; the pool of
// physical blocks with its reference counts, the least recently used chain losing
// its tail first, a removal for each physical copy, the last block of a fully
// cached prompt computed anew, a block cached as soon as it is due, the clear that
// is published with the next pass only. A cache of n blocks is what vLLM calls
// n + 1: it keeps one for itself.
//
// Window groups share the pool, slide, and keep only the tails that a later request
// can begin at. A second tier gets each block once its pass is over; a request loads
// from it what follows its hits on the device. Its order of going is vLLM's where
// requests come one at a time.
//
// Otherwise: the tokens of an answer are drawn from a seed; a pass takes the time of
// a fit. vLLM's scheduler runs one pass ahead by default, and so publishes a pass's
// events up to a pass later, cut into other batches; ours does not. SGLang's passes
// are vLLM's with SGLang's rules of what is cached when: a prompt's blocks as their
// pass ends, an answer's as the request ends, equal blocks made one. Its real one
// evicts whole nodes of its tree, and lets requests in by an estimate of their
// answers' length. A load from the second tier takes no time.
//
// # Not supported
//
// Images and embeddings, lookahead tokens in hashes, pages of bigrams, SGLang's
// write-back and selective policies, chunks of several blocks on the second tier,
// models of window groups alone, logprobs.
package engine
