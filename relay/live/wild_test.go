// SPDX-License-Identifier: Apache-2.0

package live

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"kindex/internal/kv"
	"kindex/internal/livedigest"
	"kindex/internal/longtest"
	"kindex/relay/normal"
	"kindex/shard"
)

// The wild proof: events with no regard for sense, over spaces of hashes so small
// that all of them meet, mixed with chains as engines make them. The same
// interpreter serves the fuzzer.

// choices decides what happens next.
type choices interface {
	n(limit int) int // a number below limit, at most 256
	more() bool      // whether any choice is left
}

// dice chooses at random, for so many batches.
type dice struct {
	r    *rand.Rand
	left int
}

func (d *dice) n(limit int) int { return d.r.IntN(limit) }
func (d *dice) more() bool      { d.left--; return d.left >= 0 }

// script chooses by its bytes and then by zeros.
type script struct{ b []byte }

func (s *script) n(limit int) int {
	if len(s.b) == 0 {
		return 0
	}
	v := int(s.b[0]) % limit
	s.b = s.b[1:]
	return v
}
func (s *script) more() bool { return len(s.b) > 0 }

// oddHashes are values that a careless structure could take for its own.
var oddHashes = [...]uint64{0, 1, 1<<64 - 1, 1 << 63, 1<<63 - 1, 1 << 32, 1<<32 - 1, 0xdead_beef_dead_beef}

// wild is one wild history: a state, the reference that gets the same operations,
// and the references that get what subscribers get.
type wild struct {
	t       testing.TB
	c       choices
	engines int
	hashed  bool

	norm  *normal.Normaliser
	state *State
	fx    Effects
	raw   *holder
	own   *holder
	book  livedigest.Book
	peer  *holder
	id    uint64
	buf   []byte

	chains [][]uint64 // engine hashes of chains told, to be continued
	tokens [][]uint32 // and the first token of each of their blocks
	cuts   []pendingCut
	batch  uint64
}

// pendingCut is a cut and what was held when it was made.
type pendingCut struct {
	cut    *Cut
	want   content
	digest uint64
	at     uint64
}

func newWild(t testing.TB, c choices, engines int, hashed bool) *wild {
	o := shard.Options{MaxOrphanBlocks: 24}
	w := &wild{
		t: t, c: c, engines: engines, hashed: hashed,
		norm:  normal.New(normal.Config{BlockSize: 2}),
		state: New(Options{HashTokens: hashed, MaxOrphanBlocks: o.MaxOrphanBlocks, MaxCuts: 3}),
		raw:   newHolder(t, o), own: newHolder(t, shard.Options{}), peer: newHolder(t, shard.Options{}),
	}
	w.state.salt = 1 // the fuzzer must see the same again
	w.state.reset()
	return w
}

func (w *wild) engine() kv.EngineHash {
	i := w.c.n(w.engines)
	if i < len(oddHashes) {
		return kv.EngineHash(oddHashes[i])
	}
	return kv.EngineHash(uint64(i) * 0x9e37_79b9_7f4a_7c15)
}

func (w *wild) engineList(most int) []kv.EngineHash {
	out := make([]kv.EngineHash, 1+w.c.n(most))
	for i := range out {
		out[i] = w.engine()
	}
	return out
}

func (w *wild) place(ev *kv.Event) {
	ev.Tier = [...]kv.Tier{kv.TierDevice, kv.TierDevice, kv.TierHost, kv.TierDisk}[w.c.n(4)]
	if ev.Tier != kv.TierDevice {
		ev.Medium = "CPU"
	}
	if w.c.n(8) == 0 {
		ev.Group, ev.HasGroup = w.c.n(3), true
	}
	if w.c.n(8) == 0 {
		ev.Ownership, ev.Locality = "mine", kv.LocalityLocal
	}
}

func (w *wild) namespace(ev *kv.Event) {
	switch w.c.n(12) {
	case 0:
		ev.LoRAName, ev.HasLoRAID, ev.LoRAID = "adapter", true, 3
	case 1:
		ev.Salt, ev.HasSalt = "salt", true
	case 2:
		ev.Salt, ev.HasSalt = "pepper", true
		ev.LoRAName = "adapter"
	case 3:
		ev.HasLoRAID, ev.LoRAID = true, 7
	case 4:
		ev.SessionID = "session"
	case 5:
		ev.Spec, ev.SpecName = kv.SpecFull, "full_attention"
	}
}

