// SPDX-License-Identifier: Apache-2.0

// Before: the command line. After: soak_world.go; then soak_summary.go.

package drill

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"kindex/harness/publish"
	"kindex/harness/trial"
)

// Limits of a soak. Windows of a minute hold every fault and a quiet point; shorter ones
// are for tests.
const (
	minWindow  = 15 * time.Second
	maxWindow  = time.Hour
	maxSoak    = 30 * 24 * time.Hour
	maxWorkers = 64
)

// SoakOptions shape a soak.
type SoakOptions struct {
	Duration time.Duration // of all windows, those before an interruption included
	Window   time.Duration
	Seed     uint64
	Workers  int    // engines: every other one is followed by way of a relay
	Rate     int    // batches a second of each engine
	Out      string // folder of windows.jsonl, soak.json and summary.json
	Resume   bool   // go on with the series that is there
	Progress *trial.Progress

	// Faults of the judge's own eyes, for tests.
	plant plant
	lie   func(status string) string
}

// DefaultSoakOptions are two hours of four engines.
func DefaultSoakOptions() SoakOptions {
	return SoakOptions{Duration: 2 * time.Hour, Window: time.Minute, Seed: 1, Workers: 4, Rate: 50, Out: "soak"}
}

// Validate returns the first fault, naming the flag.
func (o *SoakOptions) Validate() error {
	switch {
	case o.Window < minWindow || o.Window > maxWindow:
		return fmt.Errorf("--window %v: must be %v to %v", o.Window, minWindow, maxWindow)
	case o.Duration < o.Window || o.Duration > maxSoak:
		return fmt.Errorf("--duration %v: must be %v (one window) to %v", o.Duration, o.Window, maxSoak)
	case o.Workers < 1 || o.Workers > maxWorkers:
		return fmt.Errorf("--workers %d: must be 1 to %d", o.Workers, maxWorkers)
	case o.Rate < 1 || o.Rate > 1_000:
		return fmt.Errorf("--rate %d: must be 1 to 1000 batches a second", o.Rate)
	case o.Out == "":
		return errors.New("--out: must name a folder")
	}
	return nil
}

// series says what windows.jsonl is of. Windows of one series are comparable.
type series struct {
	Seed    uint64  `json:"seed"`
	Workers int     `json:"workers"`
	Rate    int     `json:"rate"`
	Window  float64 `json:"window_s"`
}

func (o *SoakOptions) series() series { return series{o.Seed, o.Workers, o.Rate, o.Window.Seconds()} }

// The files of a soak.
const (
	seriesFile  = "soak.json"
	windowsFile = "windows.jsonl"
	summaryFile = "summary.json"
)

// FolderError says why a soak cannot be kept in its folder: nothing was run.
type FolderError struct{ error }

func (e *FolderError) Unwrap() error { return e.error }

// openSeries prepares the folder and returns the windows that are there already.
func (o *SoakOptions) openSeries() ([]Window, error) {
	path := filepath.Join(o.Out, seriesFile)
	b, err := os.ReadFile(path) //nolint:gosec // the caller's folder
	switch {
	case errors.Is(err, os.ErrNotExist) && o.Resume:
		return nil, fmt.Errorf("--resume: %s: there is no soak to go on with", o.Out)
	case errors.Is(err, os.ErrNotExist):
		if err := os.MkdirAll(o.Out, 0o750); err != nil {
			return nil, err
		}
		if b, err = json.Marshal(o.series()); err != nil {
			return nil, err
		}
		if err := os.WriteFile(filepath.Join(o.Out, windowsFile), nil, 0o600); err != nil {
			return nil, err
		}
		return nil, os.WriteFile(path, append(b, '\n'), 0o600)
	case err != nil:
		return nil, err
	case !o.Resume:
		return nil, fmt.Errorf("%s: a soak is there: --resume goes on with it, another --out begins a new one", path)
	}
	var was series
	if err := json.Unmarshal(b, &was); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if was != o.series() {
		return nil, fmt.Errorf("--resume: %s is of seed %d, %d workers, rate %d and windows of %v s: give the same", path, was.Seed, was.Workers, was.Rate, was.Window)
	}
	return readWindows(filepath.Join(o.Out, windowsFile))
}

// readWindows reads a series. A last line that was cut off by an interruption is taken
// away, in the file too.
func readWindows(path string) ([]Window, error) {
	b, err := os.ReadFile(path) //nolint:gosec // the caller's folder
	if err != nil {
		return nil, err
	}
	var out []Window
	whole := 0
	for rest := b; ; {
		line, after, ok := bytes.Cut(rest, []byte("\n"))
		if !ok {
			break
		}
		var w Window
		if err := json.Unmarshal(line, &w); err != nil {
			return nil, fmt.Errorf("%s: line %d: %w", path, len(out)+1, err)
		}
		if w.Number != len(out)+1 {
			return nil, fmt.Errorf("%s: line %d is window %d", path, len(out)+1, w.Number)
		}
		out = append(out, w)
		rest = after
		whole = len(b) - len(rest)
	}
	if whole < len(b) {
		return out, os.Truncate(path, int64(whole))
	}
	return out, nil
}

func appendWindow(dir string, w *Window) error {
	b, err := json.Marshal(w)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(dir, windowsFile), os.O_APPEND|os.O_WRONLY, 0) //nolint:gosec // the caller's folder
	if err != nil {
		return err
	}
	_, err = f.Write(append(b, '\n'))
	return errors.Join(err, f.Close())
}

// Soak runs, or goes on with, a soak. When ctx ends, the windows so far stay, to be gone
// on with.
//
// Errors: a [FolderError], what keeps it from running, ctx's. What it finds wrong is in
// the summary.
func Soak(ctx context.Context, o SoakOptions) (*SoakSummary, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	windows, err := o.openSeries()
	if err != nil {
		return nil, &FolderError{err}
	}
	total := int(o.Duration / o.Window)
	if len(windows) < total {
		windows, err = o.run(ctx, windows, total)
		if err != nil {
			return nil, err
		}
	}
	s := summarize(o.series(), windows)
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return nil, err
	}
	return s, os.WriteFile(filepath.Join(o.Out, summaryFile), append(b, '\n'), 0o600)
}

// run adds windows until there are so many.
func (o *SoakOptions) run(ctx context.Context, windows []Window, total int) (_ []Window, err error) {
	e := &Env{o: Options{Seed: o.Seed, Slack: 1, Progress: o.Progress, plant: o.plant, lie: o.lie}, name: "soak"}
	defer func() { err = errors.Join(err, e.close()) }()
	segment := 1
	if n := len(windows); n > 0 {
		segment = windows[n-1].Segment + 1
	}
	load := publish.DefaultOptions()
	load.Capacity, load.Rate = 1_000, o.Rate
	world, err := e.openWorld(ctx, o.Workers, load)
	if err != nil {
		return windows, err
	}
	for number := len(windows) + 1; number <= total; number++ {
		w, err := world.window(ctx, number, segment, o.Window)
		if err != nil {
			return windows, err
		}
		if err := appendWindow(o.Out, w); err != nil {
			return windows, err
		}
		windows = append(windows, *w)
		o.Progress.Alwaysf("window %d of %d: %s", number, total, w.line())
	}
	return windows, nil
}
