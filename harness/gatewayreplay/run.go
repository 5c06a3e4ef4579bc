// SPDX-License-Identifier: Apache-2.0

package gatewayreplay

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"

	"kindex/harness/openloop"
	"kindex/harness/proc"
	"kindex/harness/trial"
)

// Figures are what a run came to. Times are in milliseconds, shares from 0 to 1.
type Figures struct {
	TTFT50   float64 `json:"ttft_p50_ms"`
	TTFT99   float64 `json:"ttft_p99_ms"`
	Goodput  float64 `json:"goodput"`
	Hit      float64 `json:"hit_over_oracle"`
	Best     float64 `json:"hit_over_best_at_arrival"`
	Balance  float64 `json:"requests_max_over_mean"`
	Computed float64 `json:"computed_max_over_mean"`
	CPU      float64 `json:"gateway_cpu_ms_per_request"`
	RSS      float64 `json:"gateway_rss_mb"`
}

// Run is one variant of one round.
type Run struct {
	Variant string  `json:"variant"`
	Round   int     `json:"round"` // from 1
	Figures Figures `json:"figures"`
	OK      int     `json:"ok"`
	Errors  int     `json:"errors"`  // failed, dropped or never sent
	Differs int     `json:"differs"` // answers that tell another number of cached tokens than the engine
	Valid   bool    `json:"valid"`   // the client kept up
	LateMs  float64 `json:"late_p99_ms"`
	Foreign float64 `json:"foreign_cpus"`
	Commit  string  `json:"commit"`
}

// plan is what must be the same when a series is gone on with.
type plan struct {
	Rows     string            `json:"rows"`
	Speedup  float64           `json:"speedup"`
	Workers  int               `json:"workers"`
	Blocks   int               `json:"blocks"`
	Context  int               `json:"context"`
	Seed     uint64            `json:"seed"`
	Gateway  []string          `json:"gateway_flags"`
	Programs map[string]string `json:"programs"` // SHA-256
}

// The files of a series.
const (
	filePlan    = "plan.json"
	fileResult  = "result.json"
	fileMetrics = "metrics.txt"
	fileReport  = "report.json"
	fileTable   = "table.md"
)

// Measure does all runs that are not done yet, and writes and returns what all showed.
// With ctx's end it stops; what is done is kept.
func Measure(ctx context.Context, o *Options, p *trial.Progress, stderr io.Writer) (*Report, error) {
	found, err := find(ctx, o)
	if err != nil {
		return nil, err
	}
	defer func() { _ = found.close() }()
	if err := open(o, found); err != nil {
		return nil, err
	}
	p.Alwaysf("results are kept in %s", o.Out)
	r := &Report{Machine: trial.ThisMachine(), Options: *o}
	for round := 1; round <= o.Rounds; round++ {
		for i := range o.Variants {
			variant := o.Variants[(i+round-1)%len(o.Variants)]
			dir := filepath.Join(o.Out, "runs", variant, strconv.Itoa(round))
			run, err := kept(dir)
			if err == nil && run == nil {
				p.Alwaysf("round %d of %d: %s", round, o.Rounds, variant)
				run, err = one(ctx, o, found, variant, round, dir, stderr)
			}
			if err != nil {
				return nil, fmt.Errorf("round %d: %s: %w", round, variant, err)
			}
			f := &run.Figures
			p.Alwaysf("round %d of %d: %s: TTFT p50 %.0f ms, p99 %.0f ms, goodput %.3f, hit/oracle %.3f, %d errors", round, o.Rounds, variant, f.TTFT50, f.TTFT99, f.Goodput, f.Hit, run.Errors)
			r.Runs = append(r.Runs, run)
		}
	}
	r.sum()
	return r, r.save(o.Out)
}

