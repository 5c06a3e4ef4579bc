// SPDX-License-Identifier: Apache-2.0

package indexsrv

import (
	"slices"
	"testing"

	"kindex/internal/kv"
	"kindex/relay/feed"
	"kindex/shard"
)

// Parents may come after their children; then the children count at once.
func TestOrphansAttach(t *testing.T) {
	f := newFeedTest(t, false, nil).connect()
	f.live(0, storeOf(12, 13, 14))
	if got := depth(f.w, f.h, 11, 12, 13, 14); got != 0 {
		t.Errorf("before the parent: depth %d, want 0", got)
	}
	if st := f.Status(); st.Orphans != 2 || st.State != feed.StateActive {
		t.Errorf("got %d orphans, state %v; want 2, active", st.Orphans, st.State)
	}
	f.live(1, storeOf(0, 11, 12))
	if got := depth(f.w, f.h, 11, 12, 13, 14); got != 4 {
		t.Errorf("after the parent: depth %d, want 4", got)
	}
	if st := f.Status(); st.Orphans != 0 {
		t.Errorf("got %d orphans, want 0", st.Orphans)
	}
}

// A dropped orphan makes the stream inexact until the engine clears its cache.
func TestDroppedOrphanDegrades(t *testing.T) {
	idx, err := shard.New("reference", shard.Options{MaxOrphanBlocks: 2})
	if err != nil {
		t.Fatal(err)
	}
	w := NewWriter(idx)
	h, err := w.AddHolder(testModel)
	if err != nil {
		t.Fatal(err)
	}
	f := &feedTest{TB: t, Feed: NewFeed(StreamConfig{Model: testModel, BlockSize: testBlock}, w, h), w: w, h: h, now: epochTime}
	f.connect()
	f.live(0, storeOf(90, 1), storeOf(91, 2))
	f.wantState(feed.StateActive)
	f.live(1, storeOf(92, 3))
	f.wantState(feed.StateDegraded)
	if got := f.Status().Dropped["orphan_dropped"]; got != 1 {
		t.Errorf("orphan_dropped: got %d, want 1", got)
	}
	f.live(2, clearAll())
	f.wantState(feed.StateActive)
}

// Copies are counted: one removal for each announcement.
func TestCopies(t *testing.T) {
	f := newFeedTest(t, false, nil).connect()
	f.live(0, storeOf(0, 11, 12, 13, 14))
	f.live(1, storeOf(0, 11, 12, 13, 14))
	for i, want := range []int{4, 0, 0} {
		f.live(uint64(2+i), removeOf(11, 12, 13, 14))
		if got := depth(f.w, f.h, 11, 12, 13, 14); got != want {
			t.Errorf("after removal %d: depth %d, want %d", i+1, got, want)
		}
	}
	if got := f.Status().Dropped["remove_unknown"]; got != 4 {
		t.Errorf("remove_unknown: got %d, want 4", got)
	}
}

// A removed middle block hides what lies below it, and its return heals it.
func TestHoleHeals(t *testing.T) {
	f := newFeedTest(t, false, nil).connect()
	f.live(0, storeOf(0, 11, 12, 13, 14))
	f.live(1, removeOf(12))
	if got := depth(f.w, f.h, 11, 12, 13, 14); got != 1 {
		t.Errorf("with a hole: depth %d, want 1", got)
	}
	f.live(2, storeOf(11, 12))
	if got := depth(f.w, f.h, 11, 12, 13, 14); got != 4 {
		t.Errorf("healed: depth %d, want 4", got)
	}
}

// Two ranks of one worker are two holders.
func TestRanksApart(t *testing.T) {
	w := newIndex(t)
	var feeds []*Feed
	var holders []shard.Holder
	for rank := range 2 {
		h, err := w.AddHolder(testModel)
		if err != nil {
			t.Fatal(err)
		}
		f := NewFeed(StreamConfig{Rank: rank, Model: testModel, BlockSize: testBlock}, w, h)
		f.Connected(epochTime)
		f.Live(0, payload(storeOf(0, 11, 12, 13, 14)), epochTime)
		feeds, holders = append(feeds, f), append(holders, h)
	}
	feeds[1].Live(1, payload(removeOf(11, 12, 13, 14)), epochTime)
	if a, b := depth(w, holders[0], 11, 12, 13, 14), depth(w, holders[1], 11, 12, 13, 14); a != 4 || b != 0 {
		t.Errorf("depths: got %d and %d, want 4 and 0", a, b)
	}
	// The helper's payloads say rank 0.
	if a, b := feeds[0].Status().RankMismatches, feeds[1].Status().RankMismatches; a != 0 || b != 2 {
		t.Errorf("rank mismatches: got %d and %d, want 0 and 2", a, b)
	}
}

// Another block size than was registered makes no memberships and is said.
func TestBlockSizeMismatch(t *testing.T) {
	f := newFeedTest(t, false, func(c *StreamConfig) { c.BlockSize = 32 }).connect()
	f.live(0, storeOf(0, 1, 2))
	f.want()
	f.wantState(feed.StateDegraded)
	if st := f.Status(); st.Dropped["block_size"] != 1 || !contains(st.LastError, "16") || !contains(st.LastError, "32") {
		t.Errorf("got %s; want 1 block_size and both sizes named", statusLine(st))
	}
	f.live(1, kv.Event{Kind: kv.KindStored, Hashes: []kv.EngineHash{1}, Medium: "CPU"})
	if st := f.Status(); st.Dropped["block_size"] != 1 || st.Dropped["store_unknown"] != 1 {
		t.Errorf("a placeholder: got %s; want no further block_size, 1 store_unknown", statusLine(st))
	}
}

// A full index refuses a store: the stream is marked and goes on.
func TestIndexFull(t *testing.T) {
	f := newFeedTest(t, false, nil)
	f.sink.idx = NewWriter(fullIndex{f.w.idx})
	f.connect()
	f.live(0, storeOf(0, 1))
	f.wantState(feed.StateDegraded)
	if st := f.Status(); st.Dropped["arena_full"] != 1 || !contains(st.LastError, shard.ErrArenaFull.Error()) {
		t.Errorf("got %s; want 1 arena_full and why", statusLine(st))
	}
}

type fullIndex struct{ shard.Index }

func (fullIndex) Store(shard.Holder, *shard.Store) error { return shard.ErrArenaFull }

// The set of drop reasons is fixed: metrics can rely on it.
func TestDropReasons(t *testing.T) {
	var got []string
	for r := range newFeedTest(t, false, nil).Status().Dropped {
		got = append(got, r)
	}
	slices.Sort(got)
	want := []string{
		"arena_full", "bad_event", "bad_field", "block_size",
		"contradiction", "group_range", "malformed", "misaligned", "missing_field", "no_hashes", "non_main_group",
		"orphan_dropped", "over_budget", "remote_locality", "remote_tier", "remove_unknown", "store_unknown", "unknown_event", "unknown_medium", "unsupported_ownership",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

type nullIndex struct{ shard.Index }

func (nullIndex) Store(shard.Holder, *shard.Store) error   { return nil }
func (nullIndex) Remove(shard.Holder, *shard.Remove) error { return nil }
func (nullIndex) HolderStats(shard.Holder) (shard.HolderStats, error) {
	return shard.HolderStats{}, nil
}
