// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"fmt"
	"slices"
	"time"

	"kindex/gateway/policy"
	"kindex/harness/corpus"
	"kindex/harness/trial"
)

// The arms.
const (
	ArmPolicy     = "policy"        // no lookup: matches as the index gave them before
	ArmChain      = "chain"         // embedded
	ArmPositional = "positional"    // embedded
	ArmRemote     = "remote"        // another process, over shared memory; both sleep while they wait
	ArmPinned     = "remote-pinned" // the same, on two cores, and both spin
)

// Arms are all arms.
var Arms = []string{ArmPolicy, ArmChain, ArmPositional, ArmRemote, ArmPinned}

// Options say what is measured.
type Options struct {
	Workers   int           `json:"workers"`
	Rate      int           `json:"rate"` // decisions a second
	Trial     time.Duration `json:"trial_ns"`
	Rounds    int           `json:"rounds"`
	Rows      int           `json:"rows"` // of the trace that are replayed
	Questions int           `json:"questions"`
	InFlight  int           `json:"in_flight"` // requests at each holder, mean
	Policy    string        `json:"policy"`
	Arms      []string      `json:"arms"`
	Limit     int           `json:"limit"` // matches of an answer; 0: all
	Seed      uint64        `json:"seed"`
}

// DefaultOptions are the published ones, with few rounds.
func DefaultOptions() Options {
	return Options{
		Workers: 128, Rate: 10_000, Trial: 2 * time.Second, Rounds: 3, Rows: 2_000, Questions: 4_096, InFlight: 4,
		Limit: 32, Policy: policy.CacheAware, Arms: slices.Clone(Arms), Seed: 1,
	}
}

// Validate reports what cannot be right, the flag's name first.
func (o *Options) Validate() error {
	for _, f := range []struct {
		name               string
		value, least, most int
	}{
		{"workers", o.Workers, 1, 4_096},
		{"rate", o.Rate, 1, 1_000_000},
		{"rounds", o.Rounds, 1, 1_000},
		{"rows", o.Rows, 1, 1_000_000},
		{"questions", o.Questions, 1, 1_000_000},
		{"in-flight", o.InFlight, 0, 1_000},
		{"limit", o.Limit, 0, 1_000_000},
	} {
		if f.value < f.least || f.value > f.most {
			return fmt.Errorf("--%s %d: must be %d to %d", f.name, f.value, f.least, f.most)
		}
	}
	if o.Trial < 10*time.Millisecond || o.Trial > time.Hour {
		return fmt.Errorf("--trial %s: must be 10ms to 1h", o.Trial)
	}
	if !slices.Contains(policy.Names(), o.Policy) {
		return fmt.Errorf("--policy %q: must be %s", o.Policy, trial.OneOf(policy.Names()))
	}
	for _, a := range o.Arms {
		if !slices.Contains(Arms, a) {
			return fmt.Errorf("--kv-index %q: must be some of %s", a, trial.OneOf(Arms))
		}
	}
	p := o.params()
	return p.Validate(o.Rows)
}

// params are the simulation's.
func (o *Options) params() corpus.Params {
	p := corpus.DefaultParams()
	p.Workers, p.Seed = o.Workers, o.Seed
	return p
}
