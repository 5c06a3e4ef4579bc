// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"flag"
	"fmt"
	"io"
	"strings"

	"kindex/gateway/policy"
	"kindex/harness/decide"
	"kindex/harness/trial"
)

func runDecide(ctx context.Context, c *command, args []string, stdout, stderr io.Writer) int {
	o := decide.DefaultOptions()
	fs := flag.NewFlagSet(c.name, flag.ContinueOnError)
	fs.IntVar(&o.Workers, "workers", o.Workers, "of the fleet")
	fs.IntVar(&o.Rate, "rate", o.Rate, "decisions a second, open loop")
	fs.DurationVar(&o.Trial, "trial", o.Trial, "that one way is timed for; a tenth of it goes before")
	fs.IntVar(&o.Rounds, "rounds", o.Rounds, "of all ways")
	fs.IntVar(&o.Rows, "rows", o.Rows, "of the conversation trace whose content the workers hold")
	fs.IntVar(&o.Questions, "questions", o.Questions, "different ones, asked at random: the trace's last prompts")
	fs.IntVar(&o.InFlight, "in-flight", o.InFlight, "requests at each worker, mean")
	fs.IntVar(&o.Limit, "limit", o.Limit, "matches that a lookup answers at most; 0: all")
	fs.StringVar(&o.Policy, "policy", o.Policy, "that decides: "+trial.OneOf(policy.Names()))
	arms := fs.String("kv-index", strings.Join(o.Arms, ","), "where it is looked up who holds a prompt; policy: nowhere, remote: over shared memory, remote-pinned: so on two cores that spin")
	fs.Uint64Var(&o.Seed, "seed", o.Seed, "of content, questions and order")
	asJSON := fs.Bool("json", false, "print one JSON object")
	rest, code, done := c.parse(fs, args, stdout, stderr)
	if done {
		return code
	}
	o.Arms = strings.Split(*arms, ",")
	err := o.Validate()
	if len(rest) > 0 {
		err = fmt.Errorf("unexpected argument %q: everything is a flag", rest[0])
	}
	if err != nil {
		fmt.Fprintf(stderr, "harness %s: %v\n", c.name, err)
		return exitUsage
	}
	r, err := decide.Measure(ctx, &o, trial.NewProgress(stderr, c.name))
	if err == nil && *asJSON {
		err = r.WriteJSON(stdout)
	} else if err == nil {
		err = r.WriteText(stdout)
	}
	if err != nil {
		fmt.Fprintf(stderr, "harness %s: %v\n", c.name, err)
		return exitDiffers
	}
	return exitOK
}
