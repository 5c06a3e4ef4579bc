// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"

	"kindex/harness/gatewaybench"
	"kindex/harness/trial"
)

func runGatewayBench(ctx context.Context, c *command, args []string, stdout, stderr io.Writer) int {
	if len(args) > 0 {
		if role, is := gatewayRoles[args[0]]; is {
			if err := role(ctx, args[1:], stdout); err != nil {
				fmt.Fprintf(stderr, "harness %s %s: %v\n", c.name, args[0], err)
				return exitDiffers
			}
			return exitOK
		}
	}
	o := gatewaybench.DefaultOptions()
	fs := flag.NewFlagSet(c.name, flag.ContinueOnError)
	targets := fs.String("targets", strings.Join(o.Targets, ","), "where requests go: "+trial.OneOf(gatewaybench.Targets))
	kinds := fs.String("kinds", strings.Join(o.Kinds, ","), "of requests: "+trial.OneOf(gatewaybench.Kinds))
	conns := fs.String("conns", "1,16,64", "connections, one cell each")
	short := fs.Bool("short", false, "fewer targets, enough for every bar: "+strings.Join(gatewaybench.ShortTargets, ", "))
	more := fs.String("gateway-flags", "", "more flags of our gateway, with spaces between")
	fs.DurationVar(&o.For, "duration", o.For, "that each trial counts for")
	fs.DurationVar(&o.Warm, "warm-up", o.Warm, "before each")
	fs.DurationVar(&o.Idle, "idle", o.Idle, "that gateways are left alone before their memory is read, and again for their CPU")
	fs.IntVar(&o.Rounds, "rounds", o.Rounds, "of all targets, each with fresh processes")
	fs.StringVar(&o.Pin, "pin", o.Pin, "split: gateways on the first CPU, workers and client on the second; none: anywhere")
	fs.Uint64Var(&o.Seed, "seed", o.Seed, "of the prompts")
	asJSON := fs.Bool("json", false, "print one JSON object, every trial in it")
	rest, code, done := c.parse(fs, args, stdout, stderr)
	if done {
		return code
	}
	o.Targets, o.Kinds, o.Gateway = strings.Split(*targets, ","), strings.Split(*kinds, ","), strings.Fields(*more)
	if *short {
		o.Targets = gatewaybench.ShortTargets
	}
	var err error
	if o.Conns, err = counts("--conns", *conns); err == nil {
		err = o.Validate()
	}
	if len(rest) > 0 {
		err = fmt.Errorf("unexpected argument %q: everything is a flag", rest[0])
	}
	if err != nil {
		fmt.Fprintf(stderr, "harness %s: %v\n", c.name, err)
		return exitUsage
	}
	r, err := gatewaybench.Measure(ctx, &o, trial.NewProgress(stderr, c.name))
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

// gatewayRoles are the processes that a measurement starts of this program.
var gatewayRoles = map[string]func(context.Context, []string, io.Writer) error{
	gatewaybench.RoleWorker: func(ctx context.Context, args []string, _ io.Writer) error {
		if len(args) != 1 {
			return errors.New("give HOST:PORT to listen at")
		}
		return gatewaybench.ServeWorker(ctx, args[0])
	},
	gatewaybench.RoleBare: func(ctx context.Context, args []string, _ io.Writer) error {
		if len(args) < 2 {
			return errors.New("give HOST:PORT to listen at, and those of workers")
		}
		return gatewaybench.ServeBare(ctx, args[0], args[1:])
	},
	gatewaybench.RoleClient: func(ctx context.Context, _ []string, stdout io.Writer) error {
		return gatewaybench.ServeClient(ctx, os.Stdin, stdout)
	},
}
