// SPDX-License-Identifier: Apache-2.0

// Before: rank.go. After: a relay's or an index host's sockets.

package engine

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	zmq "github.com/pebbe/zmq4"

	"kindex/internal/kv"
	"kindex/relay/wire"
)

const (
	// maxRequest bounds one frame of a replay request, in bytes.
	maxRequest = 1 << 10
	// sendLimit is how many messages wait for a slow subscriber before the socket
	// forgets them: vLLM's default.
	sendLimit = 100_000
	// glance is how often the replay goroutine looks whether it shall end.
	glance = 50 * time.Millisecond
)

// Publisher publishes one rank's batches as an engine does: numbered from 0, live
// on a PUB socket, and from a bounded buffer to whoever asks its ROUTER. As in an
// engine nothing is published while a replay is answered.
//
// Concurrency: any goroutine.
type Publisher struct {
	layout *wire.Layout
	topic  string
	rank   int
	steps  int // batches that the buffer keeps
	dials  bool

	Live, Replay string // where the sockets are; Replay is empty without one

	mu      sync.Mutex
	pub     *zmq.Socket // used under mu; nil: it could not be bound again
	lives   sync.Mutex  // held while a life begins or the last one ends
	life    atomic.Uint64
	asked   chan struct{} // closed when the life's replays have ended; guarded by mu
	buffer  []kept        // oldest first; guarded by mu
	next    uint64        // number of the next batch; guarded by mu
	harm    harm          // guarded by mu
	late    []kept        // batches on their way, oldest first; guarded by mu
	due     []time.Time   // when each of these is sent; guarded by mu
	hurry   chan struct{}
	ended   atomic.Bool
	replays sync.WaitGroup
}

// harm is what happens to batches on their way, and happened.
type harm struct {
	drop    int           // batches not to send
	keep    bool          // those go into the buffer all the same
	delay   time.Duration // of each batch
	corrupt int           // batches whose bytes are changed on the live socket

	dropped, delayed, corrupted uint64 // batches so far
}

// kept is one batch in the replay buffer.
type kept struct {
	seq     uint64
	payload []byte
}

// PublisherConfig says where and how a publisher publishes.
type PublisherConfig struct {
	Layout *wire.Layout
	Topic  string
	Rank   int
	Pub    string // rank 0's event endpoint; rank r is at port + r, port 0 takes any
	Replay string // rank 0's replay endpoint, as Pub; "": none
	Buffer int    // batches that can be asked for again
	Dials  bool   // the event socket connects: whoever reads it binds. The replay's binds all the same
}

// NewPublisher binds the sockets.
//
// Errors: an endpoint that is none or cannot be bound, named.
func NewPublisher(c PublisherConfig) (*Publisher, error) {
	p := &Publisher{layout: c.Layout, topic: c.Topic, rank: c.Rank, steps: c.Buffer, dials: c.Dials, hurry: make(chan struct{}, 1)}
	var err error
	if p.pub, p.Live, err = open(zmq.PUB, c.Pub, c.Rank, sendLimit, c.Dials); err != nil {
		return nil, fmt.Errorf("--pub: %w", err)
	}
	if c.Replay == "" {
		p.replays.Go(p.sendLate)
		return p, nil
	}
	// A whole buffer must fit, lest a slow reader miss a part of it.
	router, at, err := bind(zmq.ROUTER, c.Replay, c.Rank, 2*(c.Buffer+1))
	if err != nil {
		_ = p.pub.Close()
		return nil, fmt.Errorf("--replay: %w", err)
	}
	p.Replay = at
	p.answers(router)
	p.replays.Go(p.sendLate)
	return p, nil
}

// answers begins to answer replay requests of this life. The caller holds mu, or
// nobody has p yet.
func (p *Publisher) answers(router *zmq.Socket) {
	life, asked := p.life.Load(), make(chan struct{})
	p.asked = asked
	p.replays.Go(func() {
		defer close(asked)
		p.serve(router, life)
	})
}

// Close ends the sockets.
func (p *Publisher) Close() {
	p.lives.Lock()
	defer p.lives.Unlock()
	if p.ended.Swap(true) {
		return
	}
	p.nudge()
	p.replays.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pub != nil {
		_ = p.pub.Close()
	}
}

var errClosed = errors.New("the publisher is closed")

