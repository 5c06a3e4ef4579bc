// SPDX-License-Identifier: Apache-2.0

package ladder

import (
	"fmt"
	"math"

	"kindex/harness/mooncake"
)

// Options say how to climb.
type Options struct {
	Mooncake mooncake.Options // what is replayed into our index
	First    float64          // block operations a second
	Factor   float64          // from one step to the next
	Steps    int              // at most
	Runs     int              // trials of each arm at each step
	Peers    []string
	PeersBin string // the built index-peers, where there are peers
	// MaxForeign is how many CPUs others may keep busy during a trial on average; past
	// it the trial is repeated.
	MaxForeign float64
}

// giveUp is how many steps in a row an arm does not keep up with before it ends.
const giveUp = 2

// attempts is how often a trial is made at most; of those on a busy machine the one with
// the least foreign load counts.
const attempts = 3

// DefaultOptions climb from 5 M block operations a second.
func DefaultOptions() Options {
	o := Options{Mooncake: mooncake.DefaultOptions(), First: 5e6, Factor: 1.5, Steps: 30, Runs: 1, MaxForeign: 0.5}
	return o
}

// Validate reports what cannot be right, the flag's name first. The peers' names are
// the caller's affair.
func (o *Options) Validate() error {
	switch {
	case !(o.First >= 1_000 && o.First <= 1e12):
		return fmt.Errorf("--first %g: must be 1000 to 1e12 block operations a second", o.First)
	case !(o.Factor >= 1.01 && o.Factor <= 100):
		return fmt.Errorf("--factor %g: must be 1.01 to 100", o.Factor)
	case o.Steps < 1 || o.Steps > 200:
		return fmt.Errorf("--steps %d: must be 1 to 200", o.Steps)
	case !(o.MaxForeign > 0):
		return fmt.Errorf("--max-foreign %g: must be above 0", o.MaxForeign)
	}
	return o.Mooncake.Validate()
}

// maxWindow is what index-peers and the mooncake command take, in milliseconds.
const maxWindow = 86_400_000

// window returns the milliseconds in which blocks block operations are offered at step.
func (o *Options) window(step int, blocks int64) int {
	rate := o.First * math.Pow(o.Factor, float64(step))
	return int(min(max(math.Round(float64(blocks)*1e3/rate), 1), maxWindow))
}
