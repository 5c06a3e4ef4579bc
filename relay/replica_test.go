// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/zeebo/xxh3"
	"google.golang.org/protobuf/proto"

	"kindex/internal/kv"
	"kindex/internal/livedigest"
	relayv1 "kindex/proto/kindex/relay/v1"
	commonpb "kindex/proto/peer/common"
	"kindex/relay/normal"
	"kindex/shard"
	"kindex/shard/compare"
)

const testModel = kv.ModelKey(7)

// content is one rank's content in a reference index.
type content struct {
	idx  *shard.Reference
	h    shard.Holder
	norm *normal.Normaliser
}

func newContent(t testing.TB) *content {
	t.Helper()
	idx := shard.NewReference(shard.Options{})
	h, err := idx.AddHolder(testModel)
	if err != nil {
		t.Fatal(err)
	}
	return &content{idx: idx, h: h, norm: normal.New(normal.Config{})}
}

func (c *content) clear() { _ = c.idx.Clear(c.h) }

// apply applies what a normaliser made of a batch, as an index host would.
func (c *content) apply(ops []normal.Op) {
	for i := range ops {
		switch op := &ops[i]; op.Kind {
		case normal.Store:
			st := shard.Store{
				Tier: op.Tier, Group: op.Group, Stated: op.Stated, Parent: op.Parent, HasParent: op.HasParent,
				Engines: op.Engines, Contents: op.Contents, Blocks: op.Blocks,
			}
			if len(op.Contents) > 0 {
				st.Namespace = testModel.Namespace(op.Seed)
			}
			_ = c.idx.Store(c.h, &st)
		case normal.Remove:
			_ = c.idx.Remove(c.h, &shard.Remove{Tier: op.Tier, Group: op.Group, Engines: op.Engines})
		case normal.Clear:
			c.clear()
		case normal.Mismatch:
		}
	}
}

// place names copies of one engine hash at one position.
type place struct {
	position uint64 // a hash of the path to it
	engine   kv.EngineHash
	tier     kv.Tier
	group    uint8
}

// held returns how many physical copies are where.
func (c *content) held() (map[place]uint32, error) {
	paths := map[uint64]uint64{}
	all := map[place]uint32{}
	err := c.idx.Walk(c.h, func(n *shard.Node) bool {
		above, ok := paths[n.Parent]
		if !ok {
			above = uint64(n.Namespace)
		}
		path := livedigest.Child(above, n.Content)
		paths[n.ID] = path
		for _, cp := range n.Copies {
			all[place{path, cp.Engine, cp.Tier, cp.Group}] += cp.Count
		}
		return true
	})
	return all, err
}

// differs returns how got differs from c: in copies, or in the depth of a chain.
func (c *content) differs(got *content) error {
	want, err := c.held()
	if err != nil {
		return err
	}
	have, err := got.held()
	if err != nil {
		return err
	}
	for at, n := range want {
		if have[at] != n {
			return fmt.Errorf("%d copies instead of %d at %+v", have[at], n, at)
		}
	}
	for at, n := range have {
		if want[at] != n {
			return fmt.Errorf("%d copies instead of %d at %+v", n, want[at], at)
		}
	}
	cmp := compare.New(
		compare.Side{Name: "direct", Indexes: []shard.Index{c.idx}},
		compare.Side{Name: "subscriber", Indexes: []shard.Index{got.idx}},
	)
	cmp.Add("rank", compare.Place{Holder: c.h}, compare.Place{Holder: got.h})
	return cmp.Held()
}

// replica is a subscriber: what it was told of each rank.
type replica struct {
	form   Form
	rules  Rules
	stated bool // events name their whole namespace
	ranks  map[int]*replicaRank
}

// replicaRank is what a subscriber knows of one rank.
type replicaRank struct {
	*content
	book  livedigest.Book
	batch kv.Batch

	epoch, last, check uint64
	has, marked        bool // marked: the cursor is no proof of the content
	chunk              uint32
	standing           Standing

	batches, holes, resets, snapshots, standings, loads int
	why                                                 string
}

func newReplica(form Form, rules Rules) *replica {
	return &replica{form: form, rules: rules, ranks: map[int]*replicaRank{}}
}

