// SPDX-License-Identifier: Apache-2.0

package indexsrv

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"kindex/internal/kv"
	"kindex/lanes"
	"kindex/relay/feed"
	"kindex/shard"
)

// twin is one of two feeds that are told the same.
type twin struct {
	*Feed
	w *Writer
	h shard.Holder
}

func newTwin(t *testing.T, cfg StreamConfig, bound uint64) *twin {
	t.Helper()
	o := shard.Options{MaxOrphanBlocks: bound}
	idx, err := shard.NewSharded("reference", o, o)
	if err != nil {
		t.Fatal(err)
	}
	w := NewPoolWriter(idx, newLanes(t, 2))
	h, err := w.AddHolder(testModel)
	if err != nil {
		t.Fatal(err)
	}
	return &twin{NewFeed(cfg, w, h), w, h}
}

// messages makes what a publisher with every fault might send: gaps, repetitions,
// undecodable payloads, restarts, orphans, other block sizes, clears.
func messages(r *rand.Rand, n int) []feed.Message {
	var all []feed.Message
	seq := uint64(0)
	for range n {
		var evs []kv.Event
		for range 1 + r.IntN(4) {
			b := 1 + uint64(r.IntN(40))
			switch r.IntN(12) {
			case 0:
				evs = append(evs, clearAll())
			case 1:
				ev := storeOf(0, b)
				ev.BlockSize = 2 * testBlock
				evs = append(evs, ev)
			case 2, 3, 4:
				evs = append(evs, removeOf(b, b+1))
			default:
				evs = append(evs, storeOf(uint64(r.IntN(3))*b, b+1, b+2))
			}
		}
		m := feed.Message{Seq: seq, Payload: payload(evs...)}
		switch r.IntN(40) {
		case 0:
			m.Payload = m.Payload[:len(m.Payload)/2]
		case 1:
			seq += 2
			m.Seq = seq
		case 2:
			seq = 0
			m.Seq = 0
		case 3:
			m.Bad = true
		case 4:
			if len(all) > 0 {
				all = append(all, all[r.IntN(len(all))])
			}
		}
		all = append(all, m)
		seq++
	}
	return all
}

// TestBurstEqualsMessages: bursts of any length on a lane leave the feed and the
// index as the messages do one by one, whatever comes: with a replay socket, whose
// answers are bursts, too, and without one.
func TestBurstEqualsMessages(t *testing.T) {
	for _, replay := range []bool{false, true} {
		for seed := range uint64(30) {
			t.Run(fmt.Sprintf("replay=%v/%d", replay, seed), func(t *testing.T) {
				r := rand.New(rand.NewPCG(seed, 5))
				cfg := StreamConfig{Endpoint: "tcp://127.0.0.1:1", Model: testModel, BlockSize: testBlock}
				if replay {
					cfg.ReplayEndpoint = "tcp://127.0.0.1:2"
				}
				one, many := newTwin(t, cfg, 20), newTwin(t, cfg, 20)
				worker, err := many.w.Worker(many.h)
				if err != nil {
					t.Fatal(err)
				}
				now := epochTime
				one.Connected(now)
				many.Connected(now)
				told := messages(r, 200)
				b := &feed.Burst{Feed: many.Feed.Feed}
				hand := func(request uint64, msgs []feed.Message) {
					b.Replay, b.Received, b.Messages = request, now, msgs
					if err := worker.Do(b); err != nil {
						t.Fatal(err)
					}
				}
				for i := 0; i < len(told); {
					n := min(1+r.IntN(12), len(told)-i)
					for _, m := range told[i : i+n] {
						one.take(0, m, now)
					}
					hand(0, told[i:i+n])
					i += n
					now = now.Add(time.Second)
					req, ask, _ := one.Next(now)
					if req2, ask2, _ := many.Next(now); req != req2 || ask != ask2 {
						t.Fatalf("asked for %v %v one by one, for %v %v in bursts", req, ask, req2, ask2)
					}
					if ask {
						answer := answerOf(r, told[:i], req.Start)
						for _, m := range answer {
							one.take(req.ID, m, now)
						}
						hand(req.ID, answer)
						one.ReplayEnd(req.ID, now)
						many.ReplayEnd(req.ID, now)
					}
					compareTwins(t, one, many)
				}
			})
		}
	}
}

