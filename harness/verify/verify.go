// SPDX-License-Identifier: Apache-2.0

package verify

import (
	"cmp"
	"fmt"

	"kindex/harness/record"
	"kindex/indexsrv"
	"kindex/internal/kv"
	"kindex/lanes"
	"kindex/relay/feed"
	"kindex/shard"
	"kindex/shard/compare"
)

// Options say what is verified.
type Options struct {
	Index string // kind of the index under test; "" is the default kind
	// Wrap, for tests, stands between the pipeline and the index under test.
	Wrap func(shard.Index) shard.Index
	// truthOnly, for tests, leaves out the comparison with the reference.
	truthOnly bool
}

// maxFaults bounds the differences kept of one file; all are counted.
const maxFaults = 100

// Files verifies recordings one after the other.
//
// Errors: a [*record.Error] for a file that cannot be read, and an unknown kind
// of index. Differences are no error: the report holds them.
func Files(paths []string, o Options) (*Report, error) {
	sum := NewReport()
	for _, p := range paths {
		f, err := record.Read(p)
		if err != nil {
			return nil, err
		}
		r, err := File(f, o)
		if err != nil {
			return nil, err
		}
		sum.add(r)
		sum.ByFile = append(sum.ByFile, FileCount{Path: p, Index: o.Index, Report: r})
	}
	return sum, nil
}

// run is the verification of one file.
type run struct {
	f      *record.File
	report *Report
	size   int // tokens in a block
	model  kv.ModelKey

	tls         []*timeline // by rank, ascending
	feeds       []*rankFeed
	reqs        []*request
	forest      *forest
	groups      []map[int]groupKind
	told        map[*kv.Event]bool
	shape       shape
	tee         *tee
	pool        *lanes.Pool
	compare     *compare.Comparer
	states      []*record.Line // not compared yet
	stateChecks []stateCheck
	claims      *claims
	loads       map[string][]loadMsg
	truthOnly   bool
}

// rankFeed is one rank's pipeline into the indexes.
type rankFeed struct {
	*indexsrv.Feed
	tl             *timeline
	holder         shard.Holder
	seen, restarts uint64 // batches and restarts that were compared
	worker         *lanes.Worker
	burst          feed.Burst
}

// File verifies one recording.
func File(f *record.File, o Options) (*Report, error) {
	r := &run{f: f, report: NewReport(), model: kv.MakeModelKey("", "model", "default"), forest: newForest(), told: map[*kv.Event]bool{}}
	r.report.Files = 1
	r.truthOnly = o.truthOnly
	r.report.Unknown = f.Unknown
	kind := cmp.Or(o.Index, shard.Kinds[0])
	got, err := shard.New(kind, shard.Options{})
	if err != nil {
		return nil, err
	}
	if o.Wrap != nil {
		got = o.Wrap(got)
	}
	want, err := shard.New("reference", shard.Options{})
	if err != nil {
		return nil, err
	}
	r.tee = newTee(got, want)
	r.compare = compare.New(compare.Side{Name: "reference", Indexes: []shard.Index{want}}, compare.Side{Name: kind, Indexes: []shard.Index{got}})
	for _, rank := range f.Ranks() {
		r.tls = append(r.tls, buildTimeline(f, rank))
	}
	r.facts()
	if r.pool, err = lanes.New(lanes.Options{Nodes: []lanes.Node{{Shards: 1, Lanes: 2}}}); err != nil {
		return nil, err
	}
	defer func() { _ = r.pool.Close() }() // what it could say has been panicked with
	if err := r.open(); err != nil {
		return nil, err
	}
	r.drive()
	r.claim()
	r.credits()
	r.truths()
	r.sums()
	return r.report, nil
}

// facts finds what the recording says of its engine as a whole.
func (r *run) facts() {
	h := &r.f.Header
	header := map[int]groupKind{}
	for i, g := range h.Groups {
		k := groupKind{spec: kv.SpecOther, window: g.Window, block: g.BlockSize}
		switch g.Spec {
		case "FullAttentionSpec", "MLAAttentionSpec":
			k.spec = kv.SpecFull
		case "SlidingWindowSpec":
			k.spec = kv.SpecWindow
		}
		header[i] = k
	}
	r.size = h.MainBlockSize()
	r.shape = shape{ahead: h.Lookahead}
	for _, tl := range r.tls {
		groups := learnGroups(tl, header)
		r.groups = append(r.groups, groups)
		for i := range tl.items {
			ev := tl.items[i].ev
			if ev == nil || ev.Kind != kv.KindStored {
				continue
			}
			if r.size == 0 && ev.BlockSize > 0 && groups[ev.Group].main() {
				r.size = ev.BlockSize
			}
			r.shape.bigram = r.shape.bigram || len(ev.Second) > 0
			for _, l := range ev.Lookahead {
				r.shape.ahead = max(r.shape.ahead, len(l))
			}
		}
	}
	if r.size == 0 {
		r.size = 16 // no store at all: any will do
	}
	r.shape.size = r.size
	r.reqs = collectRequests(r.f, r.f.Ranks())
}

// open adds a holder and a feed for each rank.
func (r *run) open() error {
	replay := ""
	for i := range r.f.Lines {
		if r.f.Lines[i].Replay != nil {
			replay = "recorded"
		}
	}
	engine := r.f.Header.Engine
	if engine != "vllm" && engine != "sglang" {
		engine = "auto"
	}
	w := indexsrv.NewPoolWriter(r.tee, r.pool)
	for _, tl := range r.tls {
		h, err := w.AddHolder(r.model)
		if err != nil {
			return err
		}
		cfg := indexsrv.StreamConfig{
			Rank: tl.rank, Endpoint: "recorded", ReplayEndpoint: replay,
			Model: r.model, BlockSize: r.size, Engine: engine,
		}
		fd := &rankFeed{Feed: indexsrv.NewFeed(cfg, w, h), tl: tl, holder: h}
		fd.burst.Feed = fd.Feed.Feed
		if fd.worker, err = w.Worker(h); err != nil {
			return err
		}
		r.compare.Add(fmt.Sprintf("rank %d", tl.rank), compare.Place{Holder: r.tee.want2[h]}, compare.Place{Holder: h})
		r.feeds = append(r.feeds, fd)
	}
	return nil
}