func (rp *replica) rank(t testing.TB, n int) *replicaRank {
	r := rp.ranks[n]
	if r == nil {
		r = &replicaRank{content: newContent(t)}
		r.norm = normal.New(normal.Config{Stated: rp.stated})
		rp.ranks[n] = r
	}
	return r
}

// cursors are what the replica would go on from.
func (rp *replica) cursors() (cs []Cursor) {
	for n, r := range rp.ranks {
		if !r.has {
			continue
		}
		c := Cursor{Rank: n, Epoch: r.epoch, Sequence: r.last, Check: r.check}
		if r.marked {
			c.Check = 0
		}
		cs = append(cs, c)
	}
	return cs
}

// take applies one item, or returns what is wrong with it.
func (rp *replica) take(t testing.TB, it *Item) error {
	r := rp.rank(t, it.Rank)
	if it.Kind != ItemReset && it.Kind != ItemStanding && it.Epoch != r.epoch {
		if r.epoch != 0 && rp.rules == RulesOwn {
			return fmt.Errorf("kind %d of epoch %d after epoch %d without a reset", it.Kind, it.Epoch, r.epoch)
		}
		r.epoch = it.Epoch
	}
	switch it.Kind {
	case ItemBatches:
		for i := range it.Batches {
			if err := rp.takeBatch(r, &it.Batches[i]); err != nil {
				return fmt.Errorf("form %d, rules %d, rank %d: %w", rp.form, rp.rules, it.Rank, err)
			}
		}
	case ItemHole:
		if r.has && it.Hole.From != r.last+1 || it.Hole.To < it.Hole.From {
			return fmt.Errorf("hole %d to %d after %d", it.Hole.From, it.Hole.To, r.last)
		}
		r.holes++
		r.has, r.last, r.check, r.marked = true, it.Hole.To, 0, true
	case ItemReset:
		r.resets++
		r.why = it.Why
		r.empty()
		r.epoch, r.has, r.marked = it.Epoch, false, false
	case ItemChunk:
		return rp.takeChunk(r, &it.Chunk)
	case ItemStanding:
		r.standings++
		r.standing = it.Standing
	case ItemLoad:
		r.loads++
	}
	return nil
}

func (r *replicaRank) empty() {
	r.clear()
	r.book.Clear()
}

func (rp *replica) takeBatch(r *replicaRank, b *Batch) error {
	if r.chunk != 0 {
		return fmt.Errorf("batch %d in the middle of a snapshot", b.Sequence)
	}
	if next := r.last + 1; rp.rules == RulesOwn && (r.has && b.Sequence != next || !r.has && b.Sequence != 0) {
		return fmt.Errorf("batch %d after %d (any: %t)", b.Sequence, r.last, r.has)
	}
	if r.has && b.Sequence <= r.last {
		return fmt.Errorf("batch %d after %d", b.Sequence, r.last)
	}
	if rp.form == FormPeer {
		var m commonpb.KvEventBatch
		if err := proto.Unmarshal(b.Body, &m); err != nil {
			return err
		}
		if m.SequenceNumber != b.Sequence || m.Timestamp != b.Timestamp {
			return fmt.Errorf("batch %d says %d, %v for %v", b.Sequence, m.SequenceNumber, m.Timestamp, b.Timestamp)
		}
		r.peerEvents(m.Events)
	} else {
		var m relayv1.Batch
		if err := proto.Unmarshal(b.Body, &m); err != nil {
			return err
		}
		if m.Sequence != b.Sequence || m.Check != b.Check || m.Timestamp != b.Timestamp {
			return fmt.Errorf("batch %d says %d, check %x for %x, %v for %v", b.Sequence, m.Sequence, m.Check, b.Check, m.Timestamp, b.Timestamp)
		}
		r.ownEvents(m.Events)
	}
	r.batches++
	r.has, r.last, r.check = true, b.Sequence, b.Check
	return nil
}