// take takes one message as a burst of it would.
func (f *twin) take(request uint64, m feed.Message, now time.Time) {
	switch {
	case m.Bad:
		f.BadMessage()
	case request != 0:
		f.ReplayBatch(request, m.Seq, m.Payload, now)
	default:
		f.Live(m.Seq, m.Payload, now)
	}
}

// answerOf is what a replay of what was told might say.
func answerOf(r *rand.Rand, told []feed.Message, start uint64) []feed.Message {
	last := map[uint64]feed.Message{}
	most := uint64(0)
	for _, m := range told {
		if !m.Bad {
			last[m.Seq], most = m, max(most, m.Seq)
		}
	}
	var out []feed.Message
	for seq := start; seq <= most; seq++ {
		if m, ok := last[seq]; ok && r.IntN(20) > 0 {
			out = append(out, m)
		}
	}
	return out
}

func compareTwins(t *testing.T, one, many *twin) {
	t.Helper()
	if d := cmp.Diff(one.Status(), many.Status()); d != "" {
		t.Fatalf("status differs (- one by one, + in bursts):\n%s", d)
	}
	want, err1 := shard.Digest(one.w, one.h)
	got, err2 := shard.Digest(many.w, many.h)
	if err := errors.Join(err1, err2); err != nil || got != want {
		t.Fatalf("digest %x in bursts, %x one by one (%v)", got, want, err)
	}
}

// TestBurstTells: each live message's times are told once, replayed ones' only of
// the shard.
func TestBurstTells(t *testing.T) {
	f := newFeedTest(t, true, nil).connect()
	id := f.asked(0)
	var applied, inShard int
	b := &feed.Burst{
		Feed: f.Feed.Feed, Received: time.Now(),
		Applied: func(d time.Duration) {
			if applied++; d <= 0 {
				t.Errorf("message %d took %v", applied, d)
			}
		},
		Committed: func(d time.Duration) {
			if inShard++; d < 0 {
				t.Errorf("message %d took %v in the shard", inShard, d)
			}
		},
	}
	b.Replay = id
	b.Messages = []feed.Message{{Seq: 0, Payload: payload(storeOf(0, 1))}, {Seq: 1, Payload: payload(storeOf(1, 2))}}
	if err := f.worker.Do(b); err != nil {
		t.Fatal(err)
	}
	f.ReplayEnd(id, f.now)
	if applied != 0 || inShard != 2 {
		t.Errorf("after two replayed messages: told of %d, of %d in the shard; want 0, 2", applied, inShard)
	}
	// One applied, one held behind a gap, one that is no message.
	b.Replay = 0
	b.Messages = []feed.Message{{Seq: 2, Payload: payload(storeOf(2, 3))}, {Seq: 4, Payload: payload(storeOf(3, 4))}, {Bad: true}}
	if err := f.worker.Do(b); err != nil {
		t.Fatal(err)
	}
	if applied != 2 || inShard != 3 {
		t.Errorf("after three live messages: told of %d, of %d in the shard; want 2, 3", applied, inShard)
	}
	f.want(1, 2, 3)
}

// A panic of the index comes out where the burst was handed over.
func TestBurstPanics(t *testing.T) {
	p, err := lanes.New(lanes.Options{Nodes: []lanes.Node{{Shards: 1, Lanes: 1}}})
	if err != nil {
		t.Fatal(err)
	}
	w := NewPoolWriter(brokenIndex{shard.NewReference(shard.Options{})}, p)
	h, err := w.AddHolder(testModel)
	if err != nil {
		t.Fatal(err)
	}
	worker, err := w.Worker(h)
	if err != nil {
		t.Fatal(err)
	}
	f := NewFeed(StreamConfig{Model: testModel, BlockSize: testBlock}, w, h)
	f.Connected(epochTime)
	b := &feed.Burst{Feed: f.Feed, Messages: []feed.Message{{Seq: 0, Payload: payload(storeOf(0, 1))}}}
	var pe *lanes.PanicError
	if err := worker.Do(b); !errors.As(err, &pe) || pe.Value != "planted" {
		t.Errorf("got %v, want the planted panic", err)
	}
	if err := p.Close(); !errors.As(err, &pe) {
		t.Errorf("closing: %v, want the planted panic", err)
	}
	if _, err := shard.Digest(w, h); err != nil { // hangs if the turn is still taken
		t.Error(err)
	}
}

type brokenIndex struct{ shard.Index }

func (brokenIndex) Store(shard.Holder, *shard.Store) error { panic("planted") }
