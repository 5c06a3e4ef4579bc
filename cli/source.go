// SPDX-License-Identifier: Apache-2.0

// Before: an engine's sockets, or a relay. After: a replica, batch by batch, no
// further than it is told.

package cli

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"kindex/internal/kv"
	"kindex/relay/client"
	"kindex/relay/feed"
	"kindex/relay/normal"
	"kindex/relay/wire"
)

// source reads one stream into a replica and stops at each batch that is past what
// was allowed: so it can be made to stand where an index stands. Meanwhile its socket
// fills, or the relay waits.
//
// Concurrency: any goroutine.
type source struct {
	mu      sync.Mutex
	change  chan struct{} // closed with the next change
	replica *replica
	upTo    uint64 // batches that may be applied; meaningless unless any
	any     bool
	closed  bool

	has   bool
	last  uint64
	lives int    // contents that were taken back
	whole bool   // nothing is missing of this content
	why   string // it is not whole, or is not there yet

	end func()
}

func newSource(r *replica) *source {
	return &source{replica: r, change: make(chan struct{}), whole: true, why: "not connected yet"}
}

// changed wakes whoever waits. mu is held.
func (s *source) changed() {
	close(s.change)
	s.change = make(chan struct{})
}

// locked calls fn with mu held, unless s is closed.
func (s *source) locked(fn func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		fn()
		s.changed()
	}
}

// allow lets batches up to seq be applied.
func (s *source) allow(seq uint64) {
	s.locked(func() { s.any, s.upTo = true, max(s.upTo, seq) })
}

// batch applies ops as batch seq once that is allowed.
func (s *source) batch(seq uint64, ops []normal.Op) {
	s.mu.Lock()
	for !s.closed && (!s.any || seq > s.upTo) {
		wait := s.change
		s.mu.Unlock()
		<-wait
		s.mu.Lock()
	}
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	if !s.has && seq > 0 {
		s.miss(fmt.Sprintf("what it has begins with batch %d", seq))
	}
	s.apply(ops)
	s.has, s.last = true, seq
	s.changed()
}

// apply applies ops. mu is held.
func (s *source) apply(ops []normal.Op) {
	if fault := s.replica.apply(ops); fault != "" {
		s.miss(fault)
	}
	for i := range ops {
		if ops[i].Kind == normal.Clear {
			s.whole, s.why = true, "" // known from now on, whatever was missed before
		}
	}
}

// miss notes that the content is not whole. mu is held.
func (s *source) miss(why string) {
	if s.whole {
		s.whole, s.why = false, why
	}
}

// forget takes the content back. mu is held.
func (s *source) forget() {
	s.replica.clear()
	s.has, s.whole, s.why = false, true, ""
	s.lives++
}

// note says why nothing comes, while nothing is wrong with what came. mu is held.
func (s *source) note(why string) {
	if s.whole {
		s.why = why
	}
}

// sourceState is where a source stands.
type sourceState struct {
	has   bool
	last  uint64
	lives int
	whole bool
	why   string
}

func (s *source) state() (sourceState, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return sourceState{s.has, s.last, s.lives, s.whole, s.why}, s.change
}

// reach waits until s stands at seq exactly; false: it is past it, began anew, or ctx
// has ended.
func (s *source) reach(ctx context.Context, seq uint64, lives int) bool {
	for {
		now, change := s.state()
		switch {
		case now.lives != lives || now.has && now.last > seq:
			return false
		case now.has && now.last == seq:
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-change:
		}
	}
}

// close ends s: nothing of it runs any more.
func (s *source) close() {
	s.mu.Lock()
	s.closed = true
	s.changed()
	s.mu.Unlock()
	s.end()
}

// at says where a source stands.
func (s sourceState) at() string {
	text := "no batch yet"
	if s.has {
		text = fmt.Sprintf("batch %d", s.last)
	}
	if s.why != "" {
		text += " (" + s.why + ")"
	}
	return text
}

// engineSink is a source that an engine's batches go to.
type engineSink struct {
	*source
	norm  *normal.Normaliser
	dec   wire.Decoder
	probe wire.Decoder
	batch kv.Batch
	ops   []normal.Op
	seq   uint64
}

var _ feed.Sink = (*engineSink)(nil)

