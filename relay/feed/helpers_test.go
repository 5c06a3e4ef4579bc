// SPDX-License-Identifier: Apache-2.0

package feed

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"kindex/internal/kv"
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

// epochTime is where test clocks start.
var epochTime = time.Unix(1_800_000_000, 0)

// stampOf gives every payload made by tests its own timestamp, as engines do.
var stampOf float64 = 1_800_000_000

// payload encodes one batch of events.
func payload(events ...kv.Event) []byte {
	stampOf += 0.001
	return wire.AppendBatch(nil, &kv.Batch{Timestamp: stampOf, HasRank: true, Events: events}, testLayout)
}

// storeOf announces blocks by their engine hashes. parent 0 is none.
func storeOf(parent uint64, blocks ...uint64) kv.Event {
	ev := kv.Event{Kind: kv.KindStored, BlockSize: testBlock, Medium: "GPU", Spec: kv.SpecFull, SpecName: "full_attention", HasGroup: true}
	if parent != 0 {
		ev.Parent, ev.HasParent = kv.EngineHash(parent), true
	}
	for _, b := range blocks {
		ev.Hashes = append(ev.Hashes, kv.EngineHash(b))
		ev.Tokens = append(ev.Tokens, make([]uint32, testBlock)...)
	}
	return ev
}

// removeOf takes blocks away.
func removeOf(blocks ...uint64) kv.Event {
	ev := kv.Event{Kind: kv.KindRemoved, Medium: "GPU", HasGroup: true}
	for _, b := range blocks {
		ev.Hashes = append(ev.Hashes, kv.EngineHash(b))
	}
	return ev
}

func clearAll() kv.Event { return kv.Event{Kind: kv.KindCleared} }

// blockSink keeps the set of blocks held, which is all that tests of admission
// want to know of the content.
type blockSink struct {
	dec       wire.Decoder
	batch     kv.Batch
	timestamp float64
	blocks    map[uint64]bool
}

func (s *blockSink) Decodable(p []byte) bool { return s.dec.Decode(p, &s.batch) == nil }

func (s *blockSink) Stage(b *Batch) bool { return s.Decodable(b.Payload) }

func (s *blockSink) Commit(f *Faults) {
	s.timestamp = s.batch.Timestamp
	for i := range s.batch.Events {
		ev := &s.batch.Events[i]
		for _, h := range ev.Hashes {
			if ev.Kind == kv.KindStored {
				s.blocks[uint64(h)] = true
			} else {
				delete(s.blocks, uint64(h))
			}
		}
		if ev.Kind == kv.KindCleared {
			clear(s.blocks)
			f.Heal()
		}
	}
}

func (s *blockSink) Lost(uint64, uint64, string) {}

func (s *blockSink) Forget(Forget, *Faults) { clear(s.blocks) }

// held lists the blocks held, sorted.
func (s *blockSink) held() []uint64 { return slices.Sorted(maps.Keys(s.blocks)) }

// feedTest drives a feed by hand.
type feedTest struct {
	testing.TB
	*Feed
	sink  *blockSink
	now   time.Time
	burst Burst
}

// newFeedTest returns a feed; replay says whether it has a replay socket.
func newFeedTest(t testing.TB, replay bool, edit func(*Config)) *feedTest {
	t.Helper()
	cfg := Config{Endpoint: "tcp://127.0.0.1:1"}
	if replay {
		cfg.ReplayEndpoint = "tcp://127.0.0.1:2"
	}
	if edit != nil {
		edit(&cfg)
	}
	s := &blockSink{blocks: map[uint64]bool{}}
	return &feedTest{TB: t, Feed: New(cfg, s), sink: s, now: epochTime}
}

func (f *feedTest) connect() *feedTest {
	f.Connected(f.now)
	return f
}

// Live and ReplayBatch go the way of a stream's: as a burst.
func (f *feedTest) Live(seq uint64, payload []byte, now time.Time) { f.run(0, seq, payload, now) }

func (f *feedTest) ReplayBatch(id, seq uint64, payload []byte, now time.Time) {
	if id == 0 { // no request: a burst would take it for a live one
		f.Feed.ReplayBatch(id, seq, payload, now)
		return
	}
	f.run(id, seq, payload, now)
}

func (f *feedTest) run(id, seq uint64, payload []byte, now time.Time) {
	f.burst.Feed, f.burst.Replay, f.burst.Received = f.Feed, id, now
	f.burst.Messages = append(f.burst.Messages[:0], Message{Seq: seq, Payload: payload})
	f.burst.Run(nil)
}

func (f *feedTest) live(seq uint64, events ...kv.Event) { f.Live(seq, payload(events...), f.now) }

// want fails unless the blocks held are exactly these.
func (f *feedTest) want(blocks ...uint64) {
	f.Helper()
	if got := f.sink.held(); !slices.Equal(got, blocks) {
		f.Fatalf("held blocks: got %v, want %v", got, blocks)
	}
}

func (f *feedTest) wantState(want State) {
	f.Helper()
	if st := f.Status(); st.State != want {
		f.Fatalf("state: got %v (%s), want %v", st.State, st.LastError, want)
	}
}

// asked returns the request that the feed wants made now.
func (f *feedTest) asked(start uint64) uint64 {
	f.Helper()
	req, ask, _ := f.Next(f.now)
	if !ask || req.Start != start {
		f.Fatalf("replay request: got %v from %d, want one from %d", ask, req.Start, start)
	}
	return req.ID
}

func (f *feedTest) notAsked() {
	f.Helper()
	if req, ask, _ := f.Next(f.now); ask {
		f.Fatalf("replay request: got one from %d, want none", req.Start)
	}
}

// answer plays batches from..., then the end marker, to request id.
func (f *feedTest) answer(id uint64, from uint64, payloads ...[]byte) {
	for i, p := range payloads {
		f.ReplayBatch(id, from+uint64(i), p, f.now)
	}
	f.ReplayEnd(id, f.now)
}

func statusLine(st Status) string {
	return fmt.Sprintf("state %v (%s), repairing %v, last %d (%v), epoch %d, gaps %d, recovered %d, lost %d, restarts %d, duplicates %d, held %d, malformed %d",
		st.State, st.LastError, st.Repairing, st.LastSeq, st.HasSeq, st.Epoch, st.Gaps, st.Recovered, st.Lost, st.Restarts, st.Duplicates, st.HeldBatches, st.Malformed)
}

func contains(s, part string) bool { return strings.Contains(s, part) }
