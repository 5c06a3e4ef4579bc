// SPDX-License-Identifier: Apache-2.0

package live

import (
	"errors"
	"runtime"
	"strings"
	"testing"

	"kindex/internal/kv"
	"kindex/internal/livedigest"
	"kindex/relay/normal"
	"kindex/shard"
)

// rig is a state with one subscriber of each form, fed with hand-made events.
type rig struct {
	t     testing.TB
	norm  *normal.Normaliser
	state *State
	fx    Effects
	own   *holder
	peer  *holder
	book  livedigest.Book
}

func newRig(t testing.TB, o Options) *rig {
	return &rig{
		t: t, norm: normal.New(normal.Config{BlockSize: 2}), state: New(o),
		own: newHolder(t, shard.Options{}), peer: newHolder(t, shard.Options{}),
	}
}

// batch applies events and has the subscribers follow.
func (r *rig) batch(events ...kv.Event) {
	r.t.Helper()
	b := kv.Batch{Events: events}
	r.state.Apply(&b, r.norm.Batch(&b), &r.fx)
	r.own.own(ownEvents(r.t, AppendOwn(nil, &r.fx)), &r.book)
	if !r.state.opts.HashTokens {
		p, _ := AppendPeer(nil, &r.fx, 1)
		r.peer.peer(peerEvents(r.t, p))
	}
}

// check compares the subscribers and snapshots with each other.
func (r *rig) check() content {
	r.t.Helper()
	want := r.own.content()
	checkInvariants(r.t, r.state)
	c, err := r.state.Cut()
	if err != nil {
		r.t.Fatal(err)
	}
	defer c.Close()
	checkOwn(r.t, c, want, r.own.digest())
	if !r.state.opts.HashTokens {
		same(r.t, "peer's effects", r.peer.content(), want)
		checkPeer(r.t, c, manyNumbers, want)
	}
	return want
}

// run returns a store of engine hashes first, first+1, ... below parent; 0: none.
func run(parent, first uint64, n int) kv.Event {
	ev := kv.Event{BlockSize: 2}
	if parent != 0 {
		ev.Parent, ev.HasParent = kv.EngineHash(parent), true
	}
	for i := range uint64(n) {
		ev.Hashes = append(ev.Hashes, kv.EngineHash(first+i))
		ev.Tokens = append(ev.Tokens, uint32(first+i), 7)
	}
	return ev
}

// removal takes away what run stored.
func removal(first uint64, n int) kv.Event {
	ev := run(0, first, n)
	return kv.Event{Kind: kv.KindRemoved, Hashes: ev.Hashes}
}

func host(ev kv.Event) kv.Event { ev.Tier, ev.Medium = kv.TierHost, "CPU"; return ev }

func placeholder(first uint64, n int) kv.Event {
	return host(kv.Event{Hashes: run(0, first, n).Hashes})
}

func TestMaxBlocks(t *testing.T) {
	r := newRig(t, Options{MaxBlocks: 10})
	r.batch(run(0, 1, 8), host(run(0, 1, 2)))
	moved := run(8, 2, 3) // 2 to 4 would move below 8
	moved.Hashes = append(moved.Hashes, 100)
	moved.Tokens = append(moved.Tokens, 1, 1)
	r.batch(moved)
	if got := len(r.check()); got != 5 {
		t.Errorf("%d blocks after a store past the limit, want 5: those it would have moved are gone", got)
	}
	if st := r.state.Stats(); st.Refused != 4 || st.Blocks != 5 || st.Ghosts != 3 {
		t.Errorf("got %+v, want 4 refused, 5 blocks, 3 ghosts", st)
	}
	r.batch(kv.Event{Kind: kv.KindCleared}, run(0, 1, 10))
	if got := len(r.check()); got != 10 {
		t.Errorf("%d blocks after a clear, want 10", got)
	}
}