// Publish sends events, not none, as one batch and returns its number.
func (p *Publisher) Publish(events []kv.Event) (uint64, error) {
	batch := kv.Batch{Timestamp: float64(time.Now().UnixNano()) / 1e9, Rank: p.rank, HasRank: true, Events: events}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended.Load() || p.pub == nil {
		return 0, errClosed
	}
	b := kept{p.next, wire.AppendBatch(nil, &batch, p.layout)}
	p.next++
	if p.harm.delay > 0 || len(p.late) > 0 {
		p.harm.delayed++
		p.late, p.due = append(p.late, b), append(p.due, time.Now().Add(p.harm.delay))
		p.nudge()
		return b.seq, nil
	}
	return b.seq, p.send(b)
}

// send puts a batch on the wire and into the buffer, unless it is lost. The caller
// holds mu.
func (p *Publisher) send(b kept) error {
	dropped := p.harm.drop > 0
	if dropped {
		p.harm.dropped++
		if p.harm.drop--; !p.harm.keep {
			return nil
		}
	}
	p.buffer = append(p.buffer, b)
	if extra := len(p.buffer) - p.steps; extra > 0 {
		clear(p.buffer[:extra])
		p.buffer = p.buffer[extra:] // appending copies it once in a while, not each time
	}
	if dropped {
		return nil
	}
	payload := b.payload
	if p.harm.corrupt > 0 {
		p.harm.corrupt--
		p.harm.corrupted++
		payload = corrupted(b)
	}
	_, err := p.pub.SendMessage(wire.MakeMessage(p.topic, b.seq, payload))
	return err
}

// corrupted returns a batch's bytes so that nobody can take them for a batch: cut in
// half, or begun with the one byte that MessagePack never has.
func corrupted(b kept) []byte {
	if b.seq%2 == 0 {
		return b.payload[:len(b.payload)/2]
	}
	out := slices.Clone(b.payload)
	out[0] = 0xc1
	return out
}

// nudge wakes sendLate.
func (p *Publisher) nudge() {
	select {
	case p.hurry <- struct{}{}:
	default:
	}
}

// sendLate sends delayed batches when they are due, until the publisher is closed.
func (p *Publisher) sendLate() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for !p.ended.Load() {
		if next, some := p.sendDue(); some {
			timer.Reset(time.Until(next))
		}
		select {
		case <-p.hurry:
		case <-timer.C:
		}
	}
}

// sendDue sends what is due and returns when the next is.
func (p *Publisher) sendDue() (next time.Time, some bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.late) > 0 && !p.due[0].After(time.Now()) {
		_ = p.send(p.late[0])
		p.late, p.due = p.late[1:], p.due[1:]
	}
	if len(p.late) == 0 {
		return time.Time{}, false
	}
	return p.due[0], true
}

// Drop has the next n batches lost on their way. With keep they can be asked for;
// without nobody ever gets them. 0 undoes it.
func (p *Publisher) Drop(n int, keep bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.harm.drop, p.harm.keep = n, keep
}

// Delay has every batch from now on sent, and to be had from a replay, that much
// later. 0 undoes it: those on their way are sent at once.
func (p *Publisher) Delay(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.harm.delay = d
	if d == 0 {
		now := time.Now()
		for i := range p.due {
			p.due[i] = now
		}
	}
	p.nudge()
}

// Corrupt has the next n batches come as bytes that are no batch; a replay has them
// whole. 0 undoes it.
func (p *Publisher) Corrupt(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.harm.corrupt = n
}

// harmed returns what happens to batches now, and happened.
func (p *Publisher) harmed() harm {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.harm
}

// Published returns the number of the last batch, and whether there is one.
func (p *Publisher) Published() (uint64, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.next - 1, p.next > 0
}

// Forget begins another life on the same sockets, as a restarted engine does:
// numbers from 0 and nothing to ask for again.
func (p *Publisher) Forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.forget()
}

// forget is Forget; the caller holds mu.
func (p *Publisher) forget() {
	p.buffer, p.next, p.late, p.due, p.harm.drop = nil, 0, nil, nil, 0
}

