// SPDX-License-Identifier: Apache-2.0

// Before: stream.go (messages of kindex.relay.v1). After: rank.go.

package client

import (
	"context"
	"fmt"
	"net"
	"strings"
	"time"

	"google.golang.org/grpc"

	"kindex/internal/kv"
	relayv1 "kindex/proto/kindex/relay/v1"
	"kindex/relay/normal"
)

// WhyRestarted is how a relay's reset begins whose reason is that the engine's
// publisher began anew; all others are of the relay's or the subscriber's making.
const WhyRestarted = "the engine's publisher restarted"

// describe asks the relay how far it is. Any goroutine.
func (c *Client) describe(ctx context.Context, conn *grpc.ClientConn) (*relayv1.DescribeResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.SilenceTimeout)
	defer cancel()
	return relayv1.NewRelayServiceClient(conn).Describe(ctx, &relayv1.DescribeRequest{Engine: c.cfg.Engine})
}

// presence notes which ranks the relay has. Where it has none of the wanted ones
// they are asked for all the same, so that it says what is wrong.
func (c *Client) presence(resp *relayv1.DescribeResponse) {
	there := map[uint32]bool{}
	c.st.RelayRanks = 0
	if e := c.served(resp); e != nil {
		for _, d := range e.GetRanks() {
			there[d.GetRank()] = true
		}
		c.st.RelayRanks = len(e.GetRanks())
	}
	some := false
	for _, n := range c.cfg.Ranks {
		some = some || there[n]
	}
	for n, r := range c.ranks {
		r.absent = ""
		if some && !there[n] {
			r.absent = fmt.Sprintf("the relay at %s has no rank %d of this engine: it has %d ranks", c.cfg.Address, n, len(there))
			r.catching = false
		}
	}
	c.publish(nil)
}

// present returns the wanted ranks that the server has, as far as is known.
func (c *Client) present() (ranks []uint32) {
	for _, n := range c.cfg.Ranks {
		if c.ranks[n].absent == "" {
			ranks = append(ranks, n)
		}
	}
	return ranks
}

// aim notes how far the relay is, so that it is known when what it has now has come.
func (c *Client) aim(resp *relayv1.DescribeResponse) {
	for _, d := range c.served(resp).GetRanks() {
		r := c.ranks[d.GetRank()]
		if r == nil || !r.catching {
			continue
		}
		r.target = target{known: true, any: d.GetAny(), epoch: d.GetEpoch(), seq: d.GetSequence()}
		if r.has && d.GetAny() && d.GetSequence() == r.seq && d.GetCheck() == r.check && r.check != 0 {
			r.target.epoch = r.epoch // the same batch, whatever the relay calls its life
		}
		if size := int(d.GetBlockSize()); size != 0 && c.cfg.BlockSize != 0 && size != c.cfg.BlockSize {
			r.mismatch = size
		}
	}
}

// served returns the engine that Subscribe is about: the one that was asked for, or
// of several the one that is served on the port that was dialled. nil: that cannot
// be told, and Subscribe says what is wrong.
func (c *Client) served(resp *relayv1.DescribeResponse) (own *relayv1.Engine) {
	if len(resp.GetEngines()) == 1 {
		return resp.GetEngines()[0]
	}
	_, dialled, _ := net.SplitHostPort(c.cfg.Address)
	for _, e := range resp.GetEngines() {
		if _, port, _ := net.SplitHostPort(e.GetListen()); port == dialled {
			if own != nil {
				return nil
			}
			own = e
		}
	}
	return own
}

// ownRequest returns the subscription that goes on where the ranks are.
func (c *Client) ownRequest() *relayv1.SubscribeRequest {
	c.ownStarts()
	req := &relayv1.SubscribeRequest{Engine: c.cfg.Engine, Ranks: c.present()}
	for _, n := range req.GetRanks() {
		r := c.ranks[n]
		if !r.has {
			continue
		}
		cur := &relayv1.Cursor{Rank: n, Epoch: r.epoch, Sequence: r.seq, Check: r.check}
		if r.missing != "" {
			cur.Check = 0 // what lacks batches proves nothing to another life of the relay
		}
		req.Cursors = append(req.Cursors, cur)
	}
	return req
}