// fill gives ev the tokens and keys of its blocks.
func (w *wild) fill(ev *kv.Event, first []uint32) {
	ev.BlockSize = 2
	for _, x := range first {
		ev.Tokens = append(ev.Tokens, x, x*x*40_000)
	}
	if w.c.n(6) != 0 {
		return
	}
	ev.HasExtra = true
	ev.Extra = make([][]kv.ExtraKey, len(ev.Hashes))
	for i := range ev.Extra {
		switch w.c.n(4) {
		case 0:
			ev.Extra[i] = []kv.ExtraKey{{Kind: kv.ExtraItem, ID: "image", Offset: int64(w.c.n(3)) - 1}}
		case 1:
			ev.Extra[i] = []kv.ExtraKey{{Kind: kv.ExtraBytes, ID: "\x00\xff"}}
		}
	}
	if ev.HasSalt && !ev.HasParent {
		ev.Extra[0] = append(ev.Extra[0], kv.ExtraKey{Kind: kv.ExtraString, ID: ev.Salt})
	}
	if ev.LoRAName != "" {
		for i := range ev.Extra {
			ev.Extra[i] = append([]kv.ExtraKey{{Kind: kv.ExtraString, ID: ev.LoRAName}}, ev.Extra[i]...)
		}
	}
}

// chain begins or goes on with a chain as an engine does: a block's engine hash
// says where it is, so that it is the same wherever it is told.
func (w *wild) chain() kv.Event {
	var ev kv.Event
	var engines []uint64
	var tokens []uint32
	if len(w.chains) > 0 && w.c.n(4) != 0 {
		k := w.c.n(min(len(w.chains), 256))
		cut := 1 + w.c.n(min(len(w.chains[k]), 256))
		engines, tokens = w.chains[k][:cut:cut], w.tokens[k][:cut:cut]
		ev.Parent, ev.HasParent = kv.EngineHash(engines[cut-1]), true
		if w.c.n(6) == 0 { // told again from the root
			ev.HasParent = false
			for _, e := range engines {
				ev.Hashes = append(ev.Hashes, kv.EngineHash(e))
			}
		}
	}
	first := tokens
	if ev.HasParent {
		first = nil
	}
	last := uint64(77)
	if len(engines) > 0 {
		last = engines[len(engines)-1]
	}
	for range 1 + w.c.n(5) {
		x := uint32(w.c.n(3))
		last = livedigest.Child(last, kv.ContentHash(x))
		engines, tokens, first = append(engines, last), append(tokens, x), append(first, x)
		ev.Hashes = append(ev.Hashes, kv.EngineHash(last))
	}
	w.place(&ev)
	if w.c.n(8) == 0 {
		w.namespace(&ev)
	}
	w.fill(&ev, first)
	if len(w.chains) < 24 {
		w.chains, w.tokens = append(w.chains, engines), append(w.tokens, tokens)
	} else {
		k := w.c.n(len(w.chains))
		w.chains[k], w.tokens[k] = engines, tokens
	}
	return ev
}

// some returns engine hashes of a chain told, or any.
func (w *wild) some() []kv.EngineHash {
	if len(w.chains) == 0 || w.c.n(3) == 0 {
		return w.engineList(4)
	}
	k := w.c.n(min(len(w.chains), 256))
	chain := w.chains[k]
	from := w.c.n(min(len(chain), 256))
	to := from + 1 + w.c.n(min(len(chain)-from, 256))
	var out []kv.EngineHash
	for _, e := range chain[from:to] {
		out = append(out, kv.EngineHash(e))
	}
	return out
}

func (w *wild) event() kv.Event {
	switch k := w.c.n(32); {
	case k < 10:
		return w.chain()
	case k < 16:
		ev := kv.Event{Hashes: w.engineList(4)}
		if w.c.n(2) == 0 {
			ev.Parent, ev.HasParent = w.engine(), true
			if w.c.n(3) == 0 {
				ev.Parent = w.some()[0]
			}
		}
		w.place(&ev)
		w.namespace(&ev)
		var first []uint32
		for range ev.Hashes {
			first = append(first, uint32(w.c.n(3)))
		}
		w.fill(&ev, first)
		return ev
	case k < 20:
		ev := kv.Event{Hashes: w.some()}
		w.place(&ev)
		w.namespace(&ev)
		return ev
	case k < 31:
		ev := kv.Event{Kind: kv.KindRemoved, Hashes: w.some()}
		w.place(&ev)
		return ev
	default:
		if w.c.n(4) != 0 {
			return kv.Event{Kind: kv.KindRemoved, Hashes: w.some()}
		}
		return kv.Event{Kind: kv.KindCleared}
	}
}

