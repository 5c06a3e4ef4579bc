// SPDX-License-Identifier: Apache-2.0

// Package engine is a small live engine, or a fleet of them in one process: it
// answers requests over OpenAI's API and the gRPC contract of a real one, keeps a
// prefix cache as that one does, publishes the cache's events over real sockets in
// that one's own layout, says the truth about all of it, and breaks when told to.
//
// # Parts
//
//	admin*.go, fault.go    the truth, and what goes wrong on purpose; burn.go takes processors
//	front*.go, gate.go     requests in, answers out; ports that can be closed
//	tokenizer.go           words to tokens and back
//	fleet.go, journal.go   the workers of a fleet; what became of each request
//	engine.go              the ranks of one engine; who gets a request
//	rank.go                one rank: passes in time, requests in, batches and answers out
//	sched.go               what each pass computes
//	cache.go, pool.go      one rank's prefix cache: values in, events out
//	windows.go, tier.go    what it has beside its main group: window groups, lower tiers
//	tell.go                how events tell it
//	chain.go, prompt.go    the engines' own hashes
//	timing.go              how long a pass takes; calibration.go reads that from a file
//	model.go, shape.go     a rank whose time is its owner's; what settles how it caches
//	publisher.go           sequence, replay buffer, PUB and ROUTER; load_pub.go the load's PUB
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
// n + 1: it keeps one for itself. As in 0.33, told so: names that cover the tokens
// after a block.
//
// Window groups share the pool, slide, and keep only the tails that a later request
// can begin at; there may be no other group. Lower tiers get each block, or each
// chunk of several, once its pass is over; a request loads from them what follows its
// hits on the device, in chunks that are there whole. Their order of going is vLLM's
// where requests come one at a time.
//
// As in SGLang 0.5.23: hashes of pages and of pairs, salts, an adapter's hidden
// hashes; a prompt's blocks cached as their pass ends, an answer's as the request
// ends, equal blocks made one; neighbours told as one event; the three policies of
// the host tier. An image there has tokens that are made of its hash.
//
// Otherwise: the tokens of an answer are drawn from a seed; a pass takes the time of
// a fit; probabilities and embeddings are made up, and equal for equal tokens. vLLM's
// scheduler runs one pass ahead by default, and so publishes a pass's events up to a
// pass later, cut into other batches; ours does not. SGLang's passes are vLLM's with
// SGLang's rules of what is cached when. Its real one evicts whole nodes of its tree,
// lets requests in by an estimate of their answers' length, and while it decodes
// publishes every forty steps only. A load from a lower tier takes no time.
//
// # The wire's fields
//
// Each is held against recordings of the engines (TestRecordedEngine), against a
// reference (TestSchedulerAgainstReference), or by our index's being equal to the
// truth (TestIndexIsTruth). Two things a release may not tell, so that no index can
// know: vLLM 0.20 and 0.21 number window groups and do not say which is the main one;
// vLLM 0.17 to 0.19 tell an item that lies in a prompt's first block alone as a salt.
//
//	layouts of vLLM 0.9 to 0.33, SGLang 0.4.8 to 0.5.22, TokenSpeed   --engine, --version
//	hashes signed, unsigned, whole digests; four algorithms, seeds     --hash, --hash-seed, --digests
//	parents, tokens, block sizes, batches' ranks, topics, replays      always
//	token pairs                                                        --bigram
//	lookahead_token_ids                                                --lookahead
//	lora_id, lora_name, cache_salt, session_id                         of a request; --lora
//	extra_keys: adapter, items, salt, embeddings                       of a request: image_url and so on, prompt_embeds
//	group_idx, spec kind, window; hashes fewer than blocks, or none    --windows, --window-only, --retention
//	medium CPU: placeholders, with tokens, chunks, many removed        --host-blocks, --offload, --offload-chunk
//	medium CPU_PINNED                                                  --host-blocks, --host-policy
//	medium STORAGE, locality, ownership                                --disk-blocks, --disk-remote, --disk-owner; --offload simple
//	blocks told again                                                  vllm_xargs: kv_cache_report_mode of a request
//	clears: deferred, at once, at the start                            /reset_prefix_cache, /flush_cache
//	the load's socket                                                  --load-pub
//	a publisher that connects                                          --connect
//
// # Left out on purpose
//
// What no engine sends that an index could use: partial blocks of Mamba and groups of
// other attention than full and sliding windows (nobody recorded their events);
// hashes of Python's own salted hash (vLLM before 0.10.2, SGLang up to 0.5.4: those
// layouts carry the later hashes); SGLang's media DISK and EXTERNAL, which its tree
// never tells; its extra keys without an adapter, which it leaves out of its hashes,
// and the form "dynamo" of its events; vLLM's hash_block_size below a block; the block
// that it drops where it drafts without lookahead.
package engine