// A store that needs no new record is taken however full the state is: a copy of
// held blocks elsewhere, and blocks that come back where a ghost keeps their place.
func TestMaxBlocksHeldAlready(t *testing.T) {
	for _, hashed := range []bool{false, true} {
		r := newRig(t, Options{MaxBlocks: 10, HashTokens: hashed})
		r.batch(run(0, 1, 8), removal(3, 1), run(0, 9, 2))
		r.batch(host(run(0, 1, 2)), host(run(8, 20, 1)), run(2, 3, 1))
		want := r.check()
		if st := r.state.Stats(); len(want) != 10 || st.Refused != 1 {
			t.Errorf("%d blocks and %+v, want 10 blocks and 1 refused", len(want), st)
		}
		for e, copies := range map[uint64]string{1: " device/0:1 host/0:1", 2: " device/0:1 host/0:1", 3: " device/0:1", 8: " device/0:1"} {
			if got := want[e].copies; got != copies {
				t.Errorf("block %d lies at%s, want%s", e, got, copies)
			}
		}
		r.batch(run(8, 1, 1)) // it would need a place while it still has its old one
		if _, there := r.check()[1]; there {
			t.Error("a block that would have moved past the limit is still there")
		}
	}
}

func TestTooLarge(t *testing.T) {
	r := newRig(t, Options{MaxBytes: 64 << 10})
	long := run(0, 1, 1)
	long.Ownership = strings.Repeat("x", maxText+1)
	keys := run(0, 2, 1)
	keys.HasExtra, keys.Extra = true, [][]kv.ExtraKey{{{Kind: kv.ExtraItem, ID: strings.Repeat("x", maxBlob)}}}
	r.batch(run(0, 3, 1), long, keys)
	name := placeholder(3, 1)
	name.SessionID = long.Ownership
	r.batch(name)
	if st := r.state.Stats(); len(r.check()) != 1 || st.Refused != 3 {
		t.Errorf("got %+v, want 1 block and 3 refused", st)
	}
	for i := range uint64(100) {
		big := run(0, 10+i, 1)
		big.HasExtra, big.Extra = true, [][]kv.ExtraKey{{{Kind: kv.ExtraItem, ID: strings.Repeat("x", 20_000)}}}
		r.batch(big)
	}
	if st := r.state.Stats(); len(r.check()) > 6 || st.Bytes.Total() > 1<<20 {
		t.Errorf("got %+v, want at most 5 blocks of 20,000 bytes within 64 KiB", st)
	}
}

func TestCopiesCapped(t *testing.T) {
	r := newRig(t, Options{HashTokens: true})
	r.batch(run(0, 1, 3))
	many := run(1, 2, 1)
	for range 700 {
		var events []kv.Event
		for range 100 {
			events = append(events, many)
		}
		b := kv.Batch{Events: events}
		r.state.Apply(&b, r.norm.Batch(&b), &r.fx)
		r.own.own(ownEvents(t, AppendOwn(nil, &r.fx)), &r.book)
	}
	r.batch(run(0, 1, 3)) // the middle one is full: its run goes on behind it
	want := r.check()
	if got := want[2].copies; got != " device/0:65535" {
		t.Errorf("copies%s, want 65535 on the device", got)
	}
	if got := want[3].copies; got != " device/0:2" {
		t.Errorf("copies behind it%s, want 2", got)
	}
	if st := r.state.Stats(); st.CopiesCapped != 70_000-65_534+1 || st.Copies != 65_535+4 {
		t.Errorf("got %+v", st)
	}
	// Past the limit of blocks a block goes with all its copies.
	r.state.opts.MaxBlocks = 1
	r.batch(run(3, 2, 1))
	if got := len(r.check()); got != 2 {
		t.Errorf("%d blocks, want 2", got)
	}
}

func TestCuts(t *testing.T) {
	r := newRig(t, Options{MaxCuts: 2})
	a, _ := r.state.Cut()
	b, err := r.state.Cut()
	if err != nil || a.Blocks() != 0 {
		t.Fatalf("got %v and %d blocks, want two cuts of nothing", err, a.Blocks())
	}
	if _, err := r.state.Cut(); !errors.Is(err, ErrCuts) {
		t.Errorf("a third cut: %v, want ErrCuts", err)
	}
	r.state.recs.chunks = make([]*[slabLen]record, 1<<12)
	if n := testing.AllocsPerRun(10, func() { _, _ = r.state.Cut() }); n > 1 {
		t.Errorf("a cut that is refused costs %v allocations, want 1: it copies nothing", n)
	}
	r.state.recs.chunks = nil
	checkOwn(t, b, content{}, 0)
	checkPeer(t, b, 0, content{})
	a.Close()
	a.Close()
	if _, err := r.state.Cut(); err != nil {
		t.Errorf("after one was closed: %v", err)
	}
	if _, err := r.state.Cut(); !errors.Is(err, ErrCuts) {
		t.Errorf("closing twice made room for two: %v", err)
	}
	if c := New(Options{HashTokens: true}); c != nil {
		cut, _ := c.Cut()
		if cut.Peer(9) != nil {
			t.Error("a state that hashes tokens has a peer's snapshot")
		}
	}
}

