// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"context"
	"maps"

	"kindex/harness/corpus"
	"kindex/harness/trial"
	"kindex/internal/kv"
	"kindex/shard"
)

// Check replays the corpus in order through lanes into an index and into the
// reference, drains the lanes before every lookup and compares the answers.
func Check(ctx context.Context, src *Source, progress func(done, of int)) (*trial.Exact, error) {
	t, err := src.NewTarget()
	if err != nil {
		return nil, err
	}
	ref, err := NewTarget("reference", src.Corpus.Workers, shard.Options{})
	if err != nil {
		return nil, err
	}
	l, err := NewLanes(t, src.Lanes, MaxWaiting)
	if err != nil {
		return nil, err
	}
	l.Open()
	by, got, want := newApplier(ref), t.Buffer(), ref.Buffer()
	out := &trial.Exact{}
	steps := src.Corpus.Steps(0, len(src.Corpus.Ops), nil)
	for i := range steps {
		s := &steps[i]
		if s.Kind != corpus.Lookup {
			l.put(s)
			if err = by.apply(s); err != nil {
				break
			}
			continue
		}
		if err = ctx.Err(); err != nil {
			break
		}
		l.drain()
		got, want = t.Lookup(s, got), ref.Lookup(s, want)
		out.Lookups++
		if !maps.Equal(t.byWorker(got), ref.byWorker(want)) {
			out.Wrong++
		}
		progress(i, len(steps))
	}
	l.drain()
	if _, e := l.Stop(); err == nil {
		err = e
	}
	return out, err
}

// byWorker returns the depths by worker, a second match of one holder as a wrong one.
func (t *Target) byWorker(matches []kv.Match) map[int]kv.Match {
	out := make(map[int]kv.Match, len(matches))
	for _, m := range matches {
		w, ok := t.worker[m.Holder]
		if _, twice := out[w]; !ok || twice {
			w = -1
		}
		m.Holder = 0
		out[w] = m
	}
	return out
}
