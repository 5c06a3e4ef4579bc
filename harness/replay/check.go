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
// reference, drains the lanes before every lookup and compares the answers: flat,
// grouped and in a batch.
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
	by, want := newApplier(ref), ref.Buffer()
	forms := forms{t: t, buf: t.Buffer(), batch: t.newBatch()}
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
		want = ref.Lookup(s, want)
		out.Lookups++
		if !forms.agree(s, ref.byWorker(want)) {
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

// forms asks a target in every way that it can be asked.
type forms struct {
	t      *Target
	buf    []kv.Match
	answer shard.Answer
	batch  *batch
	recent []*corpus.Step // goes along in a batch: as many as an index takes in step
}

// agree reports whether all answers to s are want: flat, grouped, and in a batch with
// the lookups before it.
func (f *forms) agree(s *corpus.Step, want map[int]kv.Match) bool {
	f.buf = f.t.Lookup(s, f.buf)
	ok := maps.Equal(f.t.byWorker(f.buf), want)
	f.answer.Reset()
	f.t.Index.LookupGroups(f.t.Namespace, s.Contents, &f.answer)
	f.buf = f.answer.Append(f.buf[:0])
	ok = ok && maps.Equal(f.t.byWorker(f.buf), want)
	if f.recent = append(f.recent, s); len(f.recent) > batchLookups {
		f.recent = f.recent[1:]
	}
	answers := f.batch.lookup(f.recent)
	return ok && maps.Equal(f.t.byWorker(answers[len(answers)-1].Matches), want)
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