// Rebind is Forget on new sockets at the same endpoints: who was connected is cut, and
// connects again.
//
// Errors: an endpoint that was taken meanwhile. The publisher is closed then.
func (p *Publisher) Rebind() error {
	p.lives.Lock()
	defer p.lives.Unlock()
	p.life.Add(1)
	p.mu.Lock()
	asked := p.asked
	p.mu.Unlock()
	if asked != nil {
		<-asked
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended.Load() || p.pub == nil {
		return errClosed
	}
	_ = p.pub.Close()
	p.pub = nil
	p.forget()
	pub, err := rebind(zmq.PUB, p.Live, sendLimit, p.dials)
	if err != nil || p.Replay == "" {
		p.pub = pub
		return err
	}
	router, err := rebind(zmq.ROUTER, p.Replay, 2*(p.steps+1), false)
	if err != nil {
		_ = pub.Close()
		return err
	}
	p.pub = pub
	p.answers(router)
	return nil
}

const (
	rebindTries = 100
	rebindPause = 20 * time.Millisecond
)

// rebind opens a socket where one was just closed, which the system may take a moment
// to see.
func rebind(kind zmq.Type, at string, sndhwm int, dials bool) (*zmq.Socket, error) {
	var last error
	for range rebindTries {
		s, _, err := open(kind, at, 0, sndhwm, dials)
		if err == nil {
			return s, nil
		}
		last = err
		pause := time.NewTimer(rebindPause)
		<-pause.C
	}
	return nil, last
}

// serve answers replay requests until the life or the publisher ends.
func (p *Publisher) serve(router *zmq.Socket, life uint64) {
	defer func() { _ = router.Close() }()
	for !p.ended.Load() && p.life.Load() == life {
		frames, err := router.RecvMessageBytes(0)
		if err != nil || len(frames) < 1 {
			continue // nothing asked within a glance
		}
		start, err := wire.ParseReplayRequest(frames[1:])
		if err != nil {
			continue // an engine answers nothing
		}
		p.answer(router, frames[0], start)
	}
}

// answer sends what the buffer has from start on. A client that went away costs
// nothing.
func (p *Publisher) answer(router *zmq.Socket, client []byte, start uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, b := range p.buffer {
		if b.seq >= start {
			_, _ = router.SendMessage(client, wire.MakeReplay(p.layout.Replay, p.topic, b.seq, b.payload))
		}
	}
	_, _ = router.SendMessage(client, wire.MakeReplayEnd(p.layout.Replay))
}

// bind opens one socket at endpoint's port + rank and returns where it is.
func bind(kind zmq.Type, endpoint string, rank, sndhwm int) (*zmq.Socket, string, error) {
	return open(kind, endpoint, rank, sndhwm, false)
}

// open is bind, or connects there.
func open(kind zmq.Type, endpoint string, rank, sndhwm int, dials bool) (*zmq.Socket, string, error) {
	at, err := Endpoint(endpoint, rank)
	if err != nil {
		return nil, "", err
	}
	s, err := zmq.NewSocket(kind)
	if err != nil {
		return nil, "", err
	}
	err = errors.Join(s.SetLinger(0), s.SetMaxmsgsize(maxRequest), s.SetSndhwm(sndhwm), s.SetRcvtimeo(glance))
	switch {
	case err != nil:
	case dials:
		if err = s.Connect(at); err == nil {
			return s, at, nil
		}
	default:
		err = s.Bind(at)
	}
	if err != nil {
		_ = s.Close()
		return nil, "", fmt.Errorf("%s: %w", at, err)
	}
	if bound, err := s.GetLastEndpoint(); err == nil && bound != "" && !strings.Contains(at, "*") {
		at = bound
	}
	return s, at, nil
}

// Endpoint returns rank 0's endpoint with its port moved by rank, as engines do.
// Port 0 stays 0.
//
// Errors: what is no tcp://host:port, or ipc://path for a rank but 0.
func Endpoint(endpoint string, rank int) (string, error) {
	rest, ok := strings.CutPrefix(endpoint, "tcp://")
	if !ok {
		if strings.HasPrefix(endpoint, "ipc://") && rank == 0 {
			return endpoint, nil
		}
		return "", fmt.Errorf("%q must be tcp://host:port (ipc://path for one rank)", endpoint)
	}
	host, port, err := net.SplitHostPort(rest)
	n, perr := strconv.ParseUint(port, 10, 16)
	if err != nil || perr != nil || host == "" {
		return "", fmt.Errorf("%q must be tcp://host:port", endpoint)
	}
	if n == 0 {
		return endpoint, nil
	}
	if n += uint64(rank); n > 65535 {
		return "", fmt.Errorf("%q: rank %d would be port %d, past 65535", endpoint, rank, n)
	}
	return "tcp://" + net.JoinHostPort(host, strconv.FormatUint(n, 10)), nil
}