func (rp *replica) takeChunk(r *replicaRank, c *Chunk) error {
	if c.Index == 0 {
		r.chunk = 0
		r.empty()
	}
	if c.Index != r.chunk || c.Count <= c.Index {
		return fmt.Errorf("chunk %d of %d after %d", c.Index, c.Count, r.chunk)
	}
	r.chunk++
	if rp.form == FormPeer {
		var m commonpb.KvEventBatch
		if err := proto.Unmarshal(c.Body, &m); err != nil {
			return err
		}
		s := m.Snapshot
		if want := c.Through - uint64(c.Count-1-c.Index); m.SequenceNumber != want || s.GetIndex() != c.Index || s.GetCount() != c.Count || s.GetBlocks() != c.Blocks || s.GetUnknownBefore() != c.UnknownBefore {
			return fmt.Errorf("chunk %+v says sequence %d (want %d), %v", c, m.SequenceNumber, want, s)
		}
		if c.Index == 0 && (len(m.Events) == 0 || m.Events[0].GetCleared() == nil) {
			return errors.New("chunk 0 does not begin with a clear")
		}
		r.peerEvents(m.Events)
	} else {
		var m relayv1.SnapshotChunk
		if err := proto.Unmarshal(c.Body, &m); err != nil {
			return err
		}
		if m.Index != c.Index || m.Count != c.Count || m.Blocks != c.Blocks || m.UnknownBefore != c.UnknownBefore || m.Through != c.Through || m.Check != c.Check || m.Digest != c.Digest || !m.Any {
			return fmt.Errorf("chunk %d says otherwise than its body", c.Index)
		}
		r.ownEvents(m.Events)
	}
	if r.chunk < c.Count {
		return nil
	}
	r.chunk = 0
	r.snapshots++
	r.has, r.last, r.check, r.marked = true, c.Through, c.Check, c.UnknownBefore > 0
	if got := r.book.Sum(); rp.form == FormOwn && got != c.Digest {
		return fmt.Errorf("the content's digest is %x, the snapshot says %x", got, c.Digest)
	}
	return nil
}

var ownTiers = map[relayv1.Tier]kv.Tier{relayv1.Tier_TIER_DEVICE: kv.TierDevice, relayv1.Tier_TIER_HOST: kv.TierHost, relayv1.Tier_TIER_DISK: kv.TierDisk}

func engines(in []uint64) (out []kv.EngineHash) {
	for _, e := range in {
		out = append(out, kv.EngineHash(e))
	}
	return out
}

// ownEvents applies events of the own form, each complete in itself.
func (r *replicaRank) ownEvents(events []*relayv1.Event) {
	for _, ev := range events {
		switch {
		case ev.GetStored() != nil:
			s := ev.GetStored()
			st := shard.Store{
				Tier: ownTiers[s.Tier], Group: uint8(s.Group), Stated: true,
				Parent: kv.EngineHash(s.GetParent()), HasParent: s.Parent != nil, Engines: engines(s.Engines),
			}
			for _, c := range s.Contents {
				st.Contents = append(st.Contents, kv.ContentHash(c))
			}
			if len(st.Contents) > 0 {
				st.Namespace = testModel.Namespace(s.Seed)
			}
			_ = r.idx.Store(r.h, &st)
			r.book.Store(&livedigest.Store{
				Tier: st.Tier, Group: st.Group, Parent: st.Parent, HasParent: st.HasParent,
				Seed: s.Seed, Engines: st.Engines, Contents: st.Contents,
			})
		case ev.GetRemoved() != nil:
			m := ev.GetRemoved()
			_ = r.idx.Remove(r.h, &shard.Remove{Tier: ownTiers[m.Tier], Group: uint8(m.Group), Engines: engines(m.Engines)})
			r.book.Remove(ownTiers[m.Tier], uint8(m.Group), engines(m.Engines))
		case ev.GetCleared() != nil:
			r.empty()
		}
	}
}

var peerTiers = map[commonpb.KvCacheTier]kv.Tier{
	commonpb.KvCacheTier_KV_CACHE_TIER_DEVICE: kv.TierDevice, commonpb.KvCacheTier_KV_CACHE_TIER_HOST: kv.TierHost, commonpb.KvCacheTier_KV_CACHE_TIER_DISK: kv.TierDisk,
}

