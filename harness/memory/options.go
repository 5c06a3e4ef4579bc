// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"kindex/asm"
	"kindex/shard"
)

// Options say what one trial measures.
type Options struct {
	Index       string
	Level       string // of the kernels
	Seed        uint64
	Workers     int
	Holders     int  // of each chain
	Private     bool // each worker has names of its own for blocks
	Memberships int
	Mean        int // blocks of a chain
	Turnover    float64
}

// Limits of the flags. The mean's is that of lengths, which go up to 8 times it.
const (
	maxWorkers     = 4_096
	maxMemberships = 1 << 28
	maxMean        = 8_192
	maxTurnover    = 100
)

// DefaultOptions are the fleet of the published corpus: 128 workers of 16,384 blocks.
func DefaultOptions() Options {
	return Options{Index: shard.Kinds[0], Level: asm.LevelAuto, Seed: 1, Workers: 128, Holders: 1, Memberships: 128 * 16_384, Mean: 376, Turnover: 1}
}

// Validate reports what cannot be right, the flag's name first.
func (o *Options) Validate() error {
	switch {
	case !slices.Contains(shard.Kinds, o.Index):
		return fmt.Errorf("--kv-index %q: must be %s", o.Index, strings.Join(shard.Kinds, ", "))
	case o.Workers < 1 || o.Workers > maxWorkers:
		return fmt.Errorf("--workers %d: must be 1 to %d", o.Workers, maxWorkers)
	case o.Holders < 1 || o.Holders > o.Workers:
		return fmt.Errorf("--holders %d: must be 1 to --workers %d", o.Holders, o.Workers)
	case o.Mean < 1 || o.Mean > maxMean:
		return fmt.Errorf("--chain %d: must be 1 to %d", o.Mean, maxMean)
	case o.Memberships < o.Holders*o.Mean || o.Memberships > maxMemberships:
		return fmt.Errorf("--memberships %d: must be %d (one chain) to %d", o.Memberships, o.Holders*o.Mean, maxMemberships)
	case !(o.Turnover >= 0 && o.Turnover <= maxTurnover):
		return fmt.Errorf("--turnover %g: must be 0 to %d", o.Turnover, maxTurnover)
	}
	if err := asm.CheckLevel(o.Level); err != nil {
		return fmt.Errorf("--cpu-features %s: %w", o.Level, err)
	}
	return nil
}

// Args returns the flags that give a child these options.
func (o *Options) Args() []string {
	args := []string{
		"memory", "--one", "--json", "--kv-index", o.Index, "--cpu-features", o.Level, "--seed", strconv.FormatUint(o.Seed, 10),
		"--workers", strconv.Itoa(o.Workers), "--holders", strconv.Itoa(o.Holders), "--memberships", strconv.Itoa(o.Memberships),
		"--chain", strconv.Itoa(o.Mean), "--turnover", strconv.FormatFloat(o.Turnover, 'g', -1, 64),
	}
	if o.Private {
		args = append(args, "--private")
	}
	return args
}
