// SPDX-License-Identifier: Apache-2.0

package verify

import (
	"fmt"
	"slices"

	"kindex/harness/record"
	"kindex/internal/kv"
	"kindex/shard"
)

// The rules of the engine's table.
const (
	// rulePendingClear: the engine had cleared its cache and not said so yet; its
	// table is the stream's after so many more events as it had pending.
	rulePendingClear = "pending_clear"
	// rulePendingEvents: the same, with other events than clears pending.
	rulePendingEvents = "pending_events"
	// ruleLateMessage: what the engine had published by then arrived only when the
	// next message showed that it was missing; the index held exactly the rest.
	ruleLateMessage = "late_message"
	// ruleReannounced: blocks told again at a request's wish look like second
	// copies, which nothing will remove; without those the table is equal.
	ruleReannounced = "reannounced"
)

// stateRank returns the rank whose table a state line shows.
func (r *run) stateRank(st *record.State) int {
	switch {
	case st.Rank != nil:
		return *st.Rank
	case len(r.tls) == 1:
		return r.tls[0].rank
	}
	return r.f.Header.Rank
}

// compareStates compares the state lines of rank (-1: every rank) that were
// written before the engine published at ts: all it had published by then has
// now arrived, whatever was still on its way when the line was written. The
// message of line is the next to arrive.
func (r *run) compareStates(rank, line int, ts float64) {
	r.states = slices.DeleteFunc(r.states, func(l *record.Line) bool {
		of := r.stateRank(l.State)
		if rank >= 0 && of != rank || l.T >= ts {
			return false
		}
		for i, fd := range r.feeds {
			if fd.tl.rank == of {
				r.stateChecks = append(r.stateChecks, stateCheck{l, i, r.held(fd.holder), fd.tl.at(line)})
				return true
			}
		}
		// No message ever: an engine that published nothing must hold nothing.
		r.stateChecks = append(r.stateChecks, stateCheck{l, -1, nil, 0})
		return true
	})
}

// stateCheck is a state line and what the index held then.
type stateCheck struct {
	line *record.Line
	feed int // -1: the rank published nothing
	held map[copyKey]bool
	// received is how many items had arrived.
	received int
}

// held returns a holder's memberships as the index under test tells them.
func (r *run) held(h shard.Holder) map[copyKey]bool {
	out := map[copyKey]bool{}
	err := r.tee.got.Walk(h, func(n *shard.Node) bool {
		for _, c := range n.Copies {
			out[copyKey{c.Tier, int(c.Group), c.Engine}] = true
		}
		return true
	})
	if err != nil {
		return nil
	}
	return out
}

// tables judges the state lines.
func (r *run) tables() {
	t := &r.report.EngineTable
	for _, c := range r.stateChecks {
		t.Checks++
		want, allTiers := engineTable(c.line.State)
		rule, diff := r.judge(c, want, allTiers)
		switch {
		case diff != "":
			t.Wrong++
			r.fault(c.line.N, "memberships", fmt.Sprintf("the engine's table of %d", len(want)), diff)
		case rule != "":
			t.Explained++
			t.Rules[rule]++
		default:
			t.Exact++
		}
	}
}

// engineTable returns the engine's entries; allTiers is false where they are
// those of the device alone.
func engineTable(st *record.State) (set map[copyKey]bool, allTiers bool) {
	set = map[copyKey]bool{}
	for _, c := range st.Cached {
		if c.Tiers == nil {
			set[copyKey{kv.TierDevice, c.Group, c.Hash}] = true
			continue
		}
		allTiers = true
		for _, tier := range c.Tiers {
			set[copyKey{tierOf(tier), 0, c.Hash}] = true
		}
	}
	return set, allTiers
}

// tierOf reads a medium of a state line.
func tierOf(medium string) kv.Tier {
	switch medium {
	case "GPU", "":
		return kv.TierDevice
	case "CPU", "CPU_PINNED":
		return kv.TierHost
	case "DISK", "STORAGE":
		return kv.TierDisk
	}
	return kv.TierUnknown
}