// peerEvents turns events of the peer's form into an engine's own and applies
// those.
func (r *replicaRank) peerEvents(events []*commonpb.KvCacheEvent) {
	r.batch.Events = r.batch.Events[:0]
	for _, ev := range events {
		var out kv.Event
		switch {
		case ev.GetStored() != nil:
			out = storedOfPeer(ev.GetStored())
		case ev.GetRemoved() != nil:
			m := ev.GetRemoved()
			out = kv.Event{Kind: kv.KindRemoved, Tier: peerTiers[m.GetTier()], Group: int(m.GetGroupIdx()), HasGroup: m.GroupIdx != nil}
			for _, h := range m.BlockHashes {
				out.Hashes = append(out.Hashes, kv.EngineHash(uint64(h)))
			}
		default:
			out = clearAll()
		}
		r.batch.Events = append(r.batch.Events, out)
	}
	r.apply(r.norm.Batch(&r.batch))
}

func storedOfPeer(s *commonpb.KvBlocksStored) kv.Event {
	out := kv.Event{
		Kind: kv.KindStored, Tier: peerTiers[s.GetTier()], Group: int(s.GetGroupIdx()), HasGroup: s.GroupIdx != nil,
		LoRAName: s.GetLoraName(), Salt: s.GetCacheSalt(), HasSalt: s.CacheSalt != nil,
		SpecName: s.GetKvCacheSpecKind(),
	}
	if s.ParentBlockHash != nil {
		out.Parent, out.HasParent = kv.EngineHash(uint64(*s.ParentBlockHash)), true
	}
	for _, b := range s.Blocks {
		out.Hashes = append(out.Hashes, kv.EngineHash(uint64(b.BlockHash)))
		out.Tokens = append(out.Tokens, b.TokenIds...)
		out.BlockSize = int(b.BlockSize)
		var keys []kv.ExtraKey
		for _, k := range b.ExtraKeys {
			switch {
			case k.GetMultimodal() != nil:
				keys = append(keys, kv.ExtraKey{Kind: kv.ExtraItem, ID: k.GetMultimodal().Identifier, Offset: k.GetMultimodal().Offset})
			case k.GetBlob() != nil:
				keys = append(keys, kv.ExtraKey{Kind: kv.ExtraBytes, ID: string(k.GetBlob())})
			default:
				keys = append(keys, kv.ExtraKey{Kind: kv.ExtraString, ID: k.GetText()})
			}
		}
		out.Extra = append(out.Extra, keys)
	}
	out.HasExtra = slices.ContainsFunc(out.Extra, func(k []kv.ExtraKey) bool { return k != nil })
	if !out.HasExtra {
		out.Extra = nil
	}
	return out
}

// drain takes what s has to tell now.
func (rp *replica) drain(t testing.TB, s *Subscription) error {
	t.Helper()
	for {
		const quiet = 30 * time.Millisecond
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), quiet)
		it, err := s.Next(ctx)
		cancel()
		if errors.Is(err, context.DeadlineExceeded) {
			if time.Since(began) > 2*quiet {
				continue // the machine was busy with something else
			}
			return nil
		}
		if err != nil {
			return err
		}
		if err := rp.take(t, it); err != nil {
			t.Fatal(err)
		}
	}
}

// until takes items until done says so.
func (rp *replica) until(t testing.TB, s *Subscription, done func() bool) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for !done() {
		it, err := s.Next(ctx)
		if err != nil {
			return err
		}
		if err := rp.take(t, it); err != nil {
			t.Fatal(err)
		}
	}
	return nil
}

func subscribe(t testing.TB, e *Engine, req SubscribeRequest) *Subscription {
	t.Helper()
	s, err := e.Subscribe(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// publish applies the events of a batch straight, as the direct stream's index
// would.
func (c *content) publish(events ...kv.Event) {
	c.apply(c.norm.Batch(&kv.Batch{Events: events}))
}

func (c *content) idxMemberships(t testing.TB) uint64 {
	t.Helper()
	st, err := c.idx.HolderStats(c.h)
	if err != nil {
		t.Fatal(err)
	}
	return st.Memberships
}

func hashOf(payload []byte) uint64 { return xxh3.Hash(payload) }
