// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"flag"
	"fmt"
	"io"

	"kindex/harness/drill"
	"kindex/harness/trial"
)

func runDrill(ctx context.Context, c *command, args []string, stdout, stderr io.Writer) int {
	o := drill.Options{Seed: 1, Slack: 1}
	fs := flag.NewFlagSet(c.name, flag.ContinueOnError)
	fs.Uint64Var(&o.Seed, "seed", o.Seed, "of what is published")
	asJSON := fs.Bool("json", false, "print one JSON object")
	rest, code, done := c.parse(fs, args, stdout, stderr)
	if done {
		if code == exitOK {
			drill.WriteList(stdout)
		}
		return code
	}
	if len(rest) != 1 {
		fmt.Fprintf(stderr, "harness %s: give one name: %s\n", c.name, trial.OneOf(append(drill.Names(), drill.GroupNames()...)))
		return exitUsage
	}
	drills, err := drill.Select(rest[0])
	if err != nil {
		fmt.Fprintf(stderr, "harness %s: %v\n", c.name, err)
		return exitUsage
	}
	o.Progress = trial.NewProgress(stderr, c.name)
	r, err := drill.Run(ctx, drills, o)
	switch {
	case err != nil:
	case *asJSON:
		err = r.WriteJSON(stdout)
	default:
		err = r.WriteText(stdout)
	}
	if err != nil {
		fmt.Fprintf(stderr, "harness %s: %v\n", c.name, err)
		return exitDiffers
	}
	if r.Failed > 0 {
		return exitDiffers
	}
	return exitOK
}
