// SPDX-License-Identifier: Apache-2.0

package mooncake

import (
	"fmt"
	"slices"
	"strconv"

	"kindex/asm"
	"kindex/harness/trial"
	"kindex/shard"
)

// Modes are the ways to replay, the default first.
var Modes = []string{"mixed", "write", "lookup", "contend", "bare"}

// Options say what one trial measures.
type Options struct {
	Corpus   string // file
	Mode     string
	Index    string
	Shards   int // 0: as many as lanes
	Lanes    int
	Queries  int
	Level    string // of the kernels
	Memory   string // where it lies: one of Memories
	WindowMS int    // 0: as fast as it goes
	LimitOps int    // first operations only; 0: all
	Seed     uint64
	Check    bool
	Profile  string // file for a CPU profile of what was measured; "": none
}

// Memories are the ways to place an index's memory, the default first.
var Memories = []string{"local", "interleave"}

// DefaultOptions measure the chain index, mixed, on one lane.
func DefaultOptions() Options {
	return Options{Mode: Modes[0], Index: shard.Kinds[0], Lanes: 1, Queries: 1, Level: "auto", Memory: Memories[0], Seed: 42}
}

// Validate reports what cannot be right, the flag's name first.
func (o *Options) Validate() error {
	switch {
	case !slices.Contains(Modes, o.Mode):
		return fmt.Errorf("--mode %q: must be %s", o.Mode, trial.OneOf(Modes))
	case !slices.Contains(shard.Kinds, o.Index):
		return fmt.Errorf("--kv-index %q: must be %s", o.Index, trial.OneOf(shard.Kinds))
	case !slices.Contains(Memories, o.Memory):
		return fmt.Errorf("--memory %q: must be %s", o.Memory, trial.OneOf(Memories))
	case o.Lanes < 1 || o.Lanes > shard.MaxShards:
		return fmt.Errorf("--lanes %d: must be 1 to %d", o.Lanes, shard.MaxShards)
	case o.Shards < 0 || o.Shards > shard.MaxShards:
		return fmt.Errorf("--shards %d: must be 1 to %d", o.Shards, shard.MaxShards)
	case o.Shards > 0 && o.Shards < o.Lanes:
		return fmt.Errorf("--shards %d: must be at least --lanes %d, since a shard has one writer", o.Shards, o.Lanes)
	case o.Queries < 1 || o.Queries > 256:
		return fmt.Errorf("--query-threads %d: must be 1 to 256", o.Queries)
	case o.WindowMS < 0 || o.WindowMS > 86_400_000:
		return fmt.Errorf("--window-ms %d: must be 1 to 86400000", o.WindowMS)
	case o.LimitOps < 0:
		return fmt.Errorf("--limit-ops %d: must be at least 1", o.LimitOps)
	case o.WindowMS > 0 && o.Mode != Modes[0]:
		return fmt.Errorf("--mode %s with --window-ms: an open loop is always %s", o.Mode, Modes[0])
	}
	if err := asm.CheckLevel(o.Level); err != nil {
		return fmt.Errorf("--cpu-features %s: %w", o.Level, err)
	}
	return nil
}

// shards returns the number of shards meant.
func (o *Options) shards() int {
	if o.Shards == 0 {
		return o.Lanes
	}
	return o.Shards
}

// Args returns the flags that give a child these options.
func (o *Options) Args() []string {
	args := []string{
		"mooncake", "--one", "--json", "--corpus", o.Corpus, "--mode", o.Mode, "--kv-index", o.Index, "--lanes", strconv.Itoa(o.Lanes),
		"--shards", strconv.Itoa(o.shards()), "--query-threads", strconv.Itoa(o.Queries), "--cpu-features", o.Level, "--memory", o.Memory,
		"--window-ms", strconv.Itoa(o.WindowMS), "--limit-ops", strconv.Itoa(o.LimitOps), "--seed", strconv.FormatUint(o.Seed, 10),
	}
	if o.Check {
		args = append(args, "--check")
	}
	if o.Profile != "" {
		args = append(args, "--profile", o.Profile)
	}
	return args
}
