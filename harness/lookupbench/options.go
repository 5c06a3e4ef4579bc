// SPDX-License-Identifier: Apache-2.0

package lookupbench

import (
	"fmt"
	"slices"
	"time"

	"kindex/harness/trial"
)

// Options say what is measured.
type Options struct {
	Memberships int           `json:"memberships"`
	Instances   int           `json:"instances"`
	Questions   int           `json:"questions"` // different ones
	Rounds      int           `json:"rounds"`
	Trial       time.Duration `json:"trial_ns"` // what is timed of one, a tenth of it before that
	Connections int           `json:"connections"`
	InFlight    int           `json:"in_flight"`
	MaxForeign  float64       `json:"max_foreign"`
	Arms        []string      `json:"arms"`
	Control     string        `json:"control"` // an arm that is measured twice; "": none
	Seed        uint64        `json:"seed"`
	Out         string        `json:"-"` // folder of report and plots; "": none
}

// The arms.
const (
	ArmProcess    = "process"
	ArmWord       = "word"
	ArmShmPinned  = "shm-pinned"
	ArmShm        = "shm"
	ArmUnary      = "grpc-unary"
	ArmStream     = "grpc-stream"
	ArmStreamMany = "grpc-stream-many"
	ArmHash       = "http-hash"
	ArmHashMany   = "http-hash-many"
	ArmTokens     = "http-tokens"
	ArmDynamo     = "dynamo-hash"
	ArmDynamoMany = "dynamo-hash-many"
	ArmDynamoText = "dynamo-tokens"
)

// ControlNone is the control of those who want none.
const ControlNone = "none"

// Arms are all arms.
var Arms = []string{
	ArmProcess, ArmWord, ArmShmPinned, ArmShm, ArmUnary, ArmStream, ArmStreamMany,
	ArmHash, ArmHashMany, ArmTokens, ArmDynamo, ArmDynamoMany, ArmDynamoText,
}

// DefaultOptions are those of the published figures, with few rounds.
func DefaultOptions() Options {
	return Options{
		Memberships: 1_000_000, Instances: 16, Questions: 2_048, Rounds: 3, Trial: time.Second,
		Connections: 8, InFlight: 32, MaxForeign: 0.3, Arms: slices.Clone(Arms), Control: ArmHash, Seed: 1,
	}
}

// The bounds of what can be asked for.
const (
	maxMemberships = 100_000_000
	maxInstances   = 256
	maxQuestions   = 100_000
	maxRounds      = 1_000
	maxTrial       = time.Minute
	minTrial       = 10 * time.Millisecond
	maxMany        = 1_024
)

// Validate returns the first fault, naming the flag.
func (o *Options) Validate() error {
	for i, a := range o.Arms {
		if !slices.Contains(Arms, a) || slices.Contains(o.Arms[:i], a) {
			return fmt.Errorf("--arms %q: must be different ones of %s, with commas between", a, trial.OneOf(Arms))
		}
	}
	for _, b := range []struct {
		name           string
		got, low, high int
	}{
		{"memberships", o.Memberships, promptBlocks * holdersEach, maxMemberships},
		{"instances", o.Instances, holdersEach, maxInstances},
		{"questions", o.Questions, 1, maxQuestions},
		{"rounds", o.Rounds, 1, maxRounds},
		{"connections", o.Connections, 1, maxMany},
		{"in-flight", o.InFlight, 1, maxMany},
	} {
		if b.got < b.low || b.got > b.high {
			return fmt.Errorf("--%s %d: must be %d to %d", b.name, b.got, b.low, b.high)
		}
	}
	switch {
	case len(o.Arms) == 0:
		return fmt.Errorf("--arms: must be different ones of %s, with commas between", trial.OneOf(Arms))
	case o.Trial < minTrial || o.Trial > maxTrial:
		return fmt.Errorf("--trial %v: must be %v to %v", o.Trial, minTrial, maxTrial)
	case !(o.MaxForeign > 0): // so that no number is refused, too
		return fmt.Errorf("--max-foreign %g: must be above 0", o.MaxForeign)
	case o.Control != "" && !slices.Contains(o.Arms, o.Control):
		return fmt.Errorf("--control %s: must be %s, or one of the arms that are measured", o.Control, ControlNone)
	}
	return nil
}
