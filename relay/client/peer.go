// SPDX-License-Identifier: Apache-2.0

// Before: stream.go (messages of the peers' contract). After: rank.go.

package client

import (
	"fmt"
	"time"

	"kindex/internal/kv"
	"kindex/proto/peer/common"
	"kindex/relay/normal"
)

// sumsLen is how many batches a rank recognises by their content. It is the peers'
// bound, too: a number that far back is another life's.
const sumsLen = 1_024

// clearBeyond is how many missing batches make it not worth while to keep what is
// there.
const clearBeyond = 1_024

// peerRank is what the peers' contract needs for one rank.
type peerRank struct {
	norm  *normal.Normaliser
	batch kv.Batch // of the message in work

	// sums are hashes of the last batches' contents, by number.
	sums [sumsLen]struct{ seq, sum uint64 }

	// struck: a batch was missing behind number strike, and was asked for again.
	struck bool
	strike uint64
	// first: no batch of this rank has come on this stream yet.
	first bool
}

func newPeerRank(cfg *Config) *peerRank {
	return &peerRank{norm: normal.New(normal.Config{BlockSize: cfg.BlockSize, Stated: cfg.StatedNames})}
}

// restart forgets what belongs to one content.
func (p *peerRank) restart() {
	p.norm.Restart()
	clear(p.sums[:])
	p.struck = false
}

func (p *peerRank) note(seq, sum uint64) {
	s := &p.sums[seq%sumsLen]
	s.seq, s.sum = seq, sum
}

// sum returns the hash of batch seq, 0 where it is not known.
func (p *peerRank) sum(seq uint64) uint64 {
	if s := p.sums[seq%sumsLen]; s.seq == seq {
		return s.sum
	}
	return 0
}

// peerRequest returns the subscription that goes on where rank 0 is: the only one
// that the contract has a cursor for. The others are told anew by snapshots, or
// show by their numbers that they were not.
//
// The last batch is asked for again where its content is known: when it comes as
// another one the publisher began a new life and has overtaken the old numbers,
// which nothing else would show.
func (c *Client) peerRequest() *common.SubscribeKvEventsRequest {
	c.fromZero = c.peerStarts() || c.fromZero
	req := &common.SubscribeKvEventsRequest{LoadRecordsBeforeFirstBatch: true}
	for _, r := range c.ranks {
		r.peer.first = true
	}
	c.toldAll, c.series = true, series{}
	if r := c.ranks[0]; r != nil && r.has && !c.fromZero {
		c.toldAll = false
		req.StartSequenceNumber = r.seq
		if r.seq > 1 && !r.peer.struck && r.peer.sum(r.seq) != 0 {
			req.StartSequenceNumber--
		}
	}
	c.fromZero = false
	return req
}

// takePeer takes one message. An error says why the stream cannot go on.
func (c *Client) takePeer(m *common.KvEventBatch, now time.Time) error {
	r := c.ranks[uint32(m.GetDpRank())]
	wanted := r != nil && m.GetDpRank() >= 0
	if m.GetSnapshot() != nil {
		c.series.next(m, now)
	}
	if !wanted {
		c.st.Ignored++
		return nil
	}
	c.touched = r
	if m.GetLoad() != nil && r.load != nil {
		r.load.Load(m.GetLoad())
	}
	var err error
	switch {
	case m.GetLoad().GetLoadOnly() && len(m.GetEvents()) == 0 && m.GetSnapshot() == nil:
		err = c.heartbeat(r, m.GetSequenceNumber(), now)
	case m.GetSnapshot() != nil:
		err = c.peerChunk(r, m, now)
	default:
		err = c.peerBatch(r, m, now)
	}
	if err != nil {
		return &rankError{r, err}
	}
	r.settle(now)
	r.tell()
	return nil
}

// heartbeat takes a load record alone, which names the last batch sent.
func (c *Client) heartbeat(r *rank, seq uint64, now time.Time) error {
	switch {
	case r.snap != nil:
		return nil
	case !r.has && seq > 0:
		r.joinedLate(seq, now)
	case r.has && r.unproven:
	case r.has && seq > r.seq:
		return c.gap(r, seq+1, now)
	case r.has && seq == r.seq && r.catching && r.content:
		r.catching = false // it is sent once all that was there has been
	}
	return nil
}

// joinedLate notes that batches before the first that came are not known.
func (r *rank) joinedLate(seq uint64, now time.Time) {
	r.dropVoid("its content comes anew")
	r.missing = fmt.Sprintf("batches before %d are unknown: the server told nothing of them", seq)
	r.content, r.heard = true, now
}

// series is a snapshot whose chunks are counted over several ranks, one after another,
// as a relay tells the ranks of an engine anew. Where each rank's are counted from 0 a
// series has one rank.
//
// Concurrency: the client's goroutine.
type series struct {
	count, index uint32 // of the newest chunk; count 0: there is none
	rank         int32  // its
	first        uint32 // the rank's first chunk; it is told nothing of those before
	of           *rank  // whose snapshot ends with the rank's last chunk; nil: nobody's
}

