// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"math/rand/v2"
	"testing"
	"time"

	zmq "github.com/pebbe/zmq4"

	"kindex/internal/kv"
	"kindex/relay/wire"
	"kindex/shard"
)

// twin applies each step to the reference index as well.
type twin struct {
	t       *testing.T
	content Content
	ref     shard.Index
	holder  shard.Holder
	model   kv.ModelKey
}

func newTwin(t *testing.T) *twin {
	t.Helper()
	w := &twin{t: t, ref: shard.NewReference(shard.Options{}), model: kv.MakeModelKey("", "m", "default")}
	var err error
	if w.holder, err = w.ref.AddHolder(w.model); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *twin) apply(e *Event) {
	w.t.Helper()
	w.content.Apply(e)
	var err error
	switch e.Kind {
	case kv.KindStored:
		err = w.ref.Store(w.holder, &shard.Store{
			Tier: e.Tier, Group: e.Group, Namespace: w.model.Namespace(e.Seed),
			Parent: e.Parent, HasParent: e.HasParent, Engines: e.Engines, Contents: e.Contents,
		})
	case kv.KindRemoved:
		err = w.ref.Remove(w.holder, &shard.Remove{Tier: e.Tier, Group: e.Group, Engines: e.Engines})
	case kv.KindCleared:
		err = w.ref.Clear(w.holder)
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

// sum is the content's, made of the reference's positions.
func (w *twin) sum() (sum uint64) {
	w.t.Helper()
	paths := map[uint64]uint64{}
	err := w.ref.Walk(w.holder, func(n *shard.Node) bool {
		above, ok := paths[n.Parent]
		if !ok {
			above = w.model.Seed(n.Namespace)
		}
		paths[n.ID] = below(above, n.Content)
		for _, c := range n.Copies {
			sum += item(c.Engine, paths[n.ID], heldCopy{c.Tier, c.Group, c.Count})
		}
		return true
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return sum
}

func (w *twin) check(when string) {
	w.t.Helper()
	if got, want := w.content.Sum(), w.sum(); got != want {
		w.t.Fatalf("%s: the content sums up to %x, the reference's to %x", when, got, want)
	}
}

// TestContentWild holds Content against the reference with events of no sense: unknown
// parents, names that move, second copies, placeholders, removals of what waits.
func TestContentWild(t *testing.T) {
	for seed := range uint64(6) {
		rng := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // seeded on purpose
		w := newTwin(t)
		name := func() kv.EngineHash { return kv.EngineHash(1 + rng.IntN(40)) }
		var orphans bool
		for range 1_500 {
			e := Event{Tier: kv.Tier(rng.IntN(2)), Group: uint8(rng.IntN(2)), Seed: uint64(1 + rng.IntN(2))}
			switch k := rng.IntN(200); {
			case k == 0:
				e.Kind = kv.KindCleared
			case k < 90:
				e.Kind = kv.KindRemoved
				e.Engines = []kv.EngineHash{name(), name()}
			default:
				e.HasParent, e.Parent = rng.IntN(3) > 0, name()
				for range 1 + rng.IntN(3) {
					e.Engines = append(e.Engines, name())
					e.Contents = append(e.Contents, kv.ContentHash(rng.IntN(3)))
				}
			}
			w.apply(&e)
			orphans = orphans || len(w.content.room) > 0
			w.check("step")
		}
		if !orphans {
			t.Error("nothing ever waited for a parent")
		}
	}
}

// TestContentCache holds Content against the reference with what a cache announces, and
// with what it announces once it was kept over a restart.
func TestContentCache(t *testing.T) {
	c := newCache(7, 1, 16, 8, 400)
	for _, kept := range []bool{false, true} {
		w := newTwin(t)
		orphans, second := 0, false
		for i := range 1_500 {
			for _, ev := range c.pass() {
				s := step(&ev)
				w.apply(&s)
				second = second || s.Tier == kv.TierHost
			}
			orphans = max(orphans, len(w.content.room))
			if i%100 == 0 {
				w.check("cache")
			}
		}
		w.check("cache")
		if kept != (orphans > 0) || kept != (w.content.Unknown() > 0) || !second {
			t.Errorf("kept %v: %d orphans, %d unknown, a host copy %v", kept, orphans, w.content.Unknown(), second)
		}
		if c.device > 400+maxChain {
			t.Errorf("%d blocks in a cache of 400", c.device)
		}
	}
}

// listener is a subscriber of one rank.
type listener struct {
	t    *testing.T
	sub  *zmq.Socket
	ask  *zmq.Socket
	from map[uint64][]byte
}

func listen(t *testing.T, p *Publisher) *listener {
	t.Helper()
	ctx, err := zmq.NewContext()
	if err != nil {
		t.Fatal(err)
	}
	l := &listener{t: t, from: map[uint64][]byte{}}
	open := func(kind zmq.Type, at string) *zmq.Socket {
		s, err := ctx.NewSocket(kind)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		_ = s.SetLinger(0)
		_ = s.SetRcvtimeo(20 * time.Second)
		if kind == zmq.SUB {
			_ = s.SetSubscribe("")
		}
		if err := s.Connect(at); err != nil {
			t.Fatal(err)
		}
		return s
	}
	t.Cleanup(func() { go func() { _ = ctx.Term() }() })
	l.sub, l.ask = open(zmq.SUB, p.Pub()), open(zmq.DEALER, p.Replay())
	return l
}

// next returns the next live batch's number.
func (l *listener) next() uint64 {
	l.t.Helper()
	frames, err := l.sub.RecvMessageBytes(0)
	if err != nil {
		l.t.Fatal(err)
	}
	_, payload, seq, err := wire.ParseMessage(frames)
	if err != nil {
		l.t.Fatal(err)
	}
	l.from[seq] = payload
	return seq
}

// replay fetches all that is kept from start on and returns the first number.
func (l *listener) replay(start uint64) (first uint64, n int) {
	l.t.Helper()
	if _, err := l.ask.SendMessage(wire.MakeReplayRequest(start)); err != nil {
		l.t.Fatal(err)
	}
	for {
		frames, err := l.ask.RecvMessageBytes(0)
		if err != nil {
			l.t.Fatal(err)
		}
		payload, seq, end, err := wire.ParseReplay(frames)
		if err != nil {
			l.t.Fatal(err)
		}
		if end {
			return first, n
		}
		if n == 0 {
			first = seq
		}
		n++
		l.from[seq] = payload
	}
}

// sum applies batches 0 to last and returns what they make.
func (l *listener) sum(last uint64) uint64 {
	l.t.Helper()
	var c Content
	var b kv.Batch
	d := new(wire.Decoder)
	for seq := range last + 1 {
		if err := d.Decode(l.from[seq], &b); err != nil {
			l.t.Fatalf("batch %d: %v", seq, err)
		}
		for i := range b.Events {
			s := step(&b.Events[i])
			c.Apply(&s)
		}
	}
	return c.Sum()
}

func TestPublisher(t *testing.T) {
	o := DefaultOptions()
	o.Ranks, o.Rate, o.Buffer, o.Capacity = 1, 500, 50, 200
	p, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}()
	l := listen(t, p)
	first := l.next()
	l.replay(0)
	p.Drop(5)
	last, gap := first, false
	for !gap || p.Dropped() < 5 {
		seq := l.next()
		gap = gap || seq == last+6
		if seq != last+1 && seq != last+6 {
			t.Fatalf("batch %d came after %d", seq, last)
		}
		last = seq
	}
	if first, n := l.replay(0); n > 50 || first+60 < last {
		t.Errorf("a buffer of 50 replays %d batches from %d at %d", n, first, last)
	}
	r, ok := p.Record(0, 0, last)
	if got := l.sum(last); !ok || got != r.Truth {
		t.Errorf("batches 0 to %d make %x, the truth is %x", last, got, r.Truth)
	}
	p.SetRate(20)
	if err := p.Restart(t.Context(), true, 50*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	// What was kept was not told again: the truth of this life begins with nothing.
	clear(l.from)
	l.replay(0)
	for p.Copies(0) == 0 {
		time.Sleep(time.Millisecond)
	}
	seq := p.Newest(0) - 1
	if first, _ := l.replay(0); first != 0 {
		t.Fatalf("the new life's replay begins at %d", first)
	}
	if r, ok := p.Record(0, 1, seq); !ok || l.sum(seq) != r.Truth {
		t.Errorf("batches 0 to %d make %x, the new life's truth is %x", seq, l.sum(seq), r.Truth)
	}
	if p.Life() != 1 {
		t.Errorf("life %d, want 1", p.Life())
	}
}

func TestDelay(t *testing.T) {
	o := DefaultOptions()
	o.Ranks, o.Rate = 1, 200
	p, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = p.Close() }()
	l := listen(t, p)
	last := l.next()
	p.Delay(time.Hour)
	want := p.Newest(0) + 20
	for p.Newest(0) < want {
		time.Sleep(time.Millisecond)
	}
	p.Delay(0)
	for last < want {
		if seq := l.next(); seq != last+1 {
			t.Fatalf("batch %d came after %d", seq, last)
		}
		last++
	}
}
