// SPDX-License-Identifier: Apache-2.0

package client

import (
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"kindex/proto/peer/common"
	"kindex/relay/normal"

	relayv1 "kindex/proto/kindex/relay/v1"
)

// strict is a handler that holds the client to its word, whatever a server sends.
type strict struct {
	t      testing.TB
	within bool // a snapshot
	has    bool
	last   uint64
	lacks  bool // a hole, and nothing since that made it good
	told   bool // a standing since the last reset
	exact  bool

	loaded  bool // it began with a content
	decided bool // and was told what became of it
	cold    bool // which is that it goes
}

// Resumed implements [ResumeHandler].
func (s *strict) Resumed(why string) {
	if !s.loaded || s.decided {
		s.t.Errorf("told %q of a content that it had not, or twice", why)
	}
	s.decided, s.cold = true, why != ""
}

// clears is what follows when the content goes.
func (s *strict) clears(within bool) {
	if s.loaded && !s.decided {
		s.t.Error("a content went without a word")
	}
	*s = strict{t: s.t, within: within}
}

func (s *strict) Connected(Contract) { s.told, s.exact = false, false }

func (s *strict) Disconnected(string) {
	if s.within {
		s.t.Error("disconnected within a snapshot without a reset")
	}
	s.exact = false
}

func (s *strict) Reset(uint64, string) { s.clears(false) }
func (s *strict) Begin(*Snapshot)      { s.clears(true) }

func (s *strict) Chunk([]Op) {
	if !s.within {
		s.t.Error("a chunk outside a snapshot")
	}
}

func (s *strict) End(sn *Snapshot) {
	if !s.within {
		s.t.Error("the end of a snapshot that did not begin")
	}
	s.within, s.has, s.last = false, true, sn.Through
}

func (s *strict) Batch(b *Batch) {
	switch {
	case s.within:
		s.t.Errorf("batch %d within a snapshot", b.Sequence)
	case s.has && b.Sequence != s.last+1:
		s.t.Errorf("batch %d after %d", b.Sequence, s.last)
	case s.loaded && (!s.decided || s.cold):
		s.t.Errorf("batch %d before it is known whether it follows", b.Sequence)
	}
	for i := range b.Ops {
		if b.Ops[i].Kind == normal.Clear {
			s.lacks = false
		}
	}
	s.has, s.last = true, b.Sequence
}

func (s *strict) Hole(h *Hole) {
	switch {
	case s.within || h.To < h.From:
		s.t.Errorf("a hole %+v that cannot be", h)
	case s.has && h.From > s.last+1:
		s.t.Errorf("a hole from %d after %d", h.From, s.last)
	}
	s.has, s.last, s.lacks = true, h.To, true
}

func (s *strict) Standing(st Standing) {
	switch {
	case st.Exact && s.within:
		s.t.Error("exact within a snapshot")
	case st.Exact && s.loaded && (!s.decided || s.cold):
		s.t.Error("exact before it is known whose content it is")
	case st.Exact && s.lacks:
		s.t.Error("exact behind a hole")
	case st.Exact != (st.Why == ""):
		s.t.Errorf("%+v: the reason and the fact do not agree", st)
	}
	s.told, s.exact = true, st.Exact
}

// bytes gives numbers out of a fuzzer's input, and zeros behind its end.
type bytes []byte

func (b *bytes) next(n int) int {
	if len(*b) == 0 {
		return 0
	}
	v := int((*b)[0]) % n
	*b = (*b)[1:]
	return v
}

// session drives a client without a network: messages, and what a stream's end does.
type session struct {
	c     *Client
	h     map[uint32]*strict
	clock time.Time
}

func newSession(t testing.TB, contract Contract) *session {
	s := &session{h: map[uint32]*strict{}, clock: time.Unix(1_800_000_000, 0)}
	s.start(Config{Address: "h:1", Ranks: []uint32{0, 1}, Contract: contract, BlockSize: 4}, func(uint32) *strict { return &strict{t: t} })
	return s
}

func (s *session) start(cfg Config, handle func(n uint32) *strict) {
	cfg.setDefaults()
	s.c = newClient(cfg, func(n uint32) Handler {
		s.h[n] = handle(n)
		return s.h[n]
	})
	s.c.now = func() time.Time { return s.clock }
	s.begin()
}