// takeOwn takes one message. An error says why the stream cannot go on.
func (c *Client) takeOwn(m *relayv1.SubscribeResponse, now time.Time) error {
	r := c.ranks[m.GetRank()]
	if r == nil || r.absent != "" {
		c.st.Ignored++
		return nil
	}
	c.touched = r
	if m.GetLoad() != nil && r.load != nil {
		r.load.Load(m.GetLoad())
	}
	var err error
	switch body := m.GetBody().(type) {
	case nil:
		return nil
	case *relayv1.SubscribeResponse_Batch:
		err = c.ownBatch(r, m.GetEpoch(), body.Batch, now)
	case *relayv1.SubscribeResponse_Snapshot:
		err = c.ownChunk(r, m.GetEpoch(), body.Snapshot, now)
	case *relayv1.SubscribeResponse_Reset_:
		if strings.HasPrefix(body.Reset_.GetWhy(), WhyRestarted) {
			r.st.restarts++
		}
		r.reset(m.GetEpoch(), oneLine(body.Reset_.GetWhy()))
		r.life = m.GetEpoch()
		r.target = target{known: true, any: body.Reset_.GetAny(), epoch: m.GetEpoch(), seq: body.Reset_.GetNewest()}
		r.since, r.heard = now, now
	case *relayv1.SubscribeResponse_Hole:
		err = r.hole(m.GetEpoch(), &Hole{body.Hole.GetFrom(), body.Hole.GetTo(), oneLine(body.Hole.GetWhy())}, now)
	case *relayv1.SubscribeResponse_Standing:
		r.stands(m.GetEpoch(), body.Standing)
	}
	if err != nil {
		return &rankError{r, err}
	}
	r.settle(now)
	r.tell()
	return nil
}

// stands takes what the relay says of itself. The first word on a stream may be of
// an epoch with another name: a relay that goes on from a proven cursor tells no
// reset. Later ones are of no use to a content of another epoch.
func (r *rank) stands(epoch uint64, s *relayv1.Standing) {
	r.relay = relayStanding{known: true, primed: s.GetPrimed(), exact: s.GetExact(), epoch: epoch, why: oneLine(s.GetWhy())}
	if r.life == 0 {
		r.life = epoch
	}
	if s.GetExact() && s.GetPrimed() && r.relay.of(r.life) {
		r.missing = "" // the relay has made it good
	}
}

// ownBatch takes the next batch of a rank.
func (c *Client) ownBatch(r *rank, epoch uint64, b *relayv1.Batch, now time.Time) error {
	seq := b.GetSequence()
	switch {
	case r.snap != nil:
		return fmt.Errorf("batch %d within a snapshot", seq)
	case !r.has:
		if seq != 0 {
			r.missing = fmt.Sprintf("the relay began at batch %d", seq)
		}
	case epoch != r.epoch && (r.content || r.check == 0 || seq != r.seq+1):
		// Another life of the relay may take up a proven cursor, once.
		return fmt.Errorf("batch %d of epoch %x after batch %d of epoch %x, without a reset", seq, epoch, r.seq, r.epoch)
	case seq <= r.seq:
		r.st.duplicates++
		return nil
	case seq > r.seq+1:
		r.st.gaps++
		return &gapError{r.seq, seq}
	}
	ops, err := c.dec.ops(r, b.GetEvents())
	if err != nil {
		return err
	}
	r.batch(&Batch{Epoch: epoch, Sequence: seq, Timestamp: b.GetTimestamp(), Events: len(b.GetEvents()), Ops: ops}, b.GetCheck(), now)
	return nil
}

// hole takes a run of batches that will never come.
func (r *rank) hole(epoch uint64, h *Hole, now time.Time) error {
	switch {
	case r.snap != nil || h.To < h.From:
		return fmt.Errorf("a hole from %d to %d that cannot be", h.From, h.To)
	case r.has && epoch != r.epoch:
		return fmt.Errorf("a hole of epoch %x within epoch %x, without a reset", epoch, r.epoch)
	case r.has && h.To <= r.seq:
		return nil // passed already
	case r.has && h.From > r.seq+1:
		r.st.gaps++
		return &gapError{r.seq, h.From}
	}
	r.dropVoid("its content comes anew")
	r.goesOn()
	r.lost(h.From, h.To, h.Why)
	r.moved(epoch, h.To, 0)
	r.content, r.holds, r.heard = true, true, now
	r.h.Hole(h)
	return nil
}

