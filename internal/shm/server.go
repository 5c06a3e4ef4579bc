// SPDX-License-Identifier: Apache-2.0

// Before: connections to the socket. After: server_peer.go, one client each.

package shm

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// MaxClients is the most that a server takes: the kernel lets a thread wait for 128
// words at once, and one is the thread's own.
const MaxClients = maxWords - 1

// Handler answers requests.
type Handler interface {
	// Answer answers a batch in one shard: it sets each request's Status, Version and
	// Matches, the latter to what it appended to Matches.
	//
	// Concurrency: one call at a time for each shard.
	Answer(shard int, batch []Request)
}

// Tables is where the server's table comes from.
type Tables interface {
	// Table returns the table now, which nobody changes any more, and a channel that is
	// closed when there is a newer one.
	Table() (*Table, <-chan struct{})
}

// An Asker answers what is asked through the socket.
type Asker interface {
	// Ask answers body by any number of calls of say, until ctx ends or it returns. The
	// text of its error is shown to the client, with the number that kind gives it.
	Ask(ctx context.Context, body []byte, say func([]byte) error) (kind int, err error)
}

// ServerOptions say how a server works. Path, Layout, MaxClients, Allow, Handler and
// Tables are needed.
type ServerOptions struct {
	Path       string
	Layout     Layout
	MaxClients int
	Allow      func(Cred) bool
	Handler    Handler
	Tables     Tables
	Asker      Asker // nil: nothing is answered

	// Spin is how long a thread without work looks for some before it sleeps.
	Spin time.Duration
	// Place is called with a shard's part of each client's memory before it is touched.
	Place func(shard int, part []byte) error
	// Thread is called by each shard's goroutine as it begins, to pin it; what it
	// returns is called as it ends.
	Thread func(shard int) func()
	// Event is told who comes and goes. It may be called by several goroutines.
	Event func(Event)
	// Silence is how long a client that is connected may say nothing, in memory, before
	// it is dropped. Default 10 s.
	Silence time.Duration
}

// Event is something that happened to a client.
type Event struct {
	Kind EventKind
	Who  Cred
	Why  error // of EventRefused and EventDropped
}

// EventKind says what happened.
type EventKind uint8

// The kinds of events.
const (
	EventJoined  EventKind = iota
	EventLeft              // it went, or died
	EventDenied            // it may not
	EventRefused           // it may, and there is no room, or no memory
	EventDropped           // it broke the rules, or took nothing, or went silent
)

// Counters count what a server did.
type Counters struct {
	Requests atomic.Uint64 // answered, each shard's part for itself
	Late     atomic.Uint64 // whose deadline had passed
	Clients  atomic.Int64  // now
	Silent   atomic.Int64  // of them, those that say nothing
	Bytes    atomic.Int64  // memory of all clients
	Denied   atomic.Uint64
	Refused  atomic.Uint64
	Dropped  atomic.Uint64
}

// Server gives lookups to clients on the same machine.
//
// Order: NewServer, Listen, Serve, Drain.
type Server struct {
	Counters
	opts       ServerOptions
	ln         *net.UnixListener
	generation uint64
	threads    []*thread
	running    sync.WaitGroup // of threads
	serving    sync.WaitGroup // of clients
	blind      error          // why threads cannot be woken

	stop context.CancelFunc // ends all that is asked through sockets
	ctx  context.Context

	mu       sync.Mutex
	draining bool
	clients  map[*peer]struct{}
}

// NewServer returns a server that is nowhere yet.
func NewServer(o ServerOptions) (*Server, error) {
	if err := o.Layout.Check(); err != nil {
		return nil, err
	}
	if err := CheckPath(o.Path); err != nil {
		return nil, err
	}
	if o.MaxClients < 1 || o.MaxClients > MaxClients {
		return nil, fmt.Errorf("shm: %d clients: a server takes 1 to %d", o.MaxClients, MaxClients)
	}
	if !littleEndian {
		return nil, errors.New("shm: this machine is big-endian: the memory's words are not")
	}
	if o.Silence == 0 {
		o.Silence = 10 * time.Second
	}
	if o.Event == nil {
		o.Event = func(Event) {}
	}
	var b [8]byte
	if _, err := rand.Read(b[:]); err != nil {
		return nil, err
	}
	s := &Server{opts: o, generation: binary.LittleEndian.Uint64(b[:]) | 1, clients: map[*peer]struct{}{}}
	s.ctx, s.stop = context.WithCancel(context.Background())
	return s, nil
}