// judge compares one table. diff is "" when it agrees, by rule if that is not "".
func (r *run) judge(c stateCheck, want map[copyKey]bool, allTiers bool) (rule, diff string) {
	if c.feed < 0 {
		if len(want) == 0 {
			return "", ""
		}
		return "", "no message at all"
	}
	tl, groups := r.tls[c.feed], r.groups[c.feed]
	if r.f.Header.Engine == "sglang" {
		allTiers = true
	}
	inTiers := func(k copyKey) bool { return allTiers || k.tier == kv.TierDevice }
	// Memberships are the main groups'.
	indexDiff := setDiff(c.held, want, func(k copyKey) bool { return inTiers(k) && groups[k.group].main() })
	pos := tl.published(c.line.T)
	replicaSet := func(n int, counted bool) map[copyKey]bool {
		set := map[copyKey]bool{}
		for k := range r.replay(c.feed, n, counted).copies {
			set[k] = true
		}
		return set
	}
	same := func(n int, counted bool) bool { return setDiff(replicaSet(n, counted), want, inTiers) == "" }
	if same(pos, true) {
		if indexDiff == "" {
			return "", ""
		}
		main := func(k copyKey) bool { return groups[k.group].main() }
		if c.received < pos && setDiff(c.held, replicaSet(c.received, true), main) == "" {
			return ruleLateMessage, ""
		}
	}
	if n := c.line.State.Pending; n > 0 {
		rule, end := rulePendingEvents, min(pos+n, len(tl.items))
		for _, it := range tl.items[pos:end] {
			if it.ev == nil || it.ev.Kind == kv.KindCleared {
				rule = rulePendingClear
			}
		}
		if missing := pos + n - end; missing > 0 {
			// Never published within the recording: only clears can be told, by
			// the operations that made them.
			if missing > r.resets(c.line.N) || len(want) > 0 {
				return "", orElse(indexDiff, "events that were never published")
			}
			return rulePendingClear, ""
		}
		if same(end, false) {
			return rule, ""
		}
	}
	if len(r.told) > 0 && same(pos, false) {
		return ruleReannounced, ""
	}
	return "", orElse(indexDiff, "other blocks in a group that makes no memberships")
}

func orElse(s, other string) string {
	if s != "" {
		return s
	}
	return other
}

// resets counts the successful resets before line.
func (r *run) resets(line int) int {
	n := 0
	for i := range r.f.Lines {
		l := &r.f.Lines[i]
		if l.N >= line {
			break
		}
		if l.Ctl != nil && isReset(l.Ctl) {
			n++
		}
	}
	return n
}

func isReset(c *record.Ctl) bool {
	return c.Op == "reset_prefix_cache" && (c.OK == nil || *c.OK) || c.Op == "POST /reset_prefix_cache"
}

// replay returns the replica of feed i after n items. counted tells whether
// blocks told again count as copies, as they do in an index.
func (r *run) replay(i, n int, counted bool) *replica {
	rep := newReplica(r.forest, r.groups[i])
	for _, it := range r.tls[i].items[:n] {
		rep.apply(it, !counted && it.ev != nil && r.told[it.ev])
	}
	return rep
}

// setDiff says how two sets differ within what counts, "" when they do not.
func setDiff(got, want map[copyKey]bool, counts func(copyKey) bool) string {
	var more, less int
	var example copyKey
	for k := range got {
		if counts(k) && !want[k] {
			more++
			example = k
		}
	}
	for k := range want {
		if counts(k) && !got[k] {
			less++
			example = k
		}
	}
	if more+less == 0 {
		return ""
	}
	return fmt.Sprintf("%d too many and %d missing (hash %#x, group %d, %s)", more, less, uint64(example.hash), example.group, example.tier)
}
