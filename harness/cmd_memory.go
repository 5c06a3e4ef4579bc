// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"strconv"
	"strings"

	"kindex/asm"
	"kindex/harness/memory"
	"kindex/harness/trial"
	"kindex/shard"
)

func runMemory(ctx context.Context, c *command, args []string, stdout, stderr io.Writer) int {
	o := memory.DefaultOptions()
	t := trials{name: c.name}
	fs := flag.NewFlagSet(c.name, flag.ContinueOnError)
	holders := fs.String("holders", "1,4,16,128", "workers that hold each chain, one row of the table each")
	private := fs.String("private-at", "4", "rows more, with names of each worker's own for blocks (none: no such row)")
	fs.BoolVar(&o.Private, "private", false, "with --one: each worker has names of its own for blocks")
	fs.IntVar(&o.Workers, "workers", o.Workers, "workers, one holder each")
	fs.IntVar(&o.Memberships, "memberships", o.Memberships, "memberships to fill the index with")
	fs.IntVar(&o.Mean, "chain", o.Mean, "blocks of a chain, on average")
	fs.Float64Var(&o.Turnover, "turnover", o.Turnover, "times that all chains are evicted and others stored, after which memory is counted again")
	fs.StringVar(&o.Index, "kv-index", o.Index, "index: "+trial.OneOf(shard.Kinds))
	t.flags(fs, &o.Seed)
	rest, code, done := c.parse(fs, args, stdout, stderr)
	if done {
		return code
	}
	o.Level = asm.Level()
	shared, err := counts("--holders", *holders)
	own := []int{}
	if err == nil && *private != "none" {
		own, err = counts("--private-at", *private)
	}
	for _, h := range append(append([]int{}, shared...), own...) {
		if o.Holders = h; err == nil {
			err = o.Validate()
		}
	}
	switch {
	case err != nil:
	case t.one && len(shared) != 1:
		err = fmt.Errorf("--holders %s: with --one it is one number", *holders)
	case t.one:
		o.Holders = shared[0]
	case o.Private:
		err = errors.New("--private: only with --one; --private-at gives rows with names of their own")
	}
	if code, bad := t.refuse(err, rest, stderr); bad {
		return code
	}
	p := trial.NewProgress(stderr, c.name)
	if t.one {
		r, err := memory.One(ctx, o, p)
		if err == nil {
			err = errors.Join(json.NewEncoder(stdout).Encode(r), wrongs(r.Exact))
		}
		return t.end(err, stderr)
	}
	table, err := memory.Measure(ctx, o, shared, own, t.runs, p, stderr)
	if err == nil {
		err = errors.Join(t.write(table, stdout), wrongs(table.Exact))
	}
	return t.end(err, stderr)
}

// counts reads a list such as 1,4,16.
func counts(name, text string) ([]int, error) {
	var out []int
	for s := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(s))
		if err != nil || n < 1 {
			return nil, fmt.Errorf("%s %q: must be numbers from 1 with commas between, such as 1,4,16", name, text)
		}
		out = append(out, n)
	}
	return out, nil
}
