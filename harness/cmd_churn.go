// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"io"

	"kindex/asm"
	"kindex/harness/churn"
	"kindex/harness/trial"
	"kindex/shard"
)

func runChurn(ctx context.Context, c *command, args []string, stdout, stderr io.Writer) int {
	o := churn.DefaultOptions()
	t := trials{name: c.name}
	fs := flag.NewFlagSet(c.name, flag.ContinueOnError)
	fs.IntVar(&o.Workers, "workers", o.Workers, "workers, one holder each")
	fs.IntVar(&o.Memberships, "memberships", o.Memberships, "memberships that the index stays at")
	fs.IntVar(&o.Pool, "pool", o.Pool, "prompts there are")
	fs.IntVar(&o.Prompts, "prompts", o.Prompts, "prompts that each worker holds for ever")
	fs.IntVar(&o.Length, "prompt-blocks", o.Length, "blocks of a prompt")
	fs.IntVar(&o.Decode, "decode-blocks", o.Decode, "blocks decoded below a prompt, on average")
	fs.IntVar(&o.Segments, "segments", o.Segments, "equal parts that are measured one by one")
	fs.IntVar(&o.Events, "events", 0, "events of a segment (default half as many as decode blocks are held)")
	fs.Float64Var(&o.Minutes, "minutes", 0, "time that all segments take together, instead of --events")
	fs.StringVar(&o.Index, "kv-index", o.Index, "index: "+trial.OneOf(shard.Kinds))
	t.flags(fs, &o.Seed)
	rest, code, done := c.parse(fs, args, stdout, stderr)
	if done {
		return code
	}
	o.Level = asm.Level()
	if code, bad := t.refuse(o.Validate(), rest, stderr); bad {
		return code
	}
	p := trial.NewProgress(stderr, c.name)
	if t.one {
		r, err := churn.One(ctx, o, p)
		if err == nil {
			err = errors.Join(json.NewEncoder(stdout).Encode(r), wrongs(r.Exact))
		}
		return t.end(err, stderr)
	}
	s, err := churn.Measure(ctx, o, t.runs, p, stderr)
	if err == nil {
		err = errors.Join(t.write(s, stdout), wrongs(s.Exact))
	}
	return t.end(err, stderr)
}
