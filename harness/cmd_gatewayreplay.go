// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"flag"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"kindex/harness/gatewayreplay"
	"kindex/harness/trial"
)

func runGatewayReplay(ctx context.Context, c *command, args []string, stdout, stderr io.Writer) int {
	o := gatewayreplay.DefaultOptions()
	fs := flag.NewFlagSet(c.name, flag.ContinueOnError)
	variants := fs.String("variants", strings.Join(o.Variants, ","), "ways of routing: "+trial.OneOf(gatewayreplay.Variants))
	fs.IntVar(&o.Rounds, "rounds", o.Rounds, "of all variants; more may be asked for later")
	fs.Var(&o.Rows, "rows", "of the conversation trace, both counted in and from 0: `FIRST-LAST`, FIRST- or all")
	fs.Float64Var(&o.Speedup, "speedup", o.Speedup, "how many times as fast as the trace requests arrive")
	fs.IntVar(&o.Workers, "workers", o.Workers, "mock engines")
	fs.IntVar(&o.Blocks, "blocks", o.Blocks, "of each engine's cache")
	fs.StringVar(&o.Out, "out", "", "folder of results, gone on with where it stopped (default one in the cache folder, by rows)")
	more := fs.String("gateway-flags", "", "more flags of our gateway, with spaces between")
	fs.Uint64Var(&o.Seed, "seed", o.Seed, "of prompts' tokens")
	asJSON := fs.Bool("json", false, "print one JSON object")
	rest, code, done := c.parse(fs, args, stdout, stderr)
	if done {
		return code
	}
	o.Variants, o.Gateway = strings.Split(*variants, ","), strings.Fields(*more)
	err := o.Validate()
	if len(rest) > 0 {
		err = fmt.Errorf("unexpected argument %q: everything is a flag", rest[0])
	}
	if err == nil && o.Out == "" {
		o.Out, err = trial.CacheDir(filepath.Join("gatewayreplay", o.Rows.String()))
	}
	if err != nil {
		fmt.Fprintf(stderr, "harness %s: %v\n", c.name, err)
		return exitUsage
	}
	r, err := gatewayreplay.Measure(ctx, &o, trial.NewProgress(stderr, c.name), stderr)
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
