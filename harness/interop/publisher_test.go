// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"fmt"
	"sync"
	"testing"
	"time"

	zmq "github.com/pebbe/zmq4"

	"kindex/relay/wire"
)

// A publisher plays the batches of one rank as an engine does: live on a PUB
// socket, and again on a ROUTER socket to whoever asks from where.
//
// Concurrency: methods may be called from the test's goroutine only.
type publisher struct {
	Live, Replay string // endpoints

	pub    *zmq.Socket // XPUB: it sees who subscribes
	topic  string
	frames wire.ReplayFrames // how replies are framed
	served sync.WaitGroup
	stop   chan struct{}

	mu       sync.Mutex
	payloads [][]byte // the replay buffer, by sequence; guarded by mu
}

// newPublisher binds both sockets on loopback ports of the system's choice. The
// history was published before anybody listened: only a replay returns it.
func newPublisher(t *testing.T, topic string, history [][]byte, frames wire.ReplayFrames) *publisher {
	t.Helper()
	p := &publisher{topic: topic, frames: frames, stop: make(chan struct{}), payloads: history}
	open := func(kind zmq.Type) (*zmq.Socket, string) {
		s, err := zmq.NewSocket(kind)
		if err != nil {
			t.Fatal(err)
		}
		for _, set := range []error{s.SetLinger(0), s.SetSndhwm(100_000), s.Bind("tcp://127.0.0.1:*")} {
			if set != nil {
				t.Fatal(set)
			}
		}
		at, err := s.GetLastEndpoint()
		if err != nil {
			t.Fatal(err)
		}
		return s, at
	}
	p.pub, p.Live = open(zmq.XPUB)
	if err := p.pub.SetXpubVerbose(1); err != nil { // every subscriber, not every new topic
		t.Fatal(err)
	}
	var router *zmq.Socket
	router, p.Replay = open(zmq.ROUTER)
	p.served.Go(func() { p.serve(router) })
	t.Cleanup(p.close)
	return p
}

func (p *publisher) close() {
	if p.stop != nil {
		close(p.stop)
		p.served.Wait()
		_ = p.pub.Close()
		p.stop = nil
	}
}

// awaitSubscribers waits until n sockets have subscribed.
func (p *publisher) awaitSubscribers(t *testing.T, n int) {
	t.Helper()
	if err := p.pub.SetRcvtimeo(20 * time.Second); err != nil {
		t.Fatal(err)
	}
	for got := 0; got < n; {
		msg, err := p.pub.RecvBytes(0)
		if err != nil {
			t.Fatalf("%d of %d subscribed to %s: %v", got, n, p.Live, err)
		}
		if len(msg) > 0 && msg[0] == 1 {
			got++
		}
	}
}

// publish sends payload under the next sequence and returns that.
func (p *publisher) publish(t *testing.T, payload []byte) uint64 {
	t.Helper()
	seq := p.keep(payload)
	if _, err := p.pub.SendMessage(anys(wire.MakeMessage(p.topic, seq, payload))...); err != nil {
		t.Fatal(err)
	}
	return seq
}

// keep enters payload in the replay buffer under the next sequence, as if the
// live message had been lost on its way.
func (p *publisher) keep(payload []byte) uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.payloads = append(p.payloads, payload)
	return uint64(len(p.payloads) - 1)
}

// restart begins another life: sequence 0, an empty replay buffer.
func (p *publisher) restart() {
	p.mu.Lock()
	p.payloads = nil
	p.mu.Unlock()
}

// from returns what the replay buffer holds from start on.
func (p *publisher) from(start uint64) [][]byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.payloads[min(start, uint64(len(p.payloads))):]
}

// serve answers replay requests.
func (p *publisher) serve(router *zmq.Socket) {
	defer func() { _ = router.Close() }()
	_ = router.SetRcvtimeo(50 * time.Millisecond)
	for stop := p.stop; ; {
		select {
		case <-stop:
			return
		default:
		}
		parts, err := router.RecvMessageBytes(0)
		if err != nil || len(parts) == 0 {
			continue // nothing asked within the timeout
		}
		start, err := wire.ParseReplayRequest(parts[1:])
		if err != nil {
			fmt.Println("replay request:", err)
			continue
		}
		reply := func(frames [][]byte) {
			if _, err := router.SendMessage(anys(append([][]byte{parts[0]}, frames...))...); err != nil {
				fmt.Println("replay:", err)
			}
		}
		for i, payload := range p.from(start) {
			reply(wire.MakeReplay(p.frames, p.topic, start+uint64(i), payload))
		}
		reply(wire.MakeReplayEnd(p.frames))
	}
}

func anys(frames [][]byte) []any {
	out := make([]any, len(frames))
	for i, f := range frames {
		out[i] = f
	}
	return out
}
