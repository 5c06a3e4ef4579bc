// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"

	"kindex/asm"
	"kindex/harness/ladder"
	"kindex/harness/peers"
	"kindex/harness/trial"
	"kindex/shard"
)

func runLadder(ctx context.Context, c *command, args []string, stdout, stderr io.Writer) int {
	o := ladder.DefaultOptions()
	m := &o.Mooncake
	t := trials{name: c.name}
	fs := flag.NewFlagSet(c.name, flag.ContinueOnError)
	fs.StringVar(&m.Corpus, "corpus", "", "corpus file (default the conversation trace with --dup 4, made once in the cache folder)")
	fs.Float64Var(&o.First, "first", o.First, "block operations a second of the first step")
	fs.Float64Var(&o.Factor, "factor", o.Factor, "by which each step offers more than the one before")
	fs.IntVar(&o.Steps, "steps", o.Steps, "steps at most; an arm ends after two with which it did not keep up")
	fs.Float64Var(&o.MaxForeign, "max-foreign", o.MaxForeign, "mean CPUs that others may keep busy during a trial; it is repeated past that, twice at most")
	fs.StringVar(&m.Index, "kv-index", m.Index, "index: "+trial.OneOf(shard.Kinds))
	fs.IntVar(&m.Shards, "shards", 0, "shards of the index, each with one writer (default --lanes)")
	fs.IntVar(&m.Lanes, "lanes", m.Lanes, "threads that apply events, of peers likewise")
	fs.IntVar(&m.LimitOps, "limit-ops", 0, "replay only the first operations (default all)")
	fs.Var((*list)(&o.Peers), "peer", "a published index that climbs beside ours, may be repeated: "+trial.OneOf(peers.Indexers))
	fs.StringVar(&o.PeersBin, "peers-bin", "", "a built index-peers (default built by cargo, once)")
	t.flags(fs, &m.Seed)
	rest, code, done := c.parse(fs, args, stdout, stderr)
	if done {
		return code
	}
	m.Level = asm.Level()
	err := o.Validate()
	for _, p := range o.Peers {
		if !peers.Known(p) {
			err = fmt.Errorf("--peer %q: must be %s", p, trial.OneOf(peers.Indexers))
		}
	}
	if t.one {
		err = errors.New("--one: a ladder is many trials; mooncake --window-ms is one of them")
	}
	if code, bad := t.refuse(err, rest, stderr); bad {
		return code
	}
	o.Runs = t.runs
	p := trial.NewProgress(stderr, c.name)
	if m.Corpus == "" {
		m.Corpus, err = defaultCorpus(ctx, p)
	}
	if err == nil && len(o.Peers) > 0 {
		o.PeersBin, err = (&seriesOptions{peersBin: o.PeersBin}).peerProgram(ctx, p, stderr)
	}
	if err != nil {
		return t.end(err, stderr)
	}
	climbed, err := ladder.Climb(ctx, o, p, stderr)
	if err == nil {
		err = t.write(climbed, stdout)
	}
	return t.end(err, stderr)
}
