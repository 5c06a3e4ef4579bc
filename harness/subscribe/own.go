// SPDX-License-Identifier: Apache-2.0

// Before: a relay. After: state.go.

package subscribe

import (
	"context"
	"sync"

	"google.golang.org/grpc"

	"kindex/harness/publish"
	"kindex/internal/kv"
	relayv1 "kindex/proto/kindex/relay/v1"
)

// Own is a subscriber of our contract.
type Own struct {
	state
	line
	cursors map[uint32]*relayv1.Cursor // of whole contents; guarded by mu
	conn    *grpc.ClientConn
	cancel  context.CancelFunc
	done    sync.WaitGroup
}

// OpenOwn subscribes to the engine of the listener at addr, host:port, until Close.
func OpenOwn(addr string, truth Truth) (*Own, error) {
	conn, err := Dial(addr)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	o := &Own{state: newState(truth), cursors: map[uint32]*relayv1.Cursor{}, conn: conn, cancel: cancel}
	o.done.Go(func() { o.run(ctx, o.stream) })
	return o, nil
}

// Close ends the subscription.
func (o *Own) Close() error {
	o.cancel()
	o.done.Wait()
	return o.conn.Close()
}

// stream runs one subscription, to its end.
func (o *Own) stream(ctx context.Context) bool {
	o.state.mu.Lock()
	req := &relayv1.SubscribeRequest{}
	for _, c := range o.cursors {
		req.Cursors = append(req.Cursors, c)
	}
	o.counts.Subscribed++
	o.state.mu.Unlock()
	s, err := relayv1.NewRelayServiceClient(o.conn).Subscribe(ctx, req, grpc.WaitForReady(true))
	for err == nil {
		var m *relayv1.SubscribeResponse
		if m, err = s.Recv(); err == nil {
			o.take(m)
		}
	}
	return false
}

func (o *Own) take(m *relayv1.SubscribeResponse) {
	o.state.mu.Lock()
	defer o.state.mu.Unlock()
	r := int(m.GetRank())
	switch b := m.GetBody().(type) {
	case *relayv1.SubscribeResponse_Batch:
		o.batch(r, b.Batch.GetSequence(), ownEvents(b.Batch.GetEvents()))
		o.cursor(m, b.Batch.GetSequence(), b.Batch.GetCheck())
		if k := o.of(r); k.stand.Exact {
			rec, ok := o.truth.Record(r, k.stand.Life, k.stand.Seq)
			if ok && k.stand.Seq == b.Batch.GetSequence() && rec.Check != b.Batch.GetCheck() {
				o.counts.Wrong++
				o.sayf("rank %d: batch %d has the check %x, its payload %x", r, k.stand.Seq, b.Batch.GetCheck(), rec.Check)
			}
		}
	case *relayv1.SubscribeResponse_Snapshot:
		c := b.Snapshot
		if c.GetIndex() == 0 {
			delete(o.cursors, m.GetRank())
		}
		o.chunk(r, c.GetIndex(), c.GetCount(), c.GetBlocks(), c.GetThrough(), c.GetAny(), ownEvents(c.GetEvents()))
		if c.GetIndex()+1 == c.GetCount() && c.GetAny() {
			o.cursor(m, c.GetThrough(), c.GetCheck())
		}
	case *relayv1.SubscribeResponse_Reset_:
		o.counts.Resets++
		o.void(r)
		delete(o.cursors, m.GetRank())
	case *relayv1.SubscribeResponse_Hole:
		// The next batch is the one behind it.
		o.counts.Holes++
		k := o.of(r)
		k.stand.Has, k.stand.Seq, k.stand.Exact = true, b.Hole.GetTo(), false
	}
}

// cursor notes how far a rank is, for the next subscription.
func (o *Own) cursor(m *relayv1.SubscribeResponse, seq, check uint64) {
	o.cursors[m.GetRank()] = &relayv1.Cursor{Rank: m.GetRank(), Epoch: m.GetEpoch(), Sequence: seq, Check: check}
}

// ownEvents are a batch's events as steps of content.
func ownEvents(in []*relayv1.Event) []publish.Event {
	var out []publish.Event
	for _, e := range in {
		switch d := e.GetEvent().(type) {
		case *relayv1.Event_Stored:
			s := d.Stored
			ev := publish.Event{Kind: kv.KindStored, Tier: ownTier(s.GetTier()), Group: uint8(s.GetGroup()), Seed: s.GetSeed()}
			if s.Parent != nil {
				ev.Parent, ev.HasParent = kv.EngineHash(s.GetParent()), true
			}
			for _, h := range s.GetEngines() {
				ev.Engines = append(ev.Engines, kv.EngineHash(h))
			}
			for _, c := range s.GetContents() {
				ev.Contents = append(ev.Contents, kv.ContentHash(c))
			}
			out = append(out, ev)
		case *relayv1.Event_Removed:
			ev := publish.Event{Kind: kv.KindRemoved, Tier: ownTier(d.Removed.GetTier()), Group: uint8(d.Removed.GetGroup())}
			for _, h := range d.Removed.GetEngines() {
				ev.Engines = append(ev.Engines, kv.EngineHash(h))
			}
			out = append(out, ev)
		case *relayv1.Event_Cleared:
			out = append(out, publish.Event{Kind: kv.KindCleared})
		}
	}
	return out
}

func ownTier(t relayv1.Tier) kv.Tier {
	switch t {
	case relayv1.Tier_TIER_HOST:
		return kv.TierHost
	case relayv1.Tier_TIER_DISK:
		return kv.TierDisk
	case relayv1.Tier_TIER_UNSPECIFIED, relayv1.Tier_TIER_DEVICE:
	}
	return kv.TierDevice
}
