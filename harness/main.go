// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"

	"kindex/asm"
	"kindex/harness/bench"
	"kindex/harness/trial"
	"kindex/harness/verify"
	"kindex/shard"
)

// Exit codes of every command.
const (
	exitOK      = 0
	exitDiffers = 1 // something that was checked is not as it must be
	exitUsage   = 2 // a command, flag or file that cannot be right
)

// command is one of the program's.
type command struct {
	name, args, does string
	run              func(ctx context.Context, c *command, args []string, stdout, stderr io.Writer) int
}

func commands() []command {
	return []command{
		{"verify", "[--index KIND] [--json] FILE...", "replay recordings through an index and compare with the reference and the engine", runVerify},
		{"run", "[flags]", "start mock engines, relay, index host and gateway with a trace replayed through them, or --worker for a real fleet, and show a live table", runWhole},
		{"bench", "[flags]", "measure CPU time from frame to index, lookups, and memory", runBench},
		{"corpus", "--trace FILE | --generate | FILE [flags]", "make a corpus of lookups and events from a request trace by rule SIM1, or describe one", runCorpus},
		{"mooncake", "[--corpus FILE] [flags]", "replay a corpus through an index: CPU time a block operation, lookups, memory, the rate it sustains; series beside peers", runMooncake},
		{"memory", "[flags]", "bytes for each membership and each distinct block, by purpose, with chains held by 1, 4, 16 and 128 workers", runMemory},
		{"churn", "[flags]", "decode blocks stored and evicted one by one in an index that stays as big: cost, lookups and bytes over time, the longest operation", runChurn},
		{"exact", "[--corpus FILE] [flags]", "hold every lookup of a corpus, of workloads with holes and of random ones against the reference: shards, kernels, forms", runExact},
		{"ladder", "[--corpus FILE] [flags]", "offer a corpus at one rate after the other, beside peers, and tell how long lookups take at each", runLadder},
		{"lanes", "[flags]", "frames into the index as the host takes them, on 1, 2 and 4 lanes: throughput, and CPU time by what it is for", runLanes},
		{"drill", "NAME|all [--json] [--seed N]", "break what a deployment breaks, with real programs, and judge by a rule how they come through", runDrill},
		{"soak", "[--duration 2h] [flags]", "hours of load with faults at random times: the index against the truth each minute, what it takes, and what drifted", runSoak},
		{"relaybench", "[flags]", "one publisher's batches through our relay and the peer's: CPU and latency of a batch, snapshots, memory", runRelayBench},
		{"lookupbench", "[flags]", "one question on every way into an index, beside Dynamo's indexer: round trips, and CPU of client and host", runLookupBench},
		{"gatewaybench", "[--short] [flags]", "what gateways cost and add: ours, the peer's, a bare proxy and none, interleaved; every answer checked", runGatewayBench},
		{"gatewayreplay", "[--rows 0-1999] [--rounds 3] [flags]", "a trace through gateways before mock engines: ours by each kind of index, in turns, and the peer's, in rounds that are kept", runGatewayReplay},
		{"decide", "[--workers 128|1024] [flags]", "what a decision of the gateway takes, lookup included, at 10,000 a second on one core", runDecide},
		{"replay", "URL [flags]", "replay a trace of requests, open loop, against an OpenAI endpoint, and score what comes back beside a mock fleet's oracle", runReplay},
		{"proxy", "--upstream URL,... [flags]", "hand requests to engines in turn: the router that knows nothing, to hold others against", runProxy},
	}
}

// Main runs the program with args, its name left out, and returns the exit code.
// It ends early, cleanly, when ctx does.
func Main(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	if len(args) == 0 {
		usage(stdout)
		return exitOK
	}
	switch args[0] {
	case "help", "-h", "-help", "--help":
		usage(stdout)
		return exitOK
	}
	if args[0] == "--interleave" || args[0] == "-interleave" {
		args = append([]string{"mooncake"}, args...)
	}
	all := commands()
	i := slices.IndexFunc(all, func(c command) bool { return c.name == args[0] })
	if i < 0 {
		var names []string
		for _, c := range all {
			names = append(names, c.name)
		}
		fmt.Fprintf(stderr, "harness: unknown command %q: must be %s\n", args[0], trial.OneOf(names))
		return exitUsage
	}
	return all[i].run(ctx, &all[i], args[1:], stdout, stderr)
}

func usage(w io.Writer) {
	fmt.Fprint(w, "harness proves, shows and measures kindex.\n\n")
	for _, c := range commands() {
		fmt.Fprintf(w, "  harness %s %s\n      %s\n", c.name, c.args, c.does)
	}
	fmt.Fprint(w, "  harness --interleave [flags]\n      harness mooncake --interleave: the series of local against interleaved memory\n")
	fmt.Fprint(w, "\nharness COMMAND --help tells a command's flags. Exit codes: 0 all is well, 1 something differs, 2 bad usage or an unreadable file.\n")
}