// restart ends the client. Another one begins with what handlers held, where it had a
// cursor.
func (s *session) restart() {
	cfg, old := s.c.cfg, s.h
	cfg.Start, s.h = map[uint32]Cursor{}, map[uint32]*strict{}
	for n, r := range s.c.ranks {
		if cur, ok := r.cursor(cfg.Contract); ok {
			cur, err := ParseCursor(cur.Append(nil))
			if err != nil {
				old[n].t.Errorf("a cursor of our own: %v", err)
			}
			cfg.Start[n] = cur
		}
	}
	s.start(cfg, func(n uint32) *strict {
		h := &strict{t: old[n].t}
		if cur, ok := cfg.Start[n]; ok {
			if was := old[n]; was.within || !was.has || was.last != cur.Sequence {
				h.t.Errorf("a cursor of batch %d, of a content of batch %d (%v)", cur.Sequence, was.last, was.has)
			}
			h.has, h.last, h.lacks, h.loaded = true, cur.Sequence, old[n].lacks, true
		}
		return h
	})
}

// begin is a new stream.
func (s *session) begin() {
	s.c.contract = s.c.cfg.Contract
	for _, r := range s.c.ranks {
		r.begin(s.clock)
	}
	if s.c.contract == ContractOwn {
		s.c.ownRequest()
	} else {
		s.c.peerRequest()
	}
}

// take takes one message and does what its end of the stream asks for.
func (s *session) take(m proto.Message, pause time.Duration) {
	s.clock = s.clock.Add(pause)
	for _, r := range s.c.ranks {
		if s.c.st.Connected {
			r.settle(s.clock)
		}
	}
	err := s.c.take(func(now time.Time) error {
		switch m := m.(type) {
		case *relayv1.SubscribeResponse:
			return s.c.takeOwn(m, now)
		case *common.KvEventBatch:
			return s.c.takePeer(m, now)
		}
		return nil
	})
	if err != nil {
		s.end(err)
	}
}

func (s *session) end(err error) {
	v := judge(err)
	s.c.follow(&v)
	s.c.disconnected(v.why)
	s.begin()
}

var errCut = errors.New("the link was cut")

func (b *bytes) ownEvents() (events []*relayv1.Event) {
	for range b.next(3) {
		switch b.next(5) {
		case 0:
			events = append(events, ownClear())
		case 1:
			events = append(events, ownRemove(uint64(1+b.next(6))))
		case 2:
			ev := ownStore(uint64(1+b.next(6)), uint64(b.next(4)), uint64(b.next(4)))
			ev.GetStored().BlockSize = uint32(4 * b.next(2))
			events = append(events, ev)
		default:
			events = append(events, ownStore(uint64(1+b.next(6)), uint64(1+b.next(3)), uint64(b.next(4))))
		}
	}
	return events
}

// ownMessage is some message of a relay, often one that fits.
func (b *bytes) ownMessage(s *session) *relayv1.SubscribeResponse {
	n := uint32(b.next(3))
	var epoch, next uint64 = 1, 0
	if r := s.c.ranks[n]; r != nil {
		epoch = r.epoch
		if r.has {
			next = r.seq + 1
		}
	}
	epoch += uint64(b.next(8) / 7)
	seq := next + uint64(b.next(9)/8) - min(next, uint64(b.next(9)/8))
	var m *relayv1.SubscribeResponse
	switch b.next(8) {
	case 0:
		m = ownReset(epoch+uint64(b.next(2)), "why", b.next(5)-1)
	case 1:
		m = ownHole(epoch, seq, seq+uint64(b.next(3)))
	case 2:
		m = ownStanding(b.next(4) > 0, b.next(3) > 0, "")
		if st := m.GetStanding(); st.GetPrimed() && st.GetExact() && s.h[n] != nil {
			s.h[n].lacks = false // the relay's word
		}
	case 3:
		ms := ownChunks(epoch, seq, ownStore(1, 3, 0), ownStore(4, 2, 3))
		for _, m := range ms {
			m.Rank = n
		}
		if b.next(4) == 0 {
			ms[1].GetSnapshot().Digest++
		}
		if b.next(4) > 0 {
			s.take(ms[0], 0)
		}
		return ms[1]
	case 4:
		return &relayv1.SubscribeResponse{Rank: n, Load: &common.EngineLoad{}}
	default:
		m = ownBatch(epoch, seq, b.ownEvents()...)
	}
	m.Rank = n
	return m
}

