// SPDX-License-Identifier: Apache-2.0

package gatewayreplay

import (
	"fmt"
	"slices"
	"strings"

	"kindex/harness/openloop"
	"kindex/harness/trial"
)

// The variants.
const (
	Chain      = "chain"       // ours, an index in its process
	Positional = "positional"  // the same of the other kind
	RemoteShm  = "remote-shm"  // an index host beside it, over shared memory
	RemoteGRPC = "remote-grpc" // the same over gRPC
	ChainText  = "chain-text"  // as chain, prompts of words that the engines tokenise
	LeastLoad  = "least-load"  // ours, by load alone
	RoundRobin = "round-robin" // ours, in turns
	SMGHTTP    = "smg-http"    // the peer, cache_aware by the prompts' text
	SMGGRPC    = "smg-grpc"    // the peer, cache_aware by the engines' events
)

// Variants are all variants.
var Variants = []string{Chain, RemoteShm, RemoteGRPC, Positional, ChainText, LeastLoad, RoundRobin, SMGHTTP, SMGGRPC}

// DefaultVariants are those of the published figures.
var DefaultVariants = []string{Chain, RemoteShm, RemoteGRPC, Positional, RoundRobin, SMGHTTP, SMGGRPC}

// Options say what is replayed.
type Options struct {
	Variants []string
	Rounds   int
	Rows     openloop.Range
	Speedup  float64
	Workers  int
	Blocks   int // of each worker
	Context  int // tokens
	Seed     uint64
	Gateway  []string // more flags of ours
	Out      string
}

// DefaultOptions are those of the published figures.
func DefaultOptions() Options {
	return Options{
		Variants: slices.Clone(DefaultVariants), Rounds: 3, Rows: openloop.Range{First: 0, Last: 1999}, Speedup: 3,
		Workers: 8, Blocks: 32_768, Context: 131_072, Seed: 1,
	}
}

// The bounds of what can be asked for. Chosen.
const (
	maxRounds  = 1000
	maxWorkers = 64
	maxBlocks  = 1 << 22
)

// Validate returns the first fault, naming the flag.
func (o *Options) Validate() error {
	for i, v := range o.Variants {
		if !slices.Contains(Variants, v) || slices.Contains(o.Variants[:i], v) {
			return fmt.Errorf("--variants %q: must be different ones of %s, with commas between", v, trial.OneOf(Variants))
		}
	}
	switch {
	case len(o.Variants) == 0:
		return fmt.Errorf("--variants: must be of %s, with commas between", trial.OneOf(Variants))
	case o.Rounds < 1 || o.Rounds > maxRounds:
		return fmt.Errorf("--rounds %d: must be 1 to %d", o.Rounds, maxRounds)
	case o.Workers < 1 || o.Workers > maxWorkers:
		return fmt.Errorf("--workers %d: must be 1 to %d", o.Workers, maxWorkers)
	case o.Blocks < 1 || o.Blocks > maxBlocks:
		return fmt.Errorf("--blocks %d: must be 1 to %d", o.Blocks, maxBlocks)
	}
	replay := o.replay("127.0.0.1:1", "127.0.0.1:1")
	return replay.Validate()
}

// replay is what openloop is told of an endpoint and its fleet.
func (o *Options) replay(endpoint, admin string) openloop.Options {
	r := openloop.DefaultOptions()
	r.URL, r.Oracle, r.Rows, r.Speedup, r.Seed = "http://"+endpoint, "http://"+admin, o.Rows, o.Speedup, o.Seed
	return r
}

// peer reports whether a variant is the peer.
func peer(variant string) bool { return strings.HasPrefix(variant, "smg-") }

// inWords reports whether a variant's prompts are words.
func inWords(variant string) bool { return peer(variant) || variant == ChainText }