// ownChunk takes the next chunk of a rank's snapshot.
func (c *Client) ownChunk(r *rank, epoch uint64, s *relayv1.SnapshotChunk, now time.Time) error {
	ops, err := c.dec.ops(r, s.GetEvents())
	if err != nil {
		return err
	}
	return r.chunk(&chunk{
		index: s.GetIndex(), count: s.GetCount(), epoch: epoch,
		blocks: s.GetBlocks(), unknownBefore: s.GetUnknownBefore(),
		any: s.GetAny(), through: s.GetThrough(), check: s.GetCheck(),
		digest: s.GetDigest(), digested: true,
		ops: ops,
	}, now)
}

// ownDecoder turns events into operations. Its buffers are used anew with each
// message.
type ownDecoder struct {
	list     []Op
	engines  []kv.EngineHash
	contents []kv.ContentHash
}

// ops returns what events do, valid until the next call. Events that this version
// cannot count are left out and counted; an error says what cannot be at all.
func (d *ownDecoder) ops(r *rank, events []*relayv1.Event) ([]Op, error) {
	d.list, d.engines, d.contents = d.list[:0], d.engines[:0], d.contents[:0]
	for i, ev := range events {
		switch e := ev.GetEvent().(type) {
		case *relayv1.Event_Stored:
			if err := d.stored(r, i, e.Stored); err != nil {
				return nil, err
			}
		case *relayv1.Event_Removed:
			tier, ok := r.place(e.Removed.GetTier(), e.Removed.GetGroup(), len(e.Removed.GetEngines()))
			if ok {
				d.list = append(d.list, Op{
					Kind: normal.Remove, Event: i, Tier: tier, Group: uint8(e.Removed.GetGroup()),
					Engines: d.hashes(e.Removed.GetEngines()),
				})
			}
		case *relayv1.Event_Cleared:
			d.list = append(d.list, Op{Kind: normal.Clear, Event: i})
		default:
			r.st.dropped[dropUnknownEvent]++
		}
	}
	return d.list, nil
}

func (d *ownDecoder) stored(r *rank, i int, s *relayv1.Stored) error {
	if n := len(s.GetContents()); n != 0 && n != len(s.GetEngines()) {
		return fmt.Errorf("a store of %d blocks with %d contents", len(s.GetEngines()), n)
	}
	tier, ok := r.place(s.GetTier(), s.GetGroup(), len(s.GetEngines()))
	if !ok {
		return nil
	}
	size := int(s.GetBlockSize())
	kind := normal.Store
	if r.blockSize != 0 && size != r.blockSize && len(s.GetContents()) > 0 {
		r.st.dropped[dropBlockSize]++
		kind = normal.Mismatch
	}
	op := Op{
		Kind: kind, Size: size, Event: i, Tier: tier, Group: uint8(s.GetGroup()),
		Seed: s.GetSeed(), Engines: d.hashes(s.GetEngines()), Blocks: kv.Blocks{BlockSize: size},
	}
	if s.Parent != nil && len(s.GetContents()) > 0 {
		op.Parent, op.HasParent = kv.EngineHash(s.GetParent()), true
	}
	from := len(d.contents)
	for _, h := range s.GetContents() {
		d.contents = append(d.contents, kv.ContentHash(h))
	}
	op.Contents = d.contents[from:len(d.contents):len(d.contents)]
	d.list = append(d.list, op)
	return nil
}

func (d *ownDecoder) hashes(hs []uint64) []kv.EngineHash {
	from := len(d.engines)
	for _, h := range hs {
		d.engines = append(d.engines, kv.EngineHash(h))
	}
	return d.engines[from:len(d.engines):len(d.engines)]
}

// place returns the tier of an event, and whether it counts here.
func (r *rank) place(t relayv1.Tier, group uint32, blocks int) (kv.Tier, bool) {
	switch {
	case blocks == 0:
		r.st.dropped[dropNoHashes]++
	case group > 255:
		r.st.dropped[dropGroupRange]++
	case t == relayv1.Tier_TIER_DEVICE:
		return kv.TierDevice, true
	case t == relayv1.Tier_TIER_HOST:
		return kv.TierHost, true
	case t == relayv1.Tier_TIER_DISK:
		return kv.TierDisk, true
	default:
		r.st.dropped[dropUnknownTier]++
	}
	return 0, false
}
