// SPDX-License-Identifier: Apache-2.0

// Before: a relay, or the peer's own. After: state.go.

package subscribe

import (
	"context"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"kindex/harness/publish"
	"kindex/internal/kv"
	"kindex/proto/peer/common"
	"kindex/proto/peer/vllm"
)

// Peer is a subscriber of the peer's contract, as a gateway is one.
type Peer struct {
	state
	line
	conn   *grpc.ClientConn
	cancel context.CancelFunc
	done   sync.WaitGroup
}

// OpenPeer subscribes at addr, host:port, until Close.
func OpenPeer(addr string, truth Truth) (*Peer, error) {
	conn, err := Dial(addr)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	p := &Peer{state: newState(truth), conn: conn, cancel: cancel}
	p.done.Go(func() { p.run(ctx, p.stream) })
	return p, nil
}

// Close ends the subscription.
func (p *Peer) Close() error {
	p.cancel()
	p.done.Wait()
	return p.conn.Close()
}

// stream runs one subscription and reports whether the next should follow at once.
func (p *Peer) stream(ctx context.Context) bool {
	p.state.mu.Lock()
	cursor := uint64(0)
	if k := p.of(0); k.stand.Has && !k.partial {
		cursor = k.stand.Seq
	}
	if cursor == 0 {
		p.voidAll() // everything comes again
	}
	for r, k := range p.ranks {
		if r > 0 && k.partial {
			p.void(r)
		}
	}
	p.counts.Subscribed++
	p.state.mu.Unlock()
	s, err := vllm.NewVllmEngineClient(p.conn).SubscribeKvEvents(ctx, &common.SubscribeKvEventsRequest{
		StartSequenceNumber: cursor, LoadRecordsBeforeFirstBatch: true,
	}, grpc.WaitForReady(true))
	for err == nil {
		var b *common.KvEventBatch
		if b, err = s.Recv(); err == nil {
			p.take(b)
		}
	}
	return p.ended(err)
}

func (p *Peer) ended(err error) bool {
	p.state.mu.Lock()
	defer p.state.mu.Unlock()
	switch status.Code(err) {
	case codes.OutOfRange:
		p.counts.OutOfRange++
	case codes.DataLoss:
		p.counts.Resets++
	default:
		return false
	}
	p.voidAll()
	return true
}

func (p *Peer) take(b *common.KvEventBatch) {
	p.state.mu.Lock()
	defer p.state.mu.Unlock()
	if b.GetLoad().GetLoadOnly() {
		return
	}
	events := peerEvents(b.GetEvents())
	r, seq := int(b.GetDpRank()), b.GetSequenceNumber()
	c := b.GetSnapshot()
	if c == nil {
		p.batch(r, seq, events)
		return
	}
	if k := p.of(r); c.GetIndex() > 0 && seq != k.stand.Seq+1 {
		p.counts.Gaps++
		p.sayf("rank %d: chunk %d has number %d after %d", r, c.GetIndex(), seq, k.stand.Seq)
	}
	p.chunk(r, c.GetIndex(), c.GetCount(), c.GetBlocks(), seq, true, events)
	p.of(r).stand.Seq = seq
}

// peerEvents are a batch's events as steps of content.
func peerEvents(in []*common.KvCacheEvent) []publish.Event {
	var out []publish.Event
	for _, e := range in {
		switch d := e.GetData().(type) {
		case *common.KvCacheEvent_Stored:
			out = append(out, peerStored(d.Stored))
		case *common.KvCacheEvent_Removed:
			ev := publish.Event{Kind: kv.KindRemoved, Tier: peerTier(d.Removed.GetTier()), Group: uint8(d.Removed.GetGroupIdx())}
			for _, h := range d.Removed.GetBlockHashes() {
				ev.Engines = append(ev.Engines, kv.EngineHash(h))
			}
			out = append(out, ev)
		case *common.KvCacheEvent_Cleared:
			out = append(out, publish.Event{Kind: kv.KindCleared})
		}
	}
	return out
}

func peerStored(s *common.KvBlocksStored) publish.Event {
	ev := publish.Event{
		Kind: kv.KindStored, Tier: peerTier(s.GetTier()), Group: uint8(s.GetGroupIdx()),
		Seed: kv.ContentSeed(s.GetLoraName(), s.GetCacheSalt()),
	}
	if s.ParentBlockHash != nil {
		ev.Parent, ev.HasParent = kv.EngineHash(s.GetParentBlockHash()), true
	}
	for _, b := range s.GetBlocks() {
		ev.Engines = append(ev.Engines, kv.EngineHash(b.GetBlockHash()))
		ev.Contents = append(ev.Contents, kv.HashBlock(ev.Seed, b.GetTokenIds(), nil))
	}
	return ev
}

func peerTier(t common.KvCacheTier) kv.Tier {
	switch t {
	case common.KvCacheTier_KV_CACHE_TIER_HOST:
		return kv.TierHost
	case common.KvCacheTier_KV_CACHE_TIER_DISK:
		return kv.TierDisk
	case common.KvCacheTier_KV_CACHE_TIER_EXTERNAL:
		return kv.TierRemote
	case common.KvCacheTier_KV_CACHE_TIER_UNSPECIFIED, common.KvCacheTier_KV_CACHE_TIER_DEVICE:
	}
	return kv.TierDevice
}
