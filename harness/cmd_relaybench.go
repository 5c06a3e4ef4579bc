// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"flag"
	"fmt"
	"io"
	"strings"

	"kindex/harness/relaybench"
	"kindex/harness/trial"
)

func runRelayBench(ctx context.Context, c *command, args []string, stdout, stderr io.Writer) int {
	o := relaybench.DefaultOptions()
	fs := flag.NewFlagSet(c.name, flag.ContinueOnError)
	rates := fs.String("rate", "500,2000", "batches a second, one measurement each")
	arms := fs.String("arms", strings.Join(relaybench.Arms, ","), "relays: "+relaybench.ArmPeerOurs+" (ours, the peer's contract), "+relaybench.ArmOwn+" (our contract), "+relaybench.ArmSMG+" (the peer's)")
	fs.IntVar(&o.Seconds, "seconds", o.Seconds, "of each rate")
	fs.IntVar(&o.Blocks, "blocks", o.Blocks, "of a batch")
	fs.IntVar(&o.State, "state", o.State, "live blocks for snapshots and memory; 0 leaves those out")
	fs.IntVar(&o.Rounds, "rounds", o.Rounds, "of all arms")
	fs.Uint64Var(&o.Seed, "seed", o.Seed, "of the batches")
	asJSON := fs.Bool("json", false, "print one JSON object")
	rest, code, done := c.parse(fs, args, stdout, stderr)
	if done {
		return code
	}
	var err error
	if o.Rates, err = counts("--rate", *rates); err == nil {
		o.Arms = strings.Split(*arms, ",")
		err = o.Validate()
	}
	if len(rest) > 0 {
		err = fmt.Errorf("unexpected argument %q: everything is a flag", rest[0])
	}
	if err != nil {
		fmt.Fprintf(stderr, "harness %s: %v\n", c.name, err)
		return exitUsage
	}
	r, err := relaybench.Measure(ctx, &o, trial.NewProgress(stderr, c.name))
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
