// SPDX-License-Identifier: Apache-2.0

package verify

import (
	"fmt"

	"kindex/harness/record"
	"kindex/internal/kv"
	"kindex/relay/wire"
)

// truths compares decoded messages with what the engine was asked to publish.
func (r *run) truths() {
	next := map[string]int{} // load sockets: readings compared so far
	for i := range r.f.Lines {
		l := &r.f.Lines[i]
		if l.Truth == nil {
			continue
		}
		r.report.DecodeTruth.Messages++
		what, line := r.truth(l, next)
		if what != "" {
			r.report.DecodeTruth.Wrong++
			r.fault(line, "decoding "+l.Truth.Src, "what the engine was asked to publish", what)
		}
	}
}

// truth returns how the message that l speaks of differs, "" when it does not.
func (r *run) truth(l *record.Line, next map[string]int) (what string, line int) {
	t := l.Truth
	if t.Snapshot != nil {
		n := next[t.Src]
		next[t.Src]++
		if n >= len(r.loads[t.Src]) {
			return "no message", l.N
		}
		m := r.loads[t.Src][n]
		if m.err != nil {
			return m.err.Error(), m.line
		}
		return wire.LoadDisagreement(&m.load, t.Snapshot), m.line
	}
	rank, ok := record.PubRank(t.Src)
	if !ok || !t.HasSeq {
		return fmt.Sprintf("a truth line of %q without a sequence", t.Src), l.N
	}
	for _, tl := range r.tls {
		if tl.rank != rank {
			continue
		}
		for i := range tl.batches {
			b := &tl.batches[i]
			switch {
			case b.seq != t.Seq:
			case b.bad != nil:
				return b.bad.Error(), b.line
			default:
				return wire.Disagreement(&kv.Batch{Events: b.events}, t.Events), b.line
			}
		}
	}
	return fmt.Sprintf("no message %d", t.Seq), l.N
}