// A copy of a block below ghosts reaches the peer's subscribers, unless too many
// ghosts lie above it.
func TestPlaceholderBelowGhosts(t *testing.T) {
	const deep = maxBracket + 50
	r := newRig(t, Options{})
	r.batch(run(0, 1, deep))
	r.batch(removal(2, 8)) // 10 lies below a hole of 8
	r.batch(placeholder(9, 4), removal(10, 1))
	if got := r.check()[10].copies; got != " host/0:1" {
		t.Errorf("copies%s, want the host's", got)
	}
	if st := r.state.Stats(); st.PeerUntold != 0 || st.StoreUnknown != 1 || st.Ghosts != 8 {
		t.Errorf("got %+v, want one unknown, 8 ghosts", st)
	}
	r.batch(removal(11, deep-12)) // the last but one and the last are left, and the first
	r.batch(placeholder(deep, 1))
	if st := r.state.Stats(); st.PeerUntold != 0 {
		t.Errorf("%d copies untold although the parent is held", st.PeerUntold)
	}
	r.batch(removal(deep-1, 1), placeholder(deep, 1))
	if st := r.state.Stats(); st.PeerUntold != 1 {
		t.Errorf("%d copies untold below %d ghosts, want 1", st.PeerUntold, st.Ghosts)
	}
	if got := r.own.content()[deep].copies; got != " device/0:1 host/0:2" {
		t.Errorf("copies%s, want one and two", got)
	}
}

// The ghosts that one batch may name are bounded however many copies it tells.
func TestPlaceholdersShareABound(t *testing.T) {
	r := newRig(t, Options{})
	r.batch(run(0, 1, 301), removal(1, 300))
	var events []kv.Event
	for range 5 {
		events = append(events, placeholder(301, 1))
	}
	r.batch(events...)
	if st := r.state.Stats(); st.PeerUntold != 2 {
		t.Errorf("%d copies untold, want 2 of 5 below 300 ghosts", st.PeerUntold)
	}
	if own, peer := r.own.content()[301].copies, r.peer.content()[301].copies; own != " device/0:1 host/0:5" || peer != " device/0:1 host/0:3" {
		t.Errorf("copies%s and%s, want five and three", own, peer)
	}
}

// The bounds of chunks, and the peer's rule for short streams.
func TestChunkBounds(t *testing.T) {
	r := newRig(t, Options{})
	for i := range uint64(100) {
		ev := run(0, 1+1000*i, 100)
		if i%4 == 0 {
			ev.HasExtra, ev.Extra = true, make([][]kv.ExtraKey, 100)
			for k := range ev.Extra {
				ev.Extra[k] = []kv.ExtraKey{{Kind: kv.ExtraItem, ID: strings.Repeat("x", 4000)}}
			}
		}
		r.batch(ev)
	}
	r.batch(removal(50, 1), placeholder(60, 5))
	want := r.check()
	c, err := r.state.Cut()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if n := c.Own().Len(); n != 5 {
		t.Errorf("%d chunks of the own form, want 5 of 2,048 blocks", n)
	}
	all := c.Peer(manyNumbers).Len()
	if all < 10 || all > 13 {
		t.Errorf("%d chunks of the peer's form, want the 10 MiB of keys in about 12", all)
	}
	for _, through := range []uint64{0, 1, 4, 5, 8, 100} {
		got, most := c.Peer(through).Len(), min(all, int(through)+1)
		if got > most || 3*got < most {
			t.Errorf("%d chunks that end with number %d, want at most %d and not far less", got, through, most)
		}
		checkPeer(t, c, through, want)
	}
}

