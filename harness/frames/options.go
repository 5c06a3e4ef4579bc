// SPDX-License-Identifier: Apache-2.0

package frames

import (
	"fmt"
	"strconv"

	"kindex/asm"
	"kindex/lanes"
	"kindex/shard"
)

// Options say what one trial measures.
type Options struct {
	Level   string // of the kernels
	Seed    uint64
	Lanes   int
	Shards  int
	Streams int
	Prompts int // of each stream
	Cache   int // blocks that each engine holds; 0: it evicts nothing
	Burst   int // messages handed over at once
	Rounds  int // in one process
}

// DefaultOptions are 16 streams that evict, on one lane and one shard.
func DefaultOptions() Options {
	return Options{Level: asm.LevelAuto, Seed: 1, Lanes: 1, Shards: 1, Streams: 16, Prompts: 1_000, Cache: 4_000, Burst: 8, Rounds: 5}
}

// Validate reports what cannot be right, the flag's name first.
func (o *Options) Validate() error {
	for _, x := range []struct {
		name          string
		value, lo, hi int
	}{
		{"--lanes", o.Lanes, 1, 1_024},
		{"--shards", o.Shards, 1, shard.MaxShards},
		{"--streams", o.Streams, 1, 4_096},
		{"--prompts", o.Prompts, 1, 1_000_000},
		{"--cache", o.Cache, 0, 1 << 24},
		{"--burst", o.Burst, 1, 1_024},
		{"--rounds", o.Rounds, 1, 1_000},
	} {
		if x.value < x.lo || x.value > x.hi {
			return fmt.Errorf("%s %d: must be %d to %d", x.name, x.value, x.lo, x.hi)
		}
	}
	if o.Cache > 0 && o.Cache < leastCache {
		return fmt.Errorf("--cache %d: must be 0 or at least %d, for the prompts that share a beginning", o.Cache, leastCache)
	}
	if err := asm.CheckLevel(o.Level); err != nil {
		return fmt.Errorf("--cpu-features %s: %w", o.Level, err)
	}
	return nil
}

// leastCache holds the prompts of package bench that share a beginning, which must not
// be evicted while more of them come.
const leastCache = 1_024

// Args returns the flags that give a child these options.
func (o *Options) Args() []string {
	args := []string{"lanes", "--one", "--json", "--cpu-features", o.Level, "--seed", strconv.FormatUint(o.Seed, 10)}
	for _, x := range []struct {
		name  string
		value int
	}{
		{"--lanes", o.Lanes},
		{"--shards", o.Shards},
		{"--streams", o.Streams},
		{"--prompts", o.Prompts},
		{"--cache", o.Cache},
		{"--burst", o.Burst},
		{"--rounds", o.Rounds},
	} {
		args = append(args, x.name, strconv.Itoa(x.value))
	}
	return args
}

// pool returns the options of the host's pool.
func (o *Options) pool() lanes.Options {
	return lanes.Options{Nodes: []lanes.Node{{Shards: o.Shards, Lanes: o.Lanes}}}
}
