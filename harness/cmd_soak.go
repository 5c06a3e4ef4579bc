// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"

	"kindex/harness/drill"
	"kindex/harness/trial"
)

func runSoak(ctx context.Context, c *command, args []string, stdout, stderr io.Writer) int {
	o := drill.DefaultSoakOptions()
	fs := flag.NewFlagSet(c.name, flag.ContinueOnError)
	fs.DurationVar(&o.Duration, "duration", o.Duration, "of the whole series, what was before an interruption included")
	fs.DurationVar(&o.Window, "window", o.Window, "faults under load, then silence, and all is held against the truth")
	fs.Uint64Var(&o.Seed, "seed", o.Seed, "of what is published, of the faults and their times")
	fs.IntVar(&o.Workers, "workers", o.Workers, "engines; every other one is followed by way of a relay")
	fs.IntVar(&o.Rate, "rate", o.Rate, "batches a second of each engine")
	fs.StringVar(&o.Out, "out", o.Out, "folder: windows.jsonl, a line a window; summary.json")
	fs.BoolVar(&o.Resume, "resume", false, "go on with the series in --out, with the same flags, until --duration is full")
	asJSON := fs.Bool("json", false, "print the summary as one JSON object")
	rest, code, done := c.parse(fs, args, stdout, stderr)
	if done {
		return code
	}
	err := o.Validate()
	if len(rest) > 0 {
		err = fmt.Errorf("unexpected argument %q: everything is a flag", rest[0])
	}
	if err != nil {
		fmt.Fprintf(stderr, "harness %s: %v\n", c.name, err)
		return exitUsage
	}
	o.Progress = trial.NewProgress(stderr, c.name)
	s, err := drill.Soak(ctx, o)
	switch {
	case err != nil:
	case *asJSON:
		err = s.WriteJSON(stdout)
	default:
		err = s.WriteText(stdout)
	}
	if err != nil {
		fmt.Fprintf(stderr, "harness %s: %v\n", c.name, err)
		if _, ok := errors.AsType[*drill.FolderError](err); ok {
			return exitUsage
		}
		return exitDiffers
	}
	if !s.OK {
		return exitDiffers
	}
	return exitOK
}
