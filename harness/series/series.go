// SPDX-License-Identifier: Apache-2.0

package series

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"kindex/harness/trial"
)

// Figures are what one trial measured, by name.
type Figures map[string]float64

// Arm is one thing to measure.
type Arm struct {
	Name string
	// Only are the modes that this arm knows; nil: all.
	Only []string
	// Measure runs one trial in a fresh process. raw is kept with it.
	Measure func(ctx context.Context, mode string) (f Figures, raw json.RawMessage, ran trial.Ran, err error)
}

func (a *Arm) knows(mode string) bool { return a.Only == nil || slices.Contains(a.Only, mode) }

// Plan says what a series measures. All but Rounds and MaxForeign must be the same
// when it is resumed.
type Plan struct {
	Corpus    string            `json:"corpus"`
	CorpusSum string            `json:"corpus_sha256"`
	Seed      uint64            `json:"seed"`
	Arms      []string          `json:"arms"` // the first is what ratios are of
	Modes     []string          `json:"modes"`
	Settings  map[string]string `json:"settings"`

	Rounds     int     `json:"-"`
	MaxForeign float64 `json:"-"` // CPUs
}

// Trial is one line of trials.jsonl.
type Trial struct {
	Round     int             `json:"round"`
	Arm       string          `json:"arm"`
	Mode      string          `json:"mode"`
	Attempt   int             `json:"attempt"`
	Began     time.Time       `json:"began"`
	Wall      float64         `json:"process_wall_s"`
	CPU       float64         `json:"process_cpu_s"`
	Foreign   float64         `json:"foreign_cpus"`
	Discarded bool            `json:"discarded"`
	Figures   Figures         `json:"figures"`
	Raw       json.RawMessage `json:"raw,omitempty"`
}

// slot names one trial of the plan.
type slot struct {
	round     int
	arm, mode string
}

// order returns the trials of one round as they are to be run.
func order(p *Plan, arms []Arm, round int) []slot {
	var out []slot
	for i := range arms {
		for _, mode := range p.Modes {
			if arms[i].knows(mode) {
				out = append(out, slot{round, arms[i].Name, mode})
			}
		}
	}
	rng := rand.New(rand.NewPCG(p.Seed, uint64(round))) //nolint:gosec // seeded on purpose
	rng.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	return out
}

// Run measures what is left of the plan, keeping every trial in dir, and returns all.
//
// Errors: a dir that holds another series; an arm's; a machine too busy.
func Run(ctx context.Context, dir string, p *Plan, arms []Arm, say *trial.Progress) ([]Trial, error) {
	s, err := openStore(dir, p)
	if err != nil {
		return nil, err
	}
	defer func() { _ = s.close() }()
	attempts := map[slot]int{}
	done := map[slot]bool{}
	for _, t := range s.trials {
		k := slot{t.Round, t.Arm, t.Mode}
		attempts[k]++
		done[k] = done[k] || !t.Discarded
	}
	if n := len(s.trials); n > 0 {
		say.Alwaysf("resuming: %d trials are in %s", n, dir)
	}
	for round := 1; round <= p.Rounds; round++ {
		for i, k := range order(p, arms, round) {
			for tries := 0; !done[k]; tries++ {
				if tries >= trial.MaxDiscarded {
					return s.trials, fmt.Errorf("%s, %s, round %d: %w, then start again to resume", k.arm, k.mode, round, trial.ErrBusy(tries, p.MaxForeign))
				}
				t, err := measure(ctx, arms, k, p.MaxForeign)
				if err != nil {
					return s.trials, err
				}
				attempts[k]++
				t.Attempt = attempts[k]
				if err := s.add(t); err != nil {
					return s.trials, err
				}
				done[k] = !t.Discarded
				say.Alwaysf("round %d of %d, trial %d: %s %s, %.2f foreign CPUs%s", round, p.Rounds, i+1, k.arm, k.mode, t.Foreign, map[bool]string{true: ": discarded"}[t.Discarded])
			}
		}
	}
	return s.trials, s.close()
}

func measure(ctx context.Context, arms []Arm, k slot, maxForeign float64) (Trial, error) {
	i := slices.IndexFunc(arms, func(a Arm) bool { return a.Name == k.arm })
	t := Trial{Round: k.round, Arm: k.arm, Mode: k.mode, Began: time.Now().UTC().Truncate(time.Second)}
	f, raw, ran, err := arms[i].Measure(ctx, k.mode)
	if err != nil {
		return t, fmt.Errorf("%s, %s, round %d: %w", k.arm, k.mode, k.round, err)
	}
	t.Figures, t.Raw, t.Wall, t.CPU, t.Foreign = f, raw, ran.Wall, ran.CPU, ran.Foreign
	t.Discarded = t.Foreign > maxForeign
	return t, nil
}
