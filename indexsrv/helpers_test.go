// SPDX-License-Identifier: Apache-2.0

package indexsrv

import (
	"slices"
	"testing"
	"time"

	"kindex/internal/kv"
	"kindex/lanes"
	"kindex/relay/feed"
	"kindex/relay/wire"
	"kindex/shard"
)

const (
	testModel = kv.ModelKey(7)
	testBlock = 16
)

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

// blockTokens are the tokens of the block that tests call n.
func blockTokens(n uint64) []uint32 {
	t := make([]uint32, testBlock)
	for i := range t {
		t[i] = uint32(n)*testBlock + uint32(i) + 1
	}
	return t
}

// storeOf announces device copies of the blocks called by their engine hashes:
// the content of a block follows from its hash. parent 0 is none.
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

// removeOf takes away one device copy each.
func removeOf(blocks ...uint64) kv.Event {
	ev := kv.Event{Kind: kv.KindRemoved, Medium: "GPU", HasGroup: true}
	for _, b := range blocks {
		ev.Hashes = append(ev.Hashes, kv.EngineHash(b))
	}
	return ev
}

func clearAll() kv.Event { return kv.Event{Kind: kv.KindCleared} }

// chainOf is the content of a chain of blocks in a namespace.
func chainOf(seed uint64, blocks ...uint64) []kv.ContentHash {
	c := make([]kv.ContentHash, len(blocks))
	for i, b := range blocks {
		c[i] = kv.HashBlock(seed, blockTokens(b), nil)
	}
	return c
}

func newIndex(t testing.TB) *Writer {
	t.Helper()
	idx, err := shard.NewSharded("reference", shard.Options{}, shard.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return NewPoolWriter(idx, newLanes(t, idx.Shards()))
}

// newLanes returns two lanes for so many shards.
func newLanes(t testing.TB, shards int) *lanes.Pool {
	t.Helper()
	p, err := lanes.New(lanes.Options{Nodes: []lanes.Node{{Shards: shards, Lanes: 2}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// depth is how deep h holds the bare chain of blocks, in any tier.
func depth(w *Writer, h shard.Holder, blocks ...uint64) int {
	return depthIn(w, h, kv.HashSeed, blocks...)
}

func depthIn(w *Writer, h shard.Holder, seed uint64, blocks ...uint64) int {
	for _, m := range w.Lookup(testModel.Namespace(seed), chainOf(seed, blocks...), nil) {
		if m.Holder == uint32(h) {
			return int(m.Any)
		}
	}
	return 0
}

// heldBy lists the engine hashes by which h holds anything, sorted.
func heldBy(t testing.TB, w *Writer, h shard.Holder) []uint64 {
	t.Helper()
	var out []uint64
	err := w.Walk(h, func(n *shard.Node) bool {
		for _, c := range n.Copies {
			out = append(out, uint64(c.Engine))
		}
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// feedTest drives a feed by hand.
type feedTest struct {
	testing.TB
	*Feed
	w   *Writer
	h   shard.Holder
	now time.Time

	worker *lanes.Worker // nil: no lanes
	burst  feed.Burst
}

// Live and ReplayBatch go the way of a host's: on a lane, waited for.
func (f *feedTest) Live(seq uint64, payload []byte, now time.Time) { f.run(0, seq, payload, now) }

func (f *feedTest) ReplayBatch(id, seq uint64, payload []byte, now time.Time) {
	if id == 0 { // no request: a burst would take it for a live one
		f.Feed.ReplayBatch(id, seq, payload, now)
		return
	}
	f.run(id, seq, payload, now)
}

func (f *feedTest) run(id, seq uint64, payload []byte, now time.Time) {
	f.burst.Feed, f.burst.Replay, f.burst.Received = f.Feed.Feed, id, now
	f.burst.Messages = append(f.burst.Messages[:0], feed.Message{Seq: seq, Payload: payload})
	if f.worker == nil {
		f.burst.Run(nil)
	} else if err := f.worker.Do(&f.burst); err != nil {
		f.Fatal(err)
	}
}

// newFeedTest returns a feed; replay says whether it has a replay socket.
func newFeedTest(t testing.TB, replay bool, edit func(*StreamConfig)) *feedTest {
	t.Helper()
	w := newIndex(t)
	h, err := w.AddHolder(testModel)
	if err != nil {
		t.Fatal(err)
	}
	cfg := StreamConfig{Endpoint: "tcp://127.0.0.1:1", Model: testModel, BlockSize: testBlock}
	if replay {
		cfg.ReplayEndpoint = "tcp://127.0.0.1:2"
	}
	if edit != nil {
		edit(&cfg)
	}
	worker, err := w.Worker(h)
	if err != nil {
		t.Fatal(err)
	}
	return &feedTest{TB: t, Feed: NewFeed(cfg, w, h), w: w, h: h, now: epochTime, worker: worker}
}

func (f *feedTest) connect() *feedTest {
	f.Connected(f.now)
	return f
}

func (f *feedTest) live(seq uint64, events ...kv.Event) { f.Live(seq, payload(events...), f.now) }

// want fails unless the blocks held are exactly these.
func (f *feedTest) want(blocks ...uint64) {
	f.Helper()
	if got := heldBy(f, f.w, f.h); !slices.Equal(got, blocks) {
		f.Fatalf("held blocks: got %v, want %v", got, blocks)
	}
}

func (f *feedTest) wantState(want feed.State) {
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
