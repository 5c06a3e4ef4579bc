// SPDX-License-Identifier: Apache-2.0

package shard_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"kindex/internal/kv"
	"kindex/shard"
)

// Scenarios: what users of such indexes have suffered, and each rule of the
// semantics once, by hand, over every kind, the reference too. Blocks have 16
// tokens; the prompt P is tokens 1 to 64, four blocks, and engines call them
// 11, 12, 13, 14.

// scene is one index and its actors.
type scene struct {
	t     *testing.T
	idx   shard.Index
	model kv.ModelKey
	names map[shard.Holder]string
}

// actor is one holder of a scene.
type actor struct {
	s *scene
	h shard.Holder
}

// scenes runs fn over every kind.
func scenes(t *testing.T, o shard.Options, fn func(s *scene)) {
	t.Helper()
	for _, kind := range shard.Kinds {
		t.Run(kind, func(t *testing.T) {
			idx, err := shard.New(kind, o)
			if err != nil {
				t.Fatal(err)
			}
			fn(&scene{t: t, idx: idx, model: kv.MakeModelKey("", "m", ""), names: make(map[shard.Holder]string)})
			shard.Check(idx)
		})
	}
}

func (s *scene) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *scene) holder(name string) *actor {
	s.t.Helper()
	h, err := s.idx.AddHolder(s.model)
	s.must(err)
	s.names[h] = name
	return &actor{s, h}
}

// tokens returns from to to.
func tokens(from, to uint32) []uint32 {
	var out []uint32
	for t := from; t <= to; t++ {
		out = append(out, t)
	}
	return out
}

// event is a store of tokens in the base namespace on the device.
func (s *scene) event(parent kv.EngineHash, toks []uint32, engines ...kv.EngineHash) *shard.Store {
	st := &shard.Store{
		Namespace: s.model.Namespace(kv.HashSeed), Parent: parent, HasParent: parent != 0,
		Engines: engines, Blocks: kv.Blocks{Tokens: toks, BlockSize: 16},
	}
	st.Contents = st.Blocks.AppendHashes(nil, kv.HashSeed)
	return st
}

// in puts st into the namespace of an adapter and a salt.
func (s *scene) in(st *shard.Store, lora, salt string) *shard.Store {
	seed := kv.ContentSeed(lora, salt)
	st.Namespace = s.model.Namespace(seed)
	st.Contents = st.Blocks.AppendHashes(nil, seed)
	return st
}

func (a *actor) tell(st *shard.Store) {
	a.s.t.Helper()
	a.s.must(a.s.idx.Store(a.h, st))
}

// storeP stores the whole of P.
func (a *actor) storeP(t kv.Tier) {
	a.s.t.Helper()
	st := a.s.event(0, tokens(1, 64), 11, 12, 13, 14)
	st.Tier = t
	a.tell(st)
}

func (a *actor) remove(t kv.Tier, engines ...kv.EngineHash) {
	a.s.t.Helper()
	a.s.must(a.s.idx.Remove(a.h, &shard.Remove{Tier: t, Engines: engines}))
}

func (a *actor) stats() shard.HolderStats {
	a.s.t.Helper()
	st, err := a.s.idx.HolderStats(a.h)
	a.s.must(err)
	return st
}