// step applies one batch everywhere.
func (w *wild) step() {
	b := kv.Batch{Events: make([]kv.Event, 1+w.c.n(3))}
	for i := range b.Events {
		b.Events[i] = w.event()
	}
	w.batch++
	ops := w.norm.Batch(&b)
	w.raw.ops(ops)
	w.state.Apply(&b, ops, &w.fx)
	w.buf = AppendOwn(w.buf[:0], &w.fx)
	w.own.own(ownEvents(w.t, w.buf), &w.book)
	var next uint64
	if w.buf, next = AppendPeer(w.buf[:0], &w.fx, w.id); w.hashed {
		if len(w.buf) != 0 {
			w.t.Fatal("a state that hashes tokens has a peer's form")
		}
		return
	}
	events := peerEvents(w.t, w.buf)
	for _, ev := range events {
		if ev.EventId != w.id {
			w.t.Fatalf("event %d is numbered %d", w.id, ev.EventId)
		}
		w.id++
	}
	if w.id != next {
		w.t.Fatalf("the next event's number is %d, want %d", next, w.id)
	}
	w.peer.peer(events)
}

// compare compares everything there is.
func (w *wild) compare() {
	t := w.t
	want := w.raw.content()
	same(t, "own effects", w.own.content(), want)
	if !w.hashed {
		same(t, "peer's effects", w.peer.content(), want)
	}
	digest := w.raw.digest()
	if w.book.Sum() != digest {
		t.Fatalf("the book's digest is %x, want %x", w.book.Sum(), digest)
	}
	checkInvariants(t, w.state)
	r, err := w.raw.idx.HolderStats(w.raw.id)
	if err != nil {
		t.Fatal(err)
	}
	st := w.state.Stats()
	if st.Orphans != r.Orphans || st.OrphansDropped != r.OrphansDropped || st.RemoveUnknown != r.RemoveUnknown ||
		st.StoreUnknown != r.StoreUnknown || st.Contradictions != r.Contradictions || st.Blocks != uint64(len(want)) {
		t.Fatalf("counted %+v, want %+v and %d blocks", st, r, len(want))
	}
	if len(w.cuts) < 3 && w.c.n(2) == 0 {
		cut, err := w.state.Cut()
		if err != nil {
			t.Fatal(err)
		}
		w.cuts = append(w.cuts, pendingCut{cut, want, digest, w.batch})
	}
	// Not always the oldest first.
	if k := w.c.n(4); k < len(w.cuts) {
		w.close(k)
	}
}

// close checks a cut, whatever came after it, and ends it.
func (w *wild) close(k int) {
	p := w.cuts[k]
	w.cuts = append(w.cuts[:k], w.cuts[k+1:]...)
	if !w.hashed {
		checkPeer(w.t, p.cut, p.at%3, p.want)
	}
	checkOwn(w.t, p.cut, p.want, p.digest)
	p.cut.Close()
}

// prove runs the history out, comparing every so many batches.
func (w *wild) prove(every uint64) {
	for w.c.more() {
		w.step()
		if w.batch%every == 0 {
			w.compare()
		}
	}
	w.compare()
	for len(w.cuts) > 0 {
		w.close(0)
	}
	if st := w.state.Stats(); st.Cuts != 0 || st.Bytes.Cuts > uint64(cap(w.state.blobs.waiting)+1)*64 {
		w.t.Fatalf("no cut is open, yet %+v", st)
	}
}

func TestWild(t *testing.T) {
	seeds := 40
	if longtest.Enabled() {
		seeds = 1000
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			d := &dice{rand.New(rand.NewPCG(uint64(seed), 1)), 300}
			newWild(t, d, 4+d.n(40), seed%4 == 3).prove(uint64(1 + d.n(16)))
		})
	}
}

func FuzzWild(f *testing.F) {
	r := rand.New(rand.NewPCG(7, 7))
	for range 8 {
		b := make([]byte, 400)
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 4096 {
			return
		}
		s := &script{b}
		newWild(t, s, 4+s.n(40), s.n(4) == 3).prove(uint64(1 + s.n(8)))
	})
}