// parse reads flags, which may stand before, between and after the other
// arguments, and returns those. done is set when the command must end with code.
//
// Every command takes --cpu-features, which is applied at once. A command that
// starts others of this program hands [asm.Level] on.
func (c *command) parse(fs *flag.FlagSet, args []string, stdout, stderr io.Writer) (rest []string, code int, done bool) {
	fs.Func("cpu-features", "instructions that the index may use at most: `auto|avx512|avx2|generic` (default auto)", asm.SetLevel)
	fs.SetOutput(io.Discard)
	fs.Usage = func() {}
	for {
		err := fs.Parse(args)
		if errors.Is(err, flag.ErrHelp) {
			fmt.Fprintf(stdout, "harness %s %s\n\n%s.\n\n", c.name, c.args, c.does)
			fs.SetOutput(stdout)
			fs.PrintDefaults()
			fmt.Fprintln(stdout)
			return nil, exitOK, true
		}
		if err != nil {
			fmt.Fprintf(stderr, "harness %s: %v (harness %s --help tells the flags)\n", c.name, err, c.name)
			return nil, exitUsage, true
		}
		args = fs.Args()
		if len(args) == 0 {
			return rest, exitOK, false
		}
		rest = append(rest, args[0])
		args = args[1:]
	}
}

func runVerify(_ context.Context, c *command, args []string, stdout, stderr io.Writer) int {
	fs := flag.NewFlagSet(c.name, flag.ContinueOnError)
	kind := fs.String("index", shard.Kinds[0], "index under test: "+trial.OneOf(shard.Kinds))
	asJSON := fs.Bool("json", false, "print one JSON object; differences go to standard error")
	files, code, done := c.parse(fs, args, stdout, stderr)
	if done {
		return code
	}
	switch {
	case !slices.Contains(shard.Kinds, *kind):
		fmt.Fprintf(stderr, "harness verify: --index %q: must be %s\n", *kind, trial.OneOf(shard.Kinds))
		return exitUsage
	case len(files) == 0:
		fmt.Fprintln(stderr, "harness verify: no file: give one or more recordings (kvrec/1, gzipped or plain)")
		return exitUsage
	}
	r, err := verify.Files(files, verify.Options{Index: *kind})
	if err != nil {
		fmt.Fprintf(stderr, "harness verify: %v\n", err)
		return exitUsage
	}
	if *asJSON {
		for _, f := range r.Faults {
			fmt.Fprintln(stderr, f)
		}
		err = r.WriteJSON(stdout)
	} else {
		err = r.WriteText(stdout)
	}
	if err != nil {
		fmt.Fprintf(stderr, "harness verify: %v\n", err)
		return exitUsage
	}
	if !r.OK() {
		return exitDiffers
	}
	return exitOK
}

func runBench(ctx context.Context, c *command, args []string, stdout, stderr io.Writer) int {
	var o bench.Options
	fs := flag.NewFlagSet(c.name, flag.ContinueOnError)
	fs.StringVar(&o.Index, "kv-index", shard.Kinds[0], "index: "+trial.OneOf(shard.Kinds))
	fs.Uint64Var(&o.Seed, "seed", 1, "of the workloads")
	fs.IntVar(&o.Repeats, "repeats", 10, "times that each figure is taken, with a fresh index")
	fs.BoolVar(&o.Short, "short", false, "do a small part of the work, to see that it runs")
	asJSON := fs.Bool("json", false, "print one JSON object instead of tables")
	rest, code, done := c.parse(fs, args, stdout, stderr)
	if done {
		return code
	}
	var err error
	switch {
	case len(rest) > 0:
		err = fmt.Errorf("unexpected argument %q: everything is a flag", rest[0])
	case !slices.Contains(shard.Kinds, o.Index):
		err = fmt.Errorf("--kv-index %q: must be %s", o.Index, trial.OneOf(shard.Kinds))
	case o.Repeats < 1 || o.Repeats > 1000:
		err = fmt.Errorf("--repeats %d: must be 1 to 1000", o.Repeats)
	}
	if err != nil {
		fmt.Fprintf(stderr, "harness bench: %v\n", err)
		return exitUsage
	}
	r, err := bench.Run(ctx, o)
	if err == nil && *asJSON {
		err = r.WriteJSON(stdout)
	} else if err == nil {
		err = r.WriteText(stdout)
	}
	if err != nil {
		fmt.Fprintf(stderr, "harness bench: %v\n", err)
		return exitDiffers
	}
	return exitOK
}
