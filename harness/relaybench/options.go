// SPDX-License-Identifier: Apache-2.0

package relaybench

import (
	"fmt"
	"slices"

	"kindex/harness/trial"
)

// Options say what is measured.
type Options struct {
	Rates   []int // batches a second, one figure each
	Seconds int   // of each rate
	Blocks  int   // of a batch
	State   int   // live blocks for the snapshot; 0: that is left out
	Rounds  int
	Arms    []string
	Seed    uint64
}

// The arms.
const (
	ArmPeerOurs = "ours"     // our relay, the peer's contract
	ArmOwn      = "ours-own" // our relay, our contract
	ArmSMG      = "smg"      // the peer's relay
)

// Arms are all arms.
var Arms = []string{ArmPeerOurs, ArmOwn, ArmSMG}

// DefaultOptions are those of the published figures, with few rounds.
func DefaultOptions() Options {
	return Options{Rates: []int{500, 2_000}, Seconds: 5, Blocks: 8, State: 200_000, Rounds: 3, Arms: slices.Clone(Arms), Seed: 1}
}

// The bounds of what can be asked for.
const (
	maxRate    = 20_000
	maxSeconds = 600
	maxBlocks  = 1_024
	maxState   = 5_000_000
	maxRounds  = 100
)

// Validate returns the first fault, naming the flag.
func (o *Options) Validate() error {
	if len(o.Rates) == 0 {
		return fmt.Errorf("--rate: must be numbers from 1 to %d with commas between, such as 500,2000", maxRate)
	}
	for _, r := range o.Rates {
		if r < 1 || r > maxRate {
			return fmt.Errorf("--rate %d: must be 1 to %d", r, maxRate)
		}
	}
	for _, a := range o.Arms {
		if !slices.Contains(Arms, a) {
			return fmt.Errorf("--arms %q: must be of %s, with commas between", a, trial.OneOf(Arms))
		}
	}
	for _, b := range []struct {
		name           string
		got, low, high int
	}{
		{"seconds", o.Seconds, 1, maxSeconds},
		{"blocks", o.Blocks, 1, maxBlocks},
		{"state", o.State, 0, maxState},
		{"rounds", o.Rounds, 1, maxRounds},
	} {
		if b.got < b.low || b.got > b.high {
			return fmt.Errorf("--%s %d: must be %d to %d", b.name, b.got, b.low, b.high)
		}
	}
	if len(o.Arms) == 0 {
		return fmt.Errorf("--arms: must be of %s, with commas between", trial.OneOf(Arms))
	}
	return nil
}
