// SPDX-License-Identifier: Apache-2.0

package exact

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"kindex/asm"
	"kindex/shard"
)

// Kinds are what is held against the reference.
var Kinds = []string{"chain", "positional"}

// Options say what one trial compares.
type Options struct {
	Corpus   string
	LimitOps int // first operations only; 0: all
	Level    string
	Seed     uint64
	Kinds    []string
	Shards   []int
	Steps    int   // of each workload with holes
	Lookups  int64 // questions at least; 0: those of corpus and holes
}

// Bounds of the flags.
const (
	maxSteps   = 10_000_000
	maxLookups = 1 << 40
)

// DefaultOptions compare all kinds with 1, 2 and 4 shards.
func DefaultOptions() Options {
	return Options{Level: asm.LevelAuto, Seed: 7, Kinds: Kinds, Shards: []int{1, 2, 4}, Steps: 20_000}
}

// Validate reports what cannot be right, the flag's name first.
func (o *Options) Validate() error {
	for _, k := range o.Kinds {
		if !slices.Contains(Kinds, k) {
			return fmt.Errorf("--kv-index %q: must be of %s, with commas between", k, strings.Join(Kinds, ", "))
		}
	}
	for _, n := range o.Shards {
		if n < 1 || n > shard.MaxShards {
			return fmt.Errorf("--shards %d: must be 1 to %d", n, shard.MaxShards)
		}
	}
	switch {
	case o.LimitOps < 0:
		return fmt.Errorf("--limit-ops %d: must be at least 1", o.LimitOps)
	case o.Steps < 0 || o.Steps > maxSteps:
		return fmt.Errorf("--steps %d: must be 0 to %d", o.Steps, maxSteps)
	case o.Lookups < 0 || o.Lookups > maxLookups:
		return fmt.Errorf("--lookups %d: must be 1 to %d", o.Lookups, int64(maxLookups))
	}
	if err := asm.CheckLevel(o.Level); err != nil {
		return fmt.Errorf("--cpu-features %s: %w", o.Level, err)
	}
	return nil
}

// Args returns the flags that give a child these options.
func (o *Options) Args() []string {
	var shards []string
	for _, n := range o.Shards {
		shards = append(shards, strconv.Itoa(n))
	}
	return []string{
		"exact", "--one", "--json", "--corpus", o.Corpus, "--cpu-features", o.Level, "--seed", strconv.FormatUint(o.Seed, 10),
		"--kv-index", strings.Join(o.Kinds, ","), "--shards", strings.Join(shards, ","), "--limit-ops", strconv.Itoa(o.LimitOps),
		"--steps", strconv.Itoa(o.Steps), "--lookups", strconv.FormatInt(o.Lookups, 10),
	}
}

// Levels are the kernels there are on this machine, from the greatest that o allows.
func Levels(greatest string) []string {
	all := []string{"avx512", "avx2", "generic"}
	var out []string
	for _, l := range all[max(0, slices.Index(all, greatest)):] {
		if asm.CheckLevel(l) == nil {
			out = append(out, l)
		}
	}
	return out
}
