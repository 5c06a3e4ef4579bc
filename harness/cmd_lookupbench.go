// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"flag"
	"fmt"
	"io"
	"strings"

	"kindex/harness/lookupbench"
	"kindex/harness/trial"
)

func runLookupBench(ctx context.Context, c *command, args []string, stdout, stderr io.Writer) int {
	o := lookupbench.DefaultOptions()
	fs := flag.NewFlagSet(c.name, flag.ContinueOnError)
	arms := fs.String("arms", strings.Join(o.Arms, ","), "ways of asking: shm is shared memory, -many has several at once, -hash and -tokens are over HTTP, dynamo- is the peer")
	fs.IntVar(&o.Memberships, "memberships", o.Memberships, "of the index, at least")
	fs.IntVar(&o.Instances, "instances", o.Instances, "that hold them")
	fs.IntVar(&o.Questions, "questions", o.Questions, "different ones, asked in turn")
	fs.IntVar(&o.Rounds, "rounds", o.Rounds, "of all ways")
	fs.DurationVar(&o.Trial, "trial", o.Trial, "that one way is timed for; a tenth of it goes before")
	fs.IntVar(&o.Connections, "connections", o.Connections, "of HTTP with several")
	fs.IntVar(&o.InFlight, "in-flight", o.InFlight, "lookups over one gRPC stream with many")
	fs.StringVar(&o.Control, "control", o.Control, "way that is measured twice, or "+lookupbench.ControlNone)
	fs.Float64Var(&o.MaxForeign, "max-foreign", o.MaxForeign, "mean CPUs that others may keep busy during a trial; it is repeated past that")
	fs.Uint64Var(&o.Seed, "seed", o.Seed, "of content, questions and order")
	fs.StringVar(&o.Out, "out", "", "folder for report, table and plots (default none)")
	asJSON := fs.Bool("json", false, "print one JSON object")
	rest, code, done := c.parse(fs, args, stdout, stderr)
	if done {
		return code
	}
	o.Arms = strings.Split(*arms, ",")
	if o.Control == lookupbench.ControlNone {
		o.Control = ""
	}
	err := o.Validate()
	if len(rest) > 0 {
		err = fmt.Errorf("unexpected argument %q: everything is a flag", rest[0])
	}
	if err != nil {
		fmt.Fprintf(stderr, "harness %s: %v\n", c.name, err)
		return exitUsage
	}
	r, err := lookupbench.Measure(ctx, &o, trial.NewProgress(stderr, c.name))
	if err == nil && o.Out != "" {
		err = r.Save(o.Out)
	}
	if err == nil && *asJSON {
		err = r.WriteJSON(stdout)
	} else if err == nil {
		err = r.WriteText(stdout)
	}
	if err == nil {
		err = wrongs(r.Exact)
	}
	if err != nil {
		fmt.Fprintf(stderr, "harness %s: %v\n", c.name, err)
		return exitDiffers
	}
	return exitOK
}
