// SPDX-License-Identifier: Apache-2.0

// Package prompt finds the tokens that an engine will make of a request's prompt, before
// the request is sent to any.
//
// Token ids are taken as they are. Text and chats are put to a worker's own /tokenize,
// so that neither tokenizer nor chat template can be another than the engine's; or, for
// text alone, to a tokenizer in this process that was held against it. What cannot be
// known for sure is not said: a prompt without tokens is routed by load, wrong tokens
// would be routed to the wrong cache.
//
// # What is kept
//
// Answers are kept under a key of all that was asked: the pool, the model's name, every
// member of the body that may change the prompt, and the prompt. Keys are hashes of 128
// bits under a seed of the process's own, so that nobody can make two prompts meet.
//
// # Growing prompts
//
// A prompt that continues one whose tokens G are known costs a question about its end
// alone. With w the end of the known prompt, at least a few hundred bytes of it, and s
// what is new, the engine is asked for R0 = tokens(w), which is kept from the turn
// before, and R1 = tokens(w+s). Where G and R0 agree from some token of w on to their
// ends but for the last few, and R0 and R1 agree up to those, the answer is G up to
// there and R1 from there.
//
// For byte-level BPE this is exact: a sequence of tokens is the encoding of its text if
// and only if each pair of neighbours is the encoding of theirs, and every pair of the
// answer stands in G or in R1, the two overlapping in a run of tokens. A tokenizer that
// first cuts text into words cuts from left to right and looks ahead at most one
// character, so that the run, which spans several words, has a cut that G and R1 share.
// In a chat w and s are whole messages, and the run covers all of w's.
//
// A template is a program and may do anything with a message that is no longer the
// last, or count them. Where it looks at neighbours, R1 no longer begins as R0 and
// nothing is joined. What it does beyond is caught by trial: joined tokens are used only
// after the first few of a pool were equal to the engine's answer for the whole prompt,
// one in a while is compared again, as is one of twice as many messages as any before,
// and the first difference ends it. Last, an engine's
// answer says how many tokens the prompt had: see [Resolver.Confirm].
package prompt
