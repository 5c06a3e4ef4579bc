// SPDX-License-Identifier: Apache-2.0

// Before: POST /workers, flags, files. After: the registry.

package fleet

import (
	"reflect"
	"slices"
)

// DefaultAttempts is a registration's MaxAttempts where it says nothing.
const DefaultAttempts = 20

// Engine kinds, as specifications name them.
const (
	VLLM   = "vllm"
	SGLang = "sglang"
)

// Spec is a worker as it was registered. It is immutable.
type Spec struct {
	URL    string   // http, https, grpc or grpcs, with host and port
	Models []string // served names; empty: to be found out
	// Adapters are the served names of its LoRA adapters, each with the model that it
	// adapts, which is one of Models.
	Adapters map[string]string
	Engine   string // VLLM, SGLang; "": not known
	Ranks    int    // data-parallel ones; 0: to be found out, or one

	// Instance is what the index calls this worker, its URL where nothing else is said; BlockSize the tokens of its
	// blocks, 0 where the index knows.
	Instance  string
	BlockSize int

	// Name is what logs and answers call it; "": its ID.
	Name string

	// MaxAttempts is how often the engine is asked what it is before its registration
	// is given up; 0: without end.
	MaxAttempts int

	// Events is where its cache's events come from, for an index within the gateway.
	Events Events

	Terms   Terms
	KeyFile string // where its API key was read; "": it was given otherwise, or there is none
}

// Events is where a worker's events come from. All empty: nowhere.
type Events struct {
	Endpoint string // the engine's own publisher, tcp://host:port of rank 0
	Replay   string // and its replay
	Relay    string // host:port of a relay, or of a server that speaks a peer's contract
	Name     string // of the engine at the relay, where it has several
}

// GRPC reports whether the worker is spoken to by gRPC.
func (s *Spec) GRPC() bool { return len(s.URL) > 4 && s.URL[:4] == "grpc" }

// Same reports whether two specifications ask for the same, each as [Registry.Enroll]
// takes or keeps it.
func (s *Spec) Same(o *Spec) bool {
	a, b := *s, *o
	for _, c := range []*Spec{&a, &b} {
		if c.Instance == "" {
			c.Instance = c.URL
		}
		c.MaxAttempts, c.KeyFile = 0, "" // how it came to be
	}
	return reflect.DeepEqual(&a, &b)
}

// serves reports whether requests for s are as well served by s's predecessor: only now
// is it known what that is, or only where its events come from has changed.
func (s *Spec) serves(next *Spec) bool {
	if s.URL != next.URL || !slices.Equal(s.Models, next.Models) {
		return false
	}
	return s.Engine == "" || s.Engine == next.Engine && max(s.Ranks, 1) == max(next.Ranks, 1) && s.BlockSize == next.BlockSize
}