// open makes o.Out a series' folder, or finds that it is this series'.
func open(o *Options, found *programs) error {
	if err := os.MkdirAll(o.Out, 0o755); err != nil { //nolint:gosec // results are for everybody
		return err
	}
	want := plan{o.Rows.String(), o.Speedup, o.Workers, o.Blocks, o.Context, o.Seed, o.Gateway, map[string]string{}}
	for name, path := range map[string]string{"gateway": found.gateway, "indexsrv": found.index, "mockworker": found.engines} {
		if path == "" {
			continue
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		sum := sha256.Sum256(b)
		want.Programs[name] = hex.EncodeToString(sum[:])
	}
	name := filepath.Join(o.Out, filePlan)
	old, err := os.ReadFile(name) //nolint:gosec // the caller's
	if errors.Is(err, os.ErrNotExist) {
		return writeJSON(name, &want)
	}
	if err != nil {
		return err
	}
	var had plan
	if err := json.Unmarshal(old, &had); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	for program, sum := range had.Programs { // a program that this time's variants do not need
		if want.Programs[program] == "" {
			want.Programs[program] = sum
		}
	}
	for program, sum := range want.Programs { // or the first one's did not
		if had.Programs[program] == "" {
			had.Programs[program] = sum
		}
	}
	a, _ := json.Marshal(&had) //nolint:errchkjson // plain values
	b, _ := json.Marshal(&want)
	if !bytes.Equal(a, b) {
		return fmt.Errorf("%s is of another series (other rows, fleet, flags or programs): give another --out", name)
	}
	return writeJSON(name, &want)
}

// kept returns what a run came to; nil: it is to be done.
func kept(dir string) (*Run, error) {
	b, err := os.ReadFile(filepath.Join(dir, fileResult)) //nolint:gosec // the caller's
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	r := new(Run)
	if err := json.Unmarshal(b, r); err != nil {
		return nil, fmt.Errorf("%s: %w: remove it to have the run done again", filepath.Join(dir, fileResult), err)
	}
	return r, nil
}

// one does one run.
func one(ctx context.Context, o *Options, found *programs, variant string, round int, dir string, stderr io.Writer) (*Run, error) {
	rig, err := found.start(ctx, o, variant)
	defer rig.close()
	if err != nil {
		return nil, err
	}
	q := o.replay(rig.addr, rig.admin)
	q.Model, q.Out = model, dir
	if inWords(variant) {
		q.Prompt, q.Words = openloop.PromptText, filepath.Join(found.dir, fileWords)
	}
	before := trial.CPUs()
	played, err := openloop.Run(ctx, &q, stderr)
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s := played.Summary
	cost, err := proc.CostOf(rig.gateway.PID())
	if err != nil {
		return nil, err
	}
	used := cost.CPU
	for _, p := range []*proc.Process{rig.engines, rig.index} {
		if p != nil {
			if c, err := proc.CostOf(p.PID()); err == nil {
				used += c.CPU
			}
		}
	}
	r := &Run{Variant: variant, Round: round, Figures: figures(s, cost), Foreign: before.Foreign(trial.CPUs(), used.Seconds()), Commit: s.Machine.Commit}
	r.OK, r.Errors, r.Differs = s.Requests.OK, s.Requests.Rows-s.Requests.OK, s.Cache.Differs
	r.Valid, r.LateMs = s.Valid, s.Lateness.P99
	if err := played.WriteDir(dir); err != nil {
		return nil, err
	}
	at := portGateway
	if peer(variant) {
		at = portMetrics
	}
	if page, err := get(ctx, "http://"+rig.at(at)+"/metrics"); err == nil {
		if err := os.WriteFile(filepath.Join(dir, fileMetrics), page, 0o600); err != nil {
			return nil, err
		}
	}
	return r, writeJSON(filepath.Join(dir, fileResult), r)
}

func figures(s *openloop.Summary, cost proc.Cost) Figures {
	f := Figures{TTFT50: s.TTFT.P50, TTFT99: s.TTFT.P99, Goodput: s.Goodput.Share, RSS: float64(cost.RSS) / 1e6}
	f.CPU = cost.CPU.Seconds() * 1e3 / float64(max(s.Requests.OK, 1))
	if s.Cache.OverOracle != nil {
		f.Hit = *s.Cache.OverOracle
	}
	if s.Cache.OverBest != nil {
		f.Best = *s.Cache.OverBest
	}
	if s.Balance != nil {
		f.Balance, f.Computed = s.Balance.Requests, s.Balance.Computed
	}
	return f
}

// writeJSON writes a file whole or not at all.
func writeJSON(name string, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(name+".part", append(b, '\n'), 0o644); err != nil { //nolint:gosec // results are for everybody
		return err
	}
	return os.Rename(name+".part", name)
}
