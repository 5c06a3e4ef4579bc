// SPDX-License-Identifier: Apache-2.0

// Before: a client's connection. After: the shards' threads, with its rings; the Asker,
// with what it asks through the socket.

package shm

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// writePatience is how long a client may take nothing from its socket.
	writePatience = 2 * time.Second
	// maxAsks is how many requests of one client the socket answers at once.
	maxAsks = 16
)

// peer is a client as the server sees it.
type peer struct {
	srv  *Server
	conn *net.UnixConn
	who  Cred
	mem  *memory
	ends []*ends

	bell, sleeps *atomic.Uint32
	cause        atomic.Pointer[error] // why it was dropped

	// Guarded by the server's lock.
	beat   *atomic.Uint64 // nil: it has no memory yet, or no more
	heard  uint64         // the beat when it was last looked at
	missed int            // looks since it moved

	writing sync.Mutex // of the socket
	bye     atomic.Bool
}

// serve is the life of one client's connection.
func (s *Server) serve(c *net.UnixConn) {
	p := &peer{srv: s, conn: c}
	defer func() { _ = c.Close() }()
	who, err := credOf(c)
	p.who = who
	if err != nil || !s.opts.Allow(who) {
		s.Denied.Add(1)
		s.opts.Event(Event{EventDenied, who, err})
		p.refuse(true, who.String()+" may not use this socket")
		return
	}
	if err := s.enter(p); err != nil {
		s.refused(p, err)
		return
	}
	defer s.leave(p)
	f, err := p.open()
	if err != nil {
		s.refused(p, err)
		return
	}
	defer p.close()
	err = p.greet(f)
	err = errors.Join(err, f.Close())
	if err == nil {
		s.opts.Event(Event{Kind: EventJoined, Who: who})
		err = p.talk()
	}
	if cause := p.cause.Load(); cause != nil {
		err = *cause
	}
	if err == nil || errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) || isGone(err) {
		s.opts.Event(Event{Kind: EventLeft, Who: who})
		return
	}
	s.Dropped.Add(1)
	s.opts.Event(Event{EventDropped, who, err})
}

func (s *Server) refused(p *peer, err error) {
	s.Refused.Add(1)
	s.opts.Event(Event{EventRefused, p.who, err})
	p.refuse(false, err.Error())
}

// refuse tells a client why it is not served: 1 where it may not be (u8), and a line.
func (p *peer) refuse(denied bool, why string) {
	kind := byte(0)
	if denied {
		kind = 1
	}
	_ = p.write(frame(frameRefused, func(b []byte) []byte { return append(append(b, kind), why...) })) // it goes anyway
}

// write writes frames as a whole.
func (p *peer) write(b []byte) error {
	p.writing.Lock()
	defer p.writing.Unlock()
	return writeFor(p.conn, b, writePatience)
}

// open makes the client's memory and shows its rings to the threads.
func (p *peer) open() (*os.File, error) {
	s := p.srv
	l := s.opts.Layout
	mem, f, err := newMemory(l, s.opts.Place)
	if err != nil {
		return nil, err
	}
	mem.writeHeader(l, s.generation)
	p.mem = mem
	p.bell, p.sleeps = mem.word32(offClientBell), mem.word32(offClientSleeps)
	s.mu.Lock()
	p.beat = mem.word64(offClientBeat)
	s.mu.Unlock()
	for i := range l.Shards {
		p.ends = append(p.ends, newEnds(p, mem, l, i, uint32(s.generation)))
	}
	s.Bytes.Add(int64(l.Size()))
	for i, t := range s.threads {
		t.do(command{add: p.ends[i]})
	}
	return f, nil
}

// close takes the client's rings from the threads and gives its memory back.
func (p *peer) close() {
	s := p.srv
	for i, t := range s.threads {
		t.do(command{remove: p.ends[i]})
	}
	s.mu.Lock() // somebody may be looking at its beat
	defer s.mu.Unlock()
	p.beat = nil
	s.Bytes.Add(-int64(s.opts.Layout.Size()))
	_ = p.mem.close() // a mapping of ours: nothing can be wrong with it
}

