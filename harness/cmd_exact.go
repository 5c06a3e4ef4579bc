// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"encoding/json"
	"flag"
	"io"
	"strings"

	"kindex/asm"
	"kindex/harness/exact"
	"kindex/harness/trial"
)

func runExact(ctx context.Context, c *command, args []string, stdout, stderr io.Writer) int {
	o := exact.DefaultOptions()
	t := trials{name: c.name}
	fs := flag.NewFlagSet(c.name, flag.ContinueOnError)
	fs.StringVar(&o.Corpus, "corpus", "", "corpus file (default the conversation trace with --dup 4, made once in the cache folder)")
	kinds := fs.String("kv-index", strings.Join(exact.Kinds, ","), "indexes held against the reference")
	shards := fs.String("shards", "1,2,4", "numbers of shards, each index with each")
	fs.IntVar(&o.LimitOps, "limit-ops", 0, "only the first operations of the corpus (default all)")
	fs.IntVar(&o.Steps, "steps", o.Steps, "of each of the three workloads with holes; 0: none")
	fs.Int64Var(&o.Lookups, "lookups", 0, "go on with random questions until so many were asked, all kernels and trials together")
	t.flags(fs, &o.Seed)
	rest, code, done := c.parse(fs, args, stdout, stderr)
	if done {
		return code
	}
	o.Level = asm.Level()
	o.Kinds = strings.Split(*kinds, ",")
	var err error
	if o.Shards, err = counts("--shards", *shards); err == nil {
		err = o.Validate()
	}
	if code, bad := t.refuse(err, rest, stderr); bad {
		return code
	}
	p := trial.NewProgress(stderr, c.name)
	if o.Corpus == "" {
		if o.Corpus, err = defaultCorpus(ctx, p); err != nil {
			return t.end(err, stderr)
		}
	}
	if t.one {
		// What differs is in the result, for whoever started this.
		r, err := exact.One(ctx, o, p)
		if err == nil {
			err = json.NewEncoder(stdout).Encode(r)
		}
		return t.end(err, stderr)
	}
	s, err := exact.Compare(ctx, o, exact.Levels(o.Level), t.runs, p, stderr)
	if err == nil {
		if err = t.write(s, stdout); err == nil {
			err = s.Err()
		}
	}
	return t.end(err, stderr)
}
