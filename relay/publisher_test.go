// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"fmt"
	"testing"
	"time"

	"kindex/internal/kv"
	"kindex/relay/feed"
	"kindex/relay/wire"
)

const testBlock = 16

var testLayout = func() *wire.Layout {
	l, err := wire.LayoutFor("vllm", "0.32.0")
	if err != nil {
		panic(err)
	}
	return l
}()

// payload encodes one batch of events; at makes its bytes its own.
func payload(at float64, events ...kv.Event) []byte {
	return wire.AppendBatch(nil, &kv.Batch{Timestamp: at, Events: events}, testLayout)
}

// blockTokens are the tokens of the block that tests call n.
func blockTokens(n uint64) []uint32 {
	t := make([]uint32, testBlock)
	for i := range t {
		t[i] = uint32(n)*testBlock + uint32(i) + 1
	}
	return t
}

// storeOf announces device copies of the blocks called by their engine hashes.
// parent 0 is none.
func storeOf(parent uint64, blocks ...uint64) kv.Event {
	ev := kv.Event{Kind: kv.KindStored, BlockSize: testBlock, Medium: "GPU", Spec: kv.SpecFull, SpecName: "full_attention", HasGroup: true}
	if parent != 0 {
		ev.Parent, ev.HasParent = kv.EngineHash(parent), true
	}
	for _, b := range blocks {
		ev.Hashes = append(ev.Hashes, kv.EngineHash(b))
		ev.Tokens = append(ev.Tokens, blockTokens(b)...)
	}
	return ev
}

func clearAll() kv.Event { return kv.Event{Kind: kv.KindCleared} }

// publisher is the sockets of one rank of an engine, in memory. What it keeps its
// replay answers with, at once; a rank opened without a replay endpoint is not
// asked. Its clock moves when the test says so.
type publisher struct {
	stream *feed.Stream
	now    time.Time
	kept   []feed.Message // by number, ascending
	deaf   bool           // requests fail
	asked  int
	wake   time.Time
}

// publishers is a feed.Source of publishers by rank.
type publishers []*publisher

func newPublishers(n int) publishers {
	ps := make(publishers, n)
	for i := range ps {
		ps[i] = &publisher{now: time.Unix(1_800_000_000, 0)}
	}
	return ps
}

// Open implements [feed.Source].
func (ps publishers) Open(cfg *feed.Config, s *feed.Stream) (feed.Tap, error) {
	ps[cfg.Rank].stream = s
	return closedTap{}, nil
}

// Close implements [feed.Source].
func (publishers) Close() error { return nil }

type closedTap struct{}

func (closedTap) Close() {}

// connect makes the publisher reachable; what it keeps is read at once.
func (p *publisher) connect() {
	p.stream.Connected(p.now)
	p.settle()
}

func (p *publisher) disconnect() {
	p.stream.Disconnected("the test says so", p.now)
	p.settle()
}

// publish keeps a batch under its number and sends it.
func (p *publisher) publish(seq uint64, payload []byte) {
	p.keep(seq, payload)
	p.send(seq, payload)
}

// keep makes a batch one that the replay has.
func (p *publisher) keep(seq uint64, payload []byte) {
	p.kept = append(p.kept, feed.Message{Seq: seq, Payload: payload})
}

// send sends a batch live.
func (p *publisher) send(seq uint64, payload []byte) {
	p.stream.Live([]feed.Message{{Seq: seq, Payload: payload}}, p.now)
	p.settle()
}

// settle does what the feed wants until it wants nothing now.
func (p *publisher) settle() {
	for {
		req, ask, wake := p.stream.Next(p.now)
		p.wake = wake
		if !ask {
			return
		}
		p.asked++
		if p.deaf {
			p.stream.Replayed(req.ID, nil, true, fmt.Errorf("deaf"), p.now)
			continue
		}
		var answer []feed.Message
		for _, m := range p.kept {
			if m.Seq >= req.Start {
				answer = append(answer, m)
			}
		}
		p.stream.Replayed(req.ID, answer, true, nil, p.now)
	}
}

// pass lets time pass.
func (p *publisher) pass(d time.Duration) {
	for end := p.now.Add(d); p.now.Before(end); {
		p.now = end
		if !p.wake.IsZero() && p.wake.Before(end) {
			p.now = p.wake
		}
		p.settle()
	}
}

// openTest opens an engine on publishers in memory, with a replay socket.
func openTest(t testing.TB, ranks int, with func(*EngineConfig)) (*Engine, publishers) {
	t.Helper()
	cfg := EngineConfig{
		Name: "w0", Kind: "vllm", Ranks: ranks,
		Endpoint: "tcp://127.0.0.1:5557", Replay: "tcp://127.0.0.1:5657",
	}
	if with != nil {
		with(&cfg)
	}
	ps := newPublishers(ranks)
	e, err := OpenEngine(cfg, ps)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	return e, ps
}
