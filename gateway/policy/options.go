// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"math"
	"time"
)

// Options are a policy's numbers. [DefaultOptions] has good ones.
type Options struct {
	// Seed makes decisions repeatable, one after the other; 0: other draws each time.
	Seed uint64

	// Levels tells who warms up; nil: nobody.
	Levels *Levels

	// What a holder's state is worth in time.

	Throughput    float64 // tokens a second, of a holder that does not tell
	PrefillRate   float64 // tokens a second that are prefilled, where no holder was measured yet
	RequestTokens float64 // that a request at a holder has yet to generate
	KVWeight      float64 // seconds, at half of the KV pool in use
	HostWeight    float64 // of a cached block on the host; 1: as good as on the device

	// Readings are taken at their word up to Fresh and not at all from Stale on;
	// between the two less and less. 0: at their word for ever.
	Fresh, Stale time.Duration

	// A holder is under pressure past GateFactor times the fleet's mean load and past
	// the mean and a margin, which is twice its root but within GateLeast and GateMost
	// requests; or where it takes Patience longer than computing the whole prompt
	// elsewhere, and GateFactor as long; 0: as long as it takes.
	GateFactor          float64
	GateLeast, GateMost float64
	Patience            time.Duration

	// An overlap is thin up to ThinShare of the prompt, or up to ThinBlocks blocks
	// that are less than half of it.
	ThinShare  float64
	ThinBlocks int

	// Whole is the largest pool that is read whole. Of larger ones Draws holders are
	// read, at most MaxDraws.
	Whole, Draws int

	// Spread is how many holders may have a prefix equally deep before it spills to
	// no more; 0: as many as the load makes it.
	Spread int
}

// Bounds of options.
const (
	MaxWhole = 32
	MaxDraws = 16
)

// DefaultOptions returns the defaults.
func DefaultOptions() Options {
	return Options{
		Throughput: 2000, PrefillRate: 10_000, RequestTokens: 256,
		KVWeight: 0.15, HostWeight: 0.8,
		Fresh: 2 * time.Second, Stale: 15 * time.Second,
		GateFactor: 1.5, GateLeast: 4, GateMost: 64, Patience: 4 * time.Second,
		ThinShare: 0.3, ThinBlocks: 4,
		Whole: MaxWhole, Draws: MaxDraws,
	}
}

// Validate returns what is wrong with o.
func (o *Options) Validate() error {
	for _, f := range []struct {
		name        string
		value       float64
		least, most float64
	}{
		{"Throughput", o.Throughput, 1, 1e9},
		{"PrefillRate", o.PrefillRate, 1, 1e9},
		{"RequestTokens", o.RequestTokens, 1, 1e6},
		{"KVWeight", o.KVWeight, 0, 3600},
		{"HostWeight", o.HostWeight, 0, 1},
		{"GateFactor", o.GateFactor, 1, 1e6},
		{"GateLeast", o.GateLeast, 0, 1e6},
		{"GateMost", o.GateMost, o.GateLeast, 1e6},
		{"ThinShare", o.ThinShare, 0, 1},
		{"ThinBlocks", float64(o.ThinBlocks), 0, 1e6},
		{"Whole", float64(o.Whole), 0, MaxWhole},
		{"Draws", float64(o.Draws), 2, MaxDraws},
		{"Spread", float64(o.Spread), 0, 1e6},
		{"Fresh", o.Fresh.Seconds(), 0, 1e6},
		{"Stale", o.Stale.Seconds(), 0, 1e6},
		{"Patience", o.Patience.Seconds(), 0, 1e6},
	} {
		if math.IsNaN(f.value) || f.value < f.least || f.value > f.most {
			return fmt.Errorf("policy option %s is %g: must be from %g to %g", f.name, f.value, f.least, f.most)
		}
	}
	if o.Stale > 0 && o.Stale < o.Fresh {
		return fmt.Errorf("policy option Stale is %s: must be 0 or at least Fresh, %s", o.Stale, o.Fresh)
	}
	return nil
}