// peerMessage is the same of a peer.
func (b *bytes) peerMessage(s *session) *common.KvEventBatch {
	n := b.next(3)
	var next uint64
	if r := s.c.ranks[uint32(n)]; r != nil && r.has {
		next = r.seq + 1
	}
	seq := next + uint64(b.next(9)/8)*uint64(1+b.next(200)*20) - min(next, uint64(b.next(9)/7)*uint64(b.next(200)))
	var events []*common.KvCacheEvent
	for range b.next(3) {
		if b.next(6) == 0 {
			events = append(events, peerClear())
		} else {
			events = append(events, peerStore(uint64(1+b.next(6)), uint64(b.next(4)), uint64(b.next(4))))
		}
	}
	switch b.next(8) {
	case 0:
		return ofRank(int32(n), heartbeat(seq, 1))
	case 1:
		if b.next(3) > 0 {
			s.take(ofRank(int32(n), peerChunk(0, 2, seq, peerClear(), peerStore(1, 3, 0))), 0)
		}
		return ofRank(int32(n), peerChunk(1, 2, seq+1+uint64(b.next(6)/5), peerStore(4, 2, 3)))
	}
	return ofRank(int32(n), peerBatch(seq, events...))
}

func (s *session) run(b bytes) {
	for len(b) > 0 {
		switch b.next(24) {
		case 0:
			s.end(errCut)
		case 1:
			if b.next(2) == 0 {
				s.restart()
				continue
			}
			s.end(errOutOfRange)
		default:
			pause := time.Duration(b.next(3)) * 20 * time.Millisecond
			if s.c.cfg.Contract == ContractOwn {
				s.take(b.ownMessage(s), pause)
			} else {
				s.take(b.peerMessage(s), pause)
			}
		}
	}
}

// TestWild: messages with little regard for sense never break the client's word.
func TestWild(t *testing.T) {
	for _, contract := range []Contract{ContractOwn, ContractVLLM} {
		for seed := range uint64(200) {
			rng := rand.New(rand.NewPCG(seed, 1))
			in := make(bytes, 4_000)
			for i := range in {
				in[i] = byte(rng.Uint32())
			}
			s := newSession(t, contract)
			s.run(in)
			if t.Failed() {
				t.Fatalf("%v, seed %d", contract, seed)
			}
		}
	}
}

func FuzzOwn(f *testing.F) {
	f.Add([]byte{2, 1, 0, 0, 0, 0, 7, 1, 3})
	f.Fuzz(func(t *testing.T, in []byte) { newSession(t, ContractOwn).run(in) })
}

func FuzzPeer(f *testing.F) {
	f.Add([]byte{2, 1, 0, 0, 0, 0, 7, 1, 3})
	f.Fuzz(func(t *testing.T, in []byte) { newSession(t, ContractVLLM).run(in) })
}

// FuzzBytes: whatever bytes a server sends, read as a message, do no harm.
func FuzzBytes(f *testing.F) {
	for _, m := range []proto.Message{ownBatch(1, 0, ownStore(1, 3, 0)), ownChunks(1, 4, ownStore(1, 2, 0))[0], ownHole(1, 0, 1)} {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, true)
	}
	for _, m := range []proto.Message{peerBatch(0, peerStore(1, 3, 0)), peerChunk(0, 1, 3, peerClear())} {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, false)
	}
	f.Fuzz(func(t *testing.T, in []byte, own bool) {
		if own {
			m := new(relayv1.SubscribeResponse)
			if proto.Unmarshal(in, m) == nil {
				newSession(t, ContractOwn).take(m, 0)
			}
			return
		}
		m := new(common.KvEventBatch)
		if proto.Unmarshal(in, m) == nil {
			newSession(t, ContractVLLM).take(m, 0)
		}
	})
}