// ask returns the answer about the blocks of toks: "name depth", or "name
// device/host/any" where tiers differ, in order of names.
func (s *scene) ask(lora, salt string, extra [][]byte, toks []uint32) string {
	seed := kv.ContentSeed(lora, salt)
	b := kv.Blocks{Tokens: toks, BlockSize: 16, Extra: extra}
	var out []string
	for _, m := range s.idx.Lookup(s.model.Namespace(seed), b.AppendHashes(nil, seed), nil) {
		name := s.names[shard.Holder(m.Holder)]
		if name == "" {
			name = fmt.Sprintf("nobody(%d)", m.Holder)
		}
		if m.Device == m.Any {
			out = append(out, fmt.Sprintf("%s %d", name, m.Any))
		} else {
			out = append(out, fmt.Sprintf("%s %d/%d/%d", name, m.Device, m.Host, m.Any))
		}
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

// wants asks about P in the base namespace.
func (s *scene) wants(want string) {
	s.t.Helper()
	if got := s.ask("", "", nil, tokens(1, 64)); got != want {
		s.t.Fatalf("holders of P: got %q, want %q", got, want)
	}
}

func check[T comparable](s *scene, what string, got, want T) {
	s.t.Helper()
	if got != want {
		s.t.Fatalf("%s: got %v, want %v", what, got, want)
	}
}

// A child told before its parent waits, and counts as soon as the parent comes.
func TestFieldR1Orphans(t *testing.T) {
	scenes(t, shard.Options{}, func(s *scene) {
		a := s.holder("a")
		a.tell(s.event(12, tokens(33, 64), 13, 14))
		s.wants("")
		check(s, "orphans", a.stats().Orphans, 2)
		a.tell(s.event(0, tokens(1, 32), 11, 12))
		s.wants("a 4")
		check(s, "orphans", a.stats().Orphans, 0)
		check(s, "memberships", a.stats().Memberships, 4)
	})
}

// What could be read of a batch counts; a store that names only what nobody
// told costs a count.
func TestFieldR2HalfABatch(t *testing.T) {
	scenes(t, shard.Options{}, func(s *scene) {
		a, b := s.holder("a"), s.holder("b")
		a.storeP(kv.TierDevice)
		b.tell(&shard.Store{Tier: kv.TierHost, Engines: []kv.EngineHash{11, 12}})
		s.wants("a 4")
		check(s, "unknown placeholders", b.stats().StoreUnknown, 2)
	})
}

// Ranks hold apart: one rank's removal leaves the other's copy.
func TestFieldR3Ranks(t *testing.T) {
	scenes(t, shard.Options{}, func(s *scene) {
		r0, r1 := s.holder("rank0"), s.holder("rank1")
		r0.storeP(kv.TierDevice)
		r1.storeP(kv.TierDevice)
		s.wants("rank0 4, rank1 4")
		r1.remove(kv.TierDevice, 11, 12, 13, 14)
		s.wants("rank0 4")
	})
}

// Two copies take two removals; a third is counted.
func TestFieldR4Copies(t *testing.T) {
	scenes(t, shard.Options{}, func(s *scene) {
		a := s.holder("a")
		a.storeP(kv.TierDevice)
		a.storeP(kv.TierDevice)
		check(s, "second copies", a.stats().SecondCopies, 4)
		for i, want := range []string{"a 4", "", ""} {
			a.remove(kv.TierDevice, 11, 12, 13, 14)
			s.wants(want)
			check(s, "unknown removals", a.stats().RemoveUnknown, uint64(4*max(0, i-1)))
		}
	})
}

// Every holder of a prefix is named, however many.
func TestFieldR5ManyHolders(t *testing.T) {
	scenes(t, shard.Options{}, func(s *scene) {
		var all []*actor
		for i := range 300 {
			a := s.holder(fmt.Sprintf("w%03d", i))
			a.storeP(kv.TierDevice)
			all = append(all, a)
		}
		all[7].remove(kv.TierDevice, 12)
		got := s.ask("", "", nil, tokens(1, 64))
		check(s, "holders at 4", strings.Count(got, " 4"), 299)
		check(s, "the one with a hole", strings.Contains(got, "w007 1,"), true)
	})
}

// A hole ends the depth and loses nothing below it.
func TestFieldR6Heal(t *testing.T) {
	scenes(t, shard.Options{}, func(s *scene) {
		a := s.holder("a")
		a.storeP(kv.TierDevice)
		a.remove(kv.TierDevice, 12)
		s.wants("a 1")
		check(s, "memberships", a.stats().Memberships, 3)
		a.tell(s.event(11, tokens(17, 32), 12))
		s.wants("a 4")
	})
}

// Equal tokens under another adapter, salt or image never match, and each
// namespace answers for itself.
func TestFieldR11Namespaces(t *testing.T) {
	scenes(t, shard.Options{}, func(s *scene) {
		images := map[string][][]byte{}
		for _, id := range []string{"i1", "i2"} {
			key := kv.AppendExtraKey(nil, kv.ExtraKey{Kind: kv.ExtraItem, ID: id, Offset: 3})
			images[id] = [][]byte{key, key, key, key}
		}
		s.holder("base").storeP(kv.TierDevice)
		s.holder("lora").tell(s.in(s.event(0, tokens(1, 64), 11, 12, 13, 14), "x", ""))
		s.holder("salt").tell(s.in(s.event(0, tokens(1, 64), 11, 12, 13, 14), "", "s"))
		for _, id := range []string{"i1", "i2"} {
			st := s.event(0, tokens(1, 64), 11, 12, 13, 14)
			st.Blocks.Extra = images[id]
			s.holder(id).tell(s.in(st, "", ""))
		}
		s.wants("base 4")
		check(s, "adapter x", s.ask("x", "", nil, tokens(1, 64)), "lora 4")
		check(s, "salt s", s.ask("", "s", nil, tokens(1, 64)), "salt 4")
		check(s, "adapter and salt", s.ask("x", "s", nil, tokens(1, 64)), "")
		check(s, "salt for adapter", s.ask("s", "", nil, tokens(1, 64)), "")
		check(s, "image 1", s.ask("", "", images["i1"], tokens(1, 64)), "i1 4")
		check(s, "image 2", s.ask("", "", images["i2"], tokens(1, 64)), "i2 4")
	})
}

// A full-attention group that lost blocks answers for what it kept; window
// groups never get here. Two full groups count copies apart.
func TestFieldR11Hybrid(t *testing.T) {
	scenes(t, shard.Options{}, func(s *scene) {
		a := s.holder("a")
		a.storeP(kv.TierDevice)
		a.remove(kv.TierDevice, 13, 14)
		s.wants("a 2")
		second := s.event(0, tokens(1, 64), 11, 12, 13, 14)
		second.Group = 1
		a.tell(second)
		s.must(s.idx.Remove(a.h, &shard.Remove{Group: 0, Engines: []kv.EngineHash{11, 13}}))
		s.wants("a 4")
		check(s, "unknown removals", a.stats().RemoveUnknown, 1)
	})
}
