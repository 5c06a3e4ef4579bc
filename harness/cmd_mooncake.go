// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"

	"kindex/asm"
	"kindex/harness/mooncake"
	"kindex/harness/trial"
	"kindex/shard"
)

func runMooncake(ctx context.Context, c *command, args []string, stdout, stderr io.Writer) int {
	o := mooncake.DefaultOptions()
	fs := flag.NewFlagSet(c.name, flag.ContinueOnError)
	fs.StringVar(&o.Corpus, "corpus", "", "corpus file (KVCORP01; harness corpus makes them; default the conversation trace with --dup 4, made once in the cache folder)")
	fs.StringVar(&o.Mode, "mode", o.Mode, "what to replay: "+trial.OneOf(mooncake.Modes))
	fs.StringVar(&o.Index, "kv-index", o.Index, "index: "+trial.OneOf(shard.Kinds))
	fs.IntVar(&o.Shards, "shards", 0, "shards of the index, each with one writer (default --lanes)")
	fs.IntVar(&o.Lanes, "lanes", o.Lanes, "threads that apply events")
	fs.IntVar(&o.Queries, "query-threads", o.Queries, "threads that look up, in lookup and contend")
	fs.StringVar(&o.Memory, "memory", o.Memory, "placement of the index's memory: "+trial.OneOf(mooncake.Memories))
	fs.IntVar(&o.WindowMS, "window-ms", 0, "open loop: every operation at its deadline in a window of so many milliseconds (default: as fast as it goes)")
	fs.IntVar(&o.LimitOps, "limit-ops", 0, "replay only the first operations (default all)")
	fs.Uint64Var(&o.Seed, "seed", o.Seed, "of a series' order and its intervals")
	fs.BoolVar(&o.Check, "check", false, "compare every lookup with the reference index as well")
	fs.StringVar(&o.Profile, "profile", "", "write a CPU profile of the trial (for go tool pprof) to this file")
	runs := fs.Int("runs", 1, "trials, each in a fresh process")
	sustained := fs.Bool("sustained", false, "find the highest sustained rate instead, of each --peer, too")
	var so seriesOptions
	so.flags(fs)
	one := fs.Bool("one", false, "one trial in this process (what the others start)")
	asJSON := fs.Bool("json", false, "print one JSON object")
	rest, code, done := c.parse(fs, args, stdout, stderr)
	if done {
		return code
	}
	o.Level = asm.Level() // as --cpu-features left it
	err := o.Validate()
	switch {
	case len(rest) > 0:
		err = fmt.Errorf("unexpected argument %q: everything is a flag", rest[0])
	case o.Profile != "" && (*runs > 1 || so.wanted() || *sustained):
		err = errors.New("--profile: is of a single trial")
	case *runs < 1 || *runs > 1000:
		err = fmt.Errorf("--runs %d: must be 1 to 1000", *runs)
	case err == nil:
		err = so.validate(&o, *sustained)
	}
	if err != nil {
		fmt.Fprintf(stderr, "harness mooncake: %v\n", err)
		return exitUsage
	}
	p := trial.NewProgress(stderr, c.name)
	if o.Corpus == "" {
		if o.Corpus, err = defaultCorpus(ctx, p); err != nil {
			fmt.Fprintf(stderr, "harness mooncake: %v\n", err)
			return exitDiffers
		}
	}
	switch {
	case *one:
		var r *mooncake.Result
		if r, err = mooncake.One(ctx, o, p); err == nil {
			err = errors.Join(json.NewEncoder(stdout).Encode(r), wrongs(r.Exact))
		}
	case so.wanted():
		err = runSeries(ctx, o, &so, p, stdout, stderr, *asJSON)
	case *sustained:
		err = runSustained(ctx, o, &so, p, stdout, stderr, *asJSON)
	default:
		var s *mooncake.Summary
		if s, err = mooncake.Runs(ctx, o, *runs, p, stderr); err == nil {
			write := s.WriteText
			if *asJSON {
				write = s.WriteJSON
			}
			err = errors.Join(write(stdout), wrongs(s.Exact))
		}
	}
	if err != nil {
		// A child's line already says who speaks.
		fmt.Fprintf(stderr, "harness mooncake: %s\n", strings.TrimPrefix(err.Error(), "harness mooncake: "))
		return exitDiffers
	}
	return exitOK
}