// Listen takes the socket.
//
// Errors: what keeps it from it, naming the path.
func (s *Server) Listen() (err error) {
	s.blind = canSleep()
	s.ln, err = listen(s.opts.Path)
	return err
}

// Blind returns why the threads cannot be woken and look again and again instead; nil
// where they can.
func (s *Server) Blind() error { return s.blind }

// Generation is the number of this life of the server.
func (s *Server) Generation() uint64 { return s.generation }

// Serve answers until Drain.
//
// Errors: what keeps it from accepting.
func (s *Server) Serve() error {
	for i := range s.opts.Layout.Shards {
		t := &thread{shard: i, opts: &s.opts, count: &s.Counters}
		t.sleeper.blind = s.blind != nil
		s.threads = append(s.threads, t)
		s.running.Go(t.run)
	}
	beat := time.NewTicker(beatEvery)
	ended := make(chan struct{})
	s.running.Go(func() {
		defer beat.Stop()
		for {
			select {
			case <-beat.C:
				s.listenForBeats()
			case <-ended:
				return
			}
		}
	})
	err := s.accept()
	if err != nil {
		s.cut()
	}
	s.serving.Wait()
	for _, t := range s.threads {
		t.do(command{stop: true})
	}
	close(ended)
	s.running.Wait()
	return err
}

// accept serves who comes until the listener is closed.
func (s *Server) accept() error {
	for {
		c, err := s.ln.AcceptUnix()
		switch {
		case err == nil:
		case errors.Is(err, net.ErrClosed):
			return nil
		case isScarce(err):
			// Out of descriptors: those that come wait in the kernel meanwhile.
			t := time.NewTimer(beatEvery)
			select {
			case <-t.C:
			case <-s.ctx.Done():
			}
			continue
		default:
			return err
		}
		s.mu.Lock()
		if s.draining {
			s.mu.Unlock()
			_ = c.Close()
			continue
		}
		s.serving.Add(1)
		s.mu.Unlock()
		go func() {
			defer s.serving.Done()
			s.serve(c)
		}()
	}
}

// Drain refuses what is new, tells the clients so, answers what has been asked and is
// still asked until they have gone, and cuts it short when ctx ends.
func (s *Server) Drain(ctx context.Context) error {
	s.mu.Lock()
	s.draining = true
	for p := range s.clients {
		p.sayBye()
	}
	s.mu.Unlock()
	err := s.ln.Close()
	gone := make(chan struct{})
	go func() {
		s.serving.Wait()
		close(gone)
	}()
	select {
	case <-gone:
	case <-ctx.Done():
	}
	s.cut()
	return err
}

// cut ends all connections.
func (s *Server) cut() {
	s.stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.draining = true
	for p := range s.clients {
		_ = p.conn.Close()
	}
}

// enter counts p among the clients.
func (s *Server) enter(p *peer) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.draining:
		return errors.New("this server is stopping")
	case len(s.clients) >= s.opts.MaxClients:
		return fmt.Errorf("this server takes %d clients at once and has them", s.opts.MaxClients)
	}
	s.clients[p] = struct{}{}
	s.Clients.Store(int64(len(s.clients)))
	return nil
}

func (s *Server) leave(p *peer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.clients, p)
	s.Clients.Store(int64(len(s.clients)))
}

// Parts calls fn with each shard's part of each client's memory, to look where it
// lies. No client goes meanwhile.
func (s *Server) Parts(fn func(shard int, part []byte)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.opts.Layout
	for p := range s.clients {
		if p.beat == nil {
			continue // it has no memory yet, or no more
		}
		for i := range l.Shards {
			at := l.shard(i)
			fn(i, p.mem.bytes[at:at+l.stride():at+l.stride()])
		}
	}
}

const (
	// silentBeats is after how many looks without a sign of life a side counts as
	// silent: 100 ms.
	silentBeats = 5
	// goneBeats is after how many a client gives a server up whose socket stands: 1 s. A
	// server that only waits for a core on a busy machine comes back before that, and to
	// connect anew would be more work for it.
	goneBeats = 50
)

// listenForBeats notes which clients live.
func (s *Server) listenForBeats() {
	s.mu.Lock()
	defer s.mu.Unlock()
	silent := int64(0)
	for p := range s.clients {
		n := p.listen()
		if n >= silentBeats {
			silent++
		}
		if time.Duration(n)*beatEvery > s.opts.Silence {
			p.fail(fmt.Errorf("no sign of life for %v", s.opts.Silence))
		}
	}
	s.Silent.Store(silent)
}