// greet says hello, with the memory and the whole table.
func (p *peer) greet(f *os.File) error {
	s := p.srv
	h := hello{layout: s.opts.Layout, generation: s.generation, clock: now(), spins: s.opts.Spin > 0}
	p.writing.Lock()
	defer p.writing.Unlock()
	if err := p.conn.SetWriteDeadline(time.Now().Add(writePatience)); err != nil {
		return err
	}
	return sendFile(p.conn, frame(frameHello, h.append), f)
}

// talk pushes tables and answers what is asked, until the socket ends.
func (p *peer) talk() error {
	ctx, cancel := context.WithCancel(p.srv.ctx)
	var others sync.WaitGroup
	others.Go(func() {
		if err := p.push(ctx); err != nil {
			p.fail(err)
		}
	})
	err := p.read(ctx, &others)
	cancel()
	_ = p.conn.Close() // whoever writes ends now
	others.Wait()
	return err
}

// push sends the table and then what changes.
func (p *peer) push(ctx context.Context) error {
	var sent *Table
	for {
		t, newer := p.srv.opts.Tables.Table()
		if t != sent {
			if err := p.write(frame(frameTable, func(b []byte) []byte { return t.delta(b, sent) })); err != nil {
				return err
			}
			sent = t
		}
		select {
		case <-newer:
		case <-ctx.Done():
			return nil
		}
	}
}

// read waits for the socket's end and for what is asked through it.
func (p *peer) read(ctx context.Context, others *sync.WaitGroup) error {
	r := bufio.NewReaderSize(p.conn, 512)
	asks := map[uint32]context.CancelFunc{}
	var mu sync.Mutex
	var buf []byte
	for {
		kind, body, kept, err := readFrame(r, buf, maxClientFrame)
		if err != nil {
			return err
		}
		buf = kept
		if len(body) < 4 || kind != frameAsk && kind != frameCancel {
			return errors.New("it sent a frame that a client does not send")
		}
		id, body := binary.LittleEndian.Uint32(body), body[4:]
		mu.Lock()
		end := asks[id]
		n := len(asks)
		mu.Unlock()
		if kind == frameCancel {
			if end != nil {
				end()
			}
			continue
		}
		if end != nil || n >= maxAsks {
			return errors.New("it asks more through the socket than is allowed")
		}
		askCtx, cancel := context.WithCancel(ctx)
		mu.Lock()
		asks[id] = cancel
		mu.Unlock()
		question := append([]byte(nil), body...)
		others.Go(func() {
			p.ask(askCtx, id, question)
			cancel()
			mu.Lock()
			delete(asks, id)
			mu.Unlock()
		})
	}
}

// ask answers one request of the socket. Of an answer frame: the request's number
// (u32), 0 for a part, 1 for the end (u8), then the part, or a kind of error (u8, 0:
// none) and its text.
func (p *peer) ask(ctx context.Context, id uint32, body []byte) {
	le := binary.LittleEndian
	kind, err := 0, errors.New("this server answers nothing here")
	if a := p.srv.opts.Asker; a != nil {
		kind, err = a.Ask(ctx, body, func(part []byte) error {
			return p.write(frame(frameAnswer, func(b []byte) []byte {
				return append(append(le.AppendUint32(b, id), 0), part...)
			}))
		})
	}
	if err := p.write(frame(frameAnswer, func(b []byte) []byte {
		b = append(le.AppendUint32(b, id), 1, byte(kind))
		if err != nil {
			b = append(b, err.Error()...)
		}
		return b
	})); err != nil {
		p.fail(err)
	}
}

// sayBye tells the client that the server stops. It waits for nobody.
func (p *peer) sayBye() {
	if p.bye.Swap(true) {
		return
	}
	p.srv.serving.Go(func() { _ = p.write(frame(frameBye, nil)) }) // it will see the end anyway
}

// fail ends the client's connection: all the rest follows from that. It does not block.
func (p *peer) fail(err error) {
	p.cause.CompareAndSwap(nil, &err)
	_ = p.conn.Close()
}

// ring wakes the client where it sleeps.
func (p *peer) ring() {
	if p.sleeps.Load() != 0 && p.sleeps.Swap(0) != 0 {
		p.bell.Add(1)
		wake(p.bell)
	}
}

// listen looks whether the client's beat has moved and returns for how many looks it
// has not.
func (p *peer) listen() int {
	if p.beat == nil {
		return 0
	}
	if b := p.beat.Load(); b != p.heard {
		p.heard, p.missed = b, 0
	} else {
		p.missed++
	}
	return p.missed
}
