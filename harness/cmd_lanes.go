// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"

	"kindex/asm"
	"kindex/harness/frames"
	"kindex/harness/trial"
)

func runLanes(ctx context.Context, c *command, args []string, stdout, stderr io.Writer) int {
	o := frames.DefaultOptions()
	t := trials{name: c.name}
	fs := flag.NewFlagSet(c.name, flag.ContinueOnError)
	lanes := fs.String("lanes", "1,2,4", "numbers of lanes, one row of the table each")
	fs.IntVar(&o.Shards, "shards", o.Shards, "shards of the index, as --shards-per-node of the host")
	fs.IntVar(&o.Streams, "streams", o.Streams, "engines' streams")
	fs.IntVar(&o.Prompts, "prompts", o.Prompts, "prompts of 64 blocks of each stream, half of them shared with some before")
	fs.IntVar(&o.Cache, "cache", o.Cache, "blocks that each engine holds, the oldest evicted; 0: none is evicted")
	fs.IntVar(&o.Burst, "burst", o.Burst, "messages that a stream hands over at once")
	fs.IntVar(&o.Rounds, "rounds", o.Rounds, "rounds in each process, with a fresh index each")
	t.flags(fs, &o.Seed)
	rest, code, done := c.parse(fs, args, stdout, stderr)
	if done {
		return code
	}
	o.Level = asm.Level()
	numbers, err := counts("--lanes", *lanes)
	for _, n := range numbers {
		if o.Lanes = n; err == nil {
			err = o.Validate()
		}
	}
	if err == nil && t.one && len(numbers) != 1 {
		err = fmt.Errorf("--lanes %s: with --one it is one number", *lanes)
	}
	if code, bad := t.refuse(err, rest, stderr); bad {
		return code
	}
	p := trial.NewProgress(stderr, c.name)
	if t.one {
		r, err := frames.One(ctx, o, p)
		if err == nil {
			err = json.NewEncoder(stdout).Encode(r)
		}
		return t.end(err, stderr)
	}
	s, err := frames.Measure(ctx, o, numbers, t.runs, p, stderr)
	if err == nil {
		err = t.write(s, stdout)
	}
	return t.end(err, stderr)
}