// Steady work allocates nothing, in either form.
func TestApplyAllocates(t *testing.T) {
	s, l := New(Options{}), newLoad(10_000)
	var fx Effects
	var dst []byte
	apply := func(b *kv.Batch, ops []normal.Op) {
		s.Apply(b, ops, &fx)
		dst = AppendOwn(dst[:0], &fx)
		dst, _ = AppendPeer(dst, &fx, 1)
	}
	for range 5000 {
		b, ops := l.step()
		apply(b, ops)
	}
	type step struct {
		b   kv.Batch
		ops []normal.Op
	}
	var steps []step
	for range 400 {
		b, ops := l.step()
		st := step{b: *b}
		for _, op := range ops {
			op.Contents = append([]kv.ContentHash(nil), op.Contents...)
			st.ops = append(st.ops, op)
		}
		steps = append(steps, st)
	}
	i := 0
	if n := testing.AllocsPerRun(300, func() { apply(&steps[i].b, steps[i].ops); i++ }); n != 0 {
		t.Errorf("%v allocations a batch, want 0", n)
	}
}

// Memory stays what it was while the content is replaced again and again, cuts
// open or not, and a clear gives it back.
func TestChurnIsFlat(t *testing.T) {
	s, l := New(Options{}), newLoad(20_000)
	var fx Effects
	churn := func(batches int) {
		for range batches {
			b, ops := l.step()
			s.Apply(b, ops, &fx)
		}
	}
	churn(5000)
	before := s.Stats()
	perBlock := float64(before.Bytes.Total()) / float64(before.Blocks)
	if perBlock > 123 {
		t.Errorf("%.1f bytes a block, want at most 123", perBlock)
	}
	churn(25_000)
	after := s.Stats()
	if after.Bytes.Total() > before.Bytes.Total()*102/100 || after.Blocks != before.Blocks {
		t.Errorf("%d bytes for %d blocks, want about %d for %d", after.Bytes.Total(), after.Blocks, before.Bytes.Total(), before.Blocks)
	}
	for range 20 { // overlapping cuts, so that there is always one
		a, err := s.Cut()
		if err != nil {
			t.Fatal(err)
		}
		churn(500)
		b, err := s.Cut()
		if err != nil {
			t.Fatal(err)
		}
		churn(500)
		if st := s.Stats(); st.Bytes.Cuts == 0 || st.Bytes.Total() > 4*before.Bytes.Total() {
			t.Fatalf("two cuts are open: %+v", st.Bytes)
		}
		a.Close()
		churn(500)
		b.Close()
	}
	churn(1000)
	if st := s.Stats(); st.Bytes.Cuts > 1<<20 || st.Bytes.Total() > 2*before.Bytes.Total() {
		t.Errorf("%+v after the cuts, want about %+v", st.Bytes, before.Bytes)
	}
	b := kv.Batch{Events: []kv.Event{{Kind: kv.KindCleared}}}
	s.Apply(&b, l.norm.Batch(&b), &fx)
	if st := s.Stats(); st.Bytes.Total() > 32<<10 || st.Blocks != 0 || st.Copies != 0 {
		t.Errorf("%+v after a clear", st)
	}
	runtime.KeepAlive(s)
}

// Heads that are evicted first, and stored again before their branches are gone,
// return as what they were: ghosts are no more than the positions of holes.
func TestGhostsReturn(t *testing.T) {
	r := newRig(t, Options{})
	const depth = 50
	for branch := range uint64(40) {
		r.batch(run(0, 1, depth), run(depth, 1000+10*branch, 2), removal(1, depth))
	}
	if st := r.state.Stats(); st.Ghosts != depth || st.Blocks != 80 || st.Moved != 0 {
		t.Errorf("got %+v, want %d ghosts above 80 blocks", st, depth)
	}
	r.check()
	for branch := range uint64(40) {
		r.batch(removal(1000+10*branch, 2))
	}
	if st := r.state.Stats(); st.Ghosts != 0 || st.Blocks != 0 || r.state.recs.used != 0 {
		t.Errorf("got %+v, want nothing left", st)
	}
	r.check()
}