// openEngine begins to read an engine.
func openEngine(cfg feed.Config, kind string, blockSize int, r *replica) (*source, error) {
	zmq, err := feed.NewZMQ(feed.ZMQOptions{})
	if err != nil {
		return nil, err
	}
	e := &engineSink{source: newSource(r), norm: normal.New(normal.Config{BlockSize: blockSize, Stated: kind == "sglang"})}
	stream, err := feed.Open(zmq, cfg, e, feed.Hooks{
		Changed: func(_, _ feed.State, why string) { e.locked(func() { e.note(why) }) },
	})
	if err != nil {
		return nil, errors.Join(err, zmq.Close())
	}
	e.end = func() {
		stream.Close()
		_ = zmq.Close() // its only tap is closed
	}
	return e.source, nil
}

// Decodable implements feed.Sink.
func (e *engineSink) Decodable(payload []byte) bool {
	var b kv.Batch
	return e.probe.Decode(payload, &b) == nil
}

// Stage implements feed.Sink.
func (e *engineSink) Stage(b *feed.Batch) bool {
	if e.dec.Decode(b.Payload, &e.batch) != nil {
		return false
	}
	e.ops, e.seq = e.norm.Batch(&e.batch), b.Seq
	return true
}

// Commit implements feed.Sink.
func (e *engineSink) Commit(*feed.Faults) { e.source.batch(e.seq, e.ops) }

// Lost implements feed.Sink.
func (e *engineSink) Lost(from, to uint64, why string) {
	e.locked(func() {
		e.miss(fmt.Sprintf("batches %d to %d are lost: %s", from, to, why))
		e.has, e.last = true, to
	})
}

// Forget implements feed.Sink.
func (e *engineSink) Forget(why feed.Forget, _ *feed.Faults) {
	e.locked(e.forget)
	if why == feed.ForgetRestart {
		e.norm.Restart()
	}
}

// relayHandler is a source that a relay's rank goes to.
type relayHandler struct{ *source }

var _ client.Handler = relayHandler{}

// openRelay begins to read one rank of a relay.
func (c *call) openRelay(blockSize int, handle func() client.Handler) (*client.Client, error) {
	conf, err := c.tlsConfig()
	if err != nil {
		return nil, err
	}
	if err := client.CheckAddress(c.relay); err != nil {
		return nil, usagef("--relay: %v", err)
	}
	cfg := client.Config{Address: c.relay, Engine: c.relayEngine, Ranks: []uint32{uint32(c.rank)}, BlockSize: blockSize, TLS: conf}
	if c.tokenFile != "" {
		cfg.Token = c.token
	}
	cl, err := client.New(cfg, func(uint32) client.Handler { return handle() })
	if err != nil {
		return nil, usagef("--relay: %v", err)
	}
	return cl, nil
}

// Connected implements client.Handler.
func (h relayHandler) Connected(client.Contract) { h.locked(func() { h.note("") }) }

// Disconnected implements client.Handler.
func (h relayHandler) Disconnected(why string) { h.locked(func() { h.note("not connected: " + why) }) }

// Reset implements client.Handler.
func (h relayHandler) Reset(uint64, string) { h.locked(h.forget) }

// Begin implements client.Handler.
func (h relayHandler) Begin(*client.Snapshot) { h.locked(h.forget) }

// Chunk implements client.Handler.
func (h relayHandler) Chunk(ops []client.Op) { h.locked(func() { h.apply(ops) }) }

// End implements client.Handler.
func (h relayHandler) End(s *client.Snapshot) {
	h.locked(func() {
		h.has, h.last = true, s.Through
		if s.UnknownBefore > 0 {
			h.miss(counted(s.UnknownBefore, "batch") + " before it nobody had")
		}
	})
}

// Batch implements client.Handler.
func (h relayHandler) Batch(b *client.Batch) { h.batch(b.Sequence, b.Ops) }

// Hole implements client.Handler.
func (h relayHandler) Hole(x *client.Hole) {
	h.locked(func() {
		h.miss(fmt.Sprintf("batches %d to %d are lost: %s", x.From, x.To, x.Why))
		h.has, h.last = true, x.To
	})
}

// Standing implements client.Handler.
func (h relayHandler) Standing(s client.Standing) { h.locked(func() { h.note(s.Why) }) }
