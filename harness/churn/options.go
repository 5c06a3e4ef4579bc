// SPDX-License-Identifier: Apache-2.0

package churn

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
	Memberships int // that the index stays at
	Pool        int // prompts there are
	Prompts     int // of them held by each worker
	Length      int // blocks of a prompt
	Decode      int // blocks of a sequence, on average
	Segments    int
	Events      int     // of a segment; 0: half as many as decode blocks are held
	Minutes     float64 // all segments together; 0: by events
}

// active is how many sequences a worker decodes at once.
const active = 4

// Bounds of the flags.
const (
	maxWorkers     = 1_024
	maxMemberships = 1 << 28
	maxPool        = 1 << 20
	maxLength      = 1 << 16
	maxDecode      = 4_096
	maxSegments    = 1_000
	maxEvents      = 1 << 32
	maxMinutes     = 1_440
)

// DefaultOptions keep the published corpus's 128 workers at 16,384 blocks each.
func DefaultOptions() Options {
	return Options{
		Index: shard.Kinds[0], Level: asm.LevelAuto, Seed: 1, Workers: 128, Memberships: 128 * 16_384,
		Pool: 512, Prompts: 64, Length: 64, Decode: 16, Segments: 12,
	}
}

// longest is how many times the mean a sequence may be long.
const longest = 8

// capacity returns the blocks that each worker holds.
func (o *Options) capacity() int { return o.Memberships / o.Workers }

// decoding returns the decode blocks that all workers hold together.
func (o *Options) decoding() int { return o.Workers * (o.capacity() - o.Prompts*o.Length) }

// Validate reports what cannot be right, the flag's name first.
func (o *Options) Validate() error {
	for _, x := range []struct {
		name          string
		value, lo, hi int
	}{
		{"--workers", o.Workers, 1, maxWorkers},
		{"--memberships", o.Memberships, 1, maxMemberships},
		{"--pool", o.Pool, 1, maxPool},
		{"--prompts", o.Prompts, 1, o.Pool},
		{"--prompt-blocks", o.Length, 1, maxLength},
		{"--decode-blocks", o.Decode, 1, maxDecode},
		{"--segments", o.Segments, 3, maxSegments},
		{"--events", o.Events, 0, maxEvents},
	} {
		if x.value < x.lo || x.value > x.hi {
			return fmt.Errorf("%s %d: must be %d to %d", x.name, x.value, x.lo, x.hi)
		}
	}
	switch least := o.Workers * (o.Prompts*o.Length + (active+1)*longest*o.Decode); {
	case !slices.Contains(shard.Kinds, o.Index):
		return fmt.Errorf("--kv-index %q: must be %s", o.Index, strings.Join(shard.Kinds, ", "))
	case o.Memberships < least:
		return fmt.Errorf("--memberships %d: must be at least %d, for the prompts and the sequences being decoded of %d workers", o.Memberships, least, o.Workers)
	case !(o.Minutes >= 0 && o.Minutes <= maxMinutes):
		return fmt.Errorf("--minutes %g: must be above 0 to %d", o.Minutes, maxMinutes)
	case o.Minutes > 0 && o.Events > 0:
		return fmt.Errorf("--events %d with --minutes %g: give one of them", o.Events, o.Minutes)
	}
	if err := asm.CheckLevel(o.Level); err != nil {
		return fmt.Errorf("--cpu-features %s: %w", o.Level, err)
	}
	return nil
}

// Args returns the flags that give a child these options.
func (o *Options) Args() []string {
	args := []string{
		"churn", "--one", "--json", "--kv-index", o.Index, "--cpu-features", o.Level, "--seed", strconv.FormatUint(o.Seed, 10),
		"--minutes", strconv.FormatFloat(o.Minutes, 'g', -1, 64),
	}
	for _, x := range []struct {
		name  string
		value int
	}{
		{"--workers", o.Workers},
		{"--memberships", o.Memberships},
		{"--pool", o.Pool},
		{"--prompts", o.Prompts},
		{"--prompt-blocks", o.Length},
		{"--decode-blocks", o.Decode},
		{"--segments", o.Segments},
		{"--events", o.Events},
	} {
		args = append(args, x.name, strconv.Itoa(x.value))
	}
	return args
}