// next takes in which chunk m is, and ends the snapshot of the rank before where
// another one's begins.
func (s *series) next(m *common.KvEventBatch, now time.Time) {
	c := m.GetSnapshot()
	follows := s.count != 0 && c.GetCount() == s.count && c.GetIndex() == s.index+1
	switch {
	case c.GetIndex() == 0:
		s.first, s.of = 0, nil
	case !follows:
		*s = series{}
		return
	case m.GetDpRank() != s.rank:
		s.first = c.GetIndex()
		if r := s.of; r != nil && r.snap != nil {
			r.endSnapshot(&chunk{any: true, epoch: r.epoch, through: r.snap.Through}, now)
			r.settle(now)
			r.tell()
		}
		s.of = nil
	}
	s.count, s.index, s.rank = c.GetCount(), c.GetIndex(), m.GetDpRank()
}

// peerChunk takes the next chunk of a rank's snapshot.
func (c *Client) peerChunk(r *rank, m *common.KvEventBatch, now time.Time) error {
	s := m.GetSnapshot()
	seq := m.GetSequenceNumber()
	r.peer.first = false
	index, count, blocks := s.GetIndex(), s.GetCount(), s.GetBlocks()
	if c.series.count != 0 && index < count {
		c.series.of = r
		index, count = index-c.series.first, count-c.series.first
		if c.series.first > 0 {
			blocks = 0 // they are all counted with the first rank's
		}
	}
	if r.snap != nil && index != 0 && seq != r.snap.Through+1 {
		return fmt.Errorf("chunk %d has number %d after number %d", s.GetIndex(), seq, r.snap.Through)
	}
	if index == 0 {
		r.peer.restart()
	}
	decodePeer(m, &r.peer.batch)
	return r.chunk(&chunk{
		index: index, count: count, epoch: r.epoch,
		blocks: blocks, unknownBefore: s.GetUnknownBefore(),
		any: true, through: seq,
		ops: r.peer.norm.Batch(&r.peer.batch),
	}, now)
}

// peerBatch admits one batch.
func (c *Client) peerBatch(r *rank, m *common.KvEventBatch, now time.Time) error {
	seq := m.GetSequenceNumber()
	if r.snap != nil {
		return fmt.Errorf("batch %d within a snapshot", seq)
	}
	b := &r.peer.batch
	decodePeer(m, b)
	sum := sumOf(b)
	first := r.peer.first
	r.peer.first = false
	if done, err := c.peerProof(r, seq, sum); done {
		r.peer.first = first
		return err
	}
	switch {
	case !r.has:
		r.dropVoid("its content comes anew")
		if seq != 0 {
			r.joinedLate(seq, now)
		}
	case seq == r.seq+1:
	case seq > r.seq:
		if err := c.gap(r, seq, now); err != nil {
			return err
		}
	case r.anotherLife(seq, sum, first, b):
		r.st.restarts++
		r.reset(r.epoch+1, fmt.Sprintf("the publisher restarted: batch %d came after batch %d", seq, r.seq))
		r.target = target{}
		if seq != 0 {
			r.joinedLate(seq, now)
		}
	default:
		r.st.duplicates++
		r.content, r.heard = true, now
		return nil
	}
	r.peer.note(seq, sum)
	ops := r.peer.norm.Batch(b)
	r.batch(&Batch{Epoch: r.epoch, Sequence: seq, Timestamp: m.GetTimestamp(), Events: len(b.Events), Ops: ops}, 0, now)
	return nil
}

// anotherLife reports whether a batch whose number was passed is of a publisher
// that began anew, not one that came again.
//
// A batch that is remembered decides by its content. Of others the peers' rules
// hold: a clear of everything, a number below the cursor first thing on a stream,
// 0 or 1 again, or a number far back.
func (r *rank) anotherLife(seq, sum uint64, first bool, b *kv.Batch) bool {
	if known := r.peer.sum(seq); known != 0 {
		return known != sum
	}
	if r.seq-seq >= sumsLen || seq < r.seq && (first || seq <= 1) {
		return true
	}
	for i := range b.Events {
		if b.Events[i].Kind == kv.KindCleared {
			return true
		}
	}
	return false
}

// gap takes a number that does not follow the cursor. The first time the missing
// ones are asked for again: an error. What is missing then is lost.
func (c *Client) gap(r *rank, seq uint64, now time.Time) error {
	if !r.peer.struck || r.peer.strike != r.seq {
		r.st.gaps++
		r.peer.struck, r.peer.strike = true, r.seq
		// Only rank 0 can be asked for from its cursor.
		c.fromZero = c.fromZero || r.number != 0
		return &gapError{r.seq, seq}
	}
	from, to := r.seq+1, seq-1
	if seq-r.seq-1 > clearBeyond {
		r.reset(r.epoch, fmt.Sprintf("batches %d to %d are missing", from, to))
	}
	r.peer.struck = false
	r.lost(from, to, "the server does not have them")
	r.moved(r.epoch, to, 0)
	r.holds = true
	r.heard = now
	r.h.Hole(&Hole{from, to, "the server does not have them"})
	return nil
}
