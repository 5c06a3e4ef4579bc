// SPDX-License-Identifier: Apache-2.0

package shard_test

import (
	"errors"
	"testing"

	"kindex/internal/kv"
	"kindex/shard"
)

// The rules of the semantics that no field report covers, each once.

// The latest store wins: a moved hash leaves its old position, and its copies
// begin anew in all tiers.
func TestRuleMoved(t *testing.T) {
	scenes(t, shard.Options{}, func(s *scene) {
		a := s.holder("a")
		a.storeP(kv.TierDevice)
		a.storeP(kv.TierDevice)
		a.storeP(kv.TierHost)
		a.tell(s.event(14, tokens(65, 80), 12)) // 12 is now the fifth block
		s.wants("a 1")
		check(s, "moved", a.stats().Moved, 1)
		check(s, "memberships", a.stats().Memberships, 4)
		a.remove(kv.TierHost, 12)
		check(s, "unknown removals", a.stats().RemoveUnknown, 1)
		a.tell(s.event(11, tokens(17, 32), 22))
		check(s, "five blocks, the last by its one new copy", s.ask("", "", nil, tokens(1, 80)), "a 5")
		a.remove(kv.TierDevice, 12)
		check(s, "five blocks, the last gone", s.ask("", "", nil, tokens(1, 80)), "a 4")
	})
}

// A hash stored twice in one event ends at its last position.
func TestRuleMovedWithinOneEvent(t *testing.T) {
	scenes(t, shard.Options{}, func(s *scene) {
		a := s.holder("a")
		a.tell(s.event(0, tokens(1, 64), 11, 12, 11, 14))
		s.wants("")
		check(s, "memberships", a.stats().Memberships, 3)
		a.tell(s.event(0, tokens(1, 16), 10))
		s.wants("a 4")
	})
}

// A position held by two engine hashes is held until both are gone.
func TestRuleTwins(t *testing.T) {
	scenes(t, shard.Options{}, func(s *scene) {
		a := s.holder("a")
		a.storeP(kv.TierDevice)
		a.tell(s.event(11, tokens(17, 32), 99))
		check(s, "memberships", a.stats().Memberships, 4)
		a.remove(kv.TierDevice, 12)
		s.wants("a 4")
		a.remove(kv.TierDevice, 99)
		s.wants("a 1")
	})
}

// Demotion keeps the membership and ends the device's.
func TestRuleTiers(t *testing.T) {
	scenes(t, shard.Options{}, func(s *scene) {
		a := s.holder("a")
		a.storeP(kv.TierDevice)
		a.tell(&shard.Store{Tier: kv.TierHost, Engines: []kv.EngineHash{11, 12, 13}})
		a.remove(kv.TierDevice, 12, 13, 14)
		s.wants("a 1/3/3")
		a.tell(&shard.Store{Tier: kv.TierDisk, Engines: []kv.EngineHash{12, 13}})
		a.remove(kv.TierHost, 12)
		s.wants("a 1/1/3")
		a.remove(kv.TierDevice, 12) // lies there no more
		check(s, "unknown removals", a.stats().RemoveUnknown, 1)
		s.must(s.idx.Clear(a.h))
		s.wants("")
		check(s, "memberships", a.stats().Memberships, 0)
	})
}

// A removal takes a waiting block out, a clear all; what still waits attaches.
func TestRuleOrphansTakenOut(t *testing.T) {
	scenes(t, shard.Options{}, func(s *scene) {
		a := s.holder("a")
		a.tell(s.event(12, tokens(33, 64), 13, 14))
		a.remove(kv.TierDevice, 13)
		check(s, "orphans", a.stats().Orphans, 1)
		check(s, "unknown removals", a.stats().RemoveUnknown, 0)
		a.tell(s.event(0, tokens(1, 32), 11, 12))
		s.wants("a 2")
		a.tell(s.event(12, tokens(33, 48), 13))
		s.wants("a 4")
		a.tell(s.event(77, tokens(1, 16), 78))
		s.must(s.idx.Clear(a.h))
		check(s, "orphans", a.stats().Orphans, 0)
		a.tell(s.event(0, tokens(1, 16), 77))
		check(s, "memberships", a.stats().Memberships, 1)
	})
}

// Orphans of orphans attach in turn, and a placeholder waits with its block.
func TestRuleOrphansOfOrphans(t *testing.T) {
	scenes(t, shard.Options{}, func(s *scene) {
		a := s.holder("a")
		a.tell(s.event(13, tokens(49, 64), 14))
		a.tell(s.event(12, tokens(33, 48), 13))
		a.tell(&shard.Store{Tier: kv.TierHost, Engines: []kv.EngineHash{14}})
		a.tell(s.event(11, tokens(17, 32), 12))
		s.wants("")
		a.tell(s.event(0, tokens(1, 16), 11))
		s.wants("a 4")
		a.remove(kv.TierDevice, 14)
		s.wants("a 3/4/4")
		check(s, "memberships", a.stats().Memberships, 4)
	})
}

// Past the bound the oldest orphan is dropped and counted.
func TestRuleOrphansBounded(t *testing.T) {
	scenes(t, shard.Options{MaxOrphanBlocks: 3}, func(s *scene) {
		a := s.holder("a")
		a.tell(s.event(12, tokens(33, 64), 13, 14))
		a.tell(s.event(50, tokens(1, 32), 51, 52))
		check(s, "orphans", a.stats().Orphans, 2)
		check(s, "dropped", a.stats().OrphansDropped, 2)
		a.tell(s.event(0, tokens(1, 32), 11, 12))
		s.wants("a 2")
	})
}

// A child is in its parent's namespace, whatever its event says; a
// contradiction is counted when it was stated.
func TestRuleNamespaceOfTheParent(t *testing.T) {
	scenes(t, shard.Options{}, func(s *scene) {
		a := s.holder("a")
		late := s.event(13, tokens(49, 64), 14)
		a.tell(late)
		a.tell(s.in(s.event(0, tokens(1, 16), 11), "", "s"))
		a.tell(s.event(11, tokens(17, 32), 12))
		stated := s.event(12, tokens(33, 48), 13)
		stated.Stated = true
		a.tell(stated)
		s.wants("")
		check(s, "salted", s.ask("", "s", nil, tokens(1, 64)), "a 4")
		check(s, "contradictions", a.stats().Contradictions, 1)
	})
}

// A dropped holder is gone for every call, and its number is not used again.
func TestRuleDrop(t *testing.T) {
	scenes(t, shard.Options{}, func(s *scene) {
		a := s.holder("a")
		a.storeP(kv.TierDevice)
		s.must(s.idx.Drop(a.h))
		s.wants("")
		for what, err := range map[string]error{
			"store":  s.idx.Store(a.h, s.event(0, tokens(1, 16), 11)),
			"remove": s.idx.Remove(a.h, &shard.Remove{Engines: []kv.EngineHash{11}}),
			"clear":  s.idx.Clear(a.h),
			"drop":   s.idx.Drop(a.h),
			"walk":   s.idx.Walk(a.h, func(*shard.Node) bool { return true }),
		} {
			check(s, what+" is refused", errors.Is(err, shard.ErrUnknownHolder), true)
		}
		b := s.holder("b")
		check(s, "a new number", b.h != a.h, true)
		b.storeP(kv.TierDevice)
		s.wants("b 4")
		check(s, "holders", s.idx.Stats().Holders, 1)
	})
}

// Hashes of any value are hashes: none is taken for a mark of its own.
func TestRuleOddHashes(t *testing.T) {
	scenes(t, shard.Options{}, func(s *scene) {
		a := s.holder("a")
		ns := s.model.Namespace(kv.HashSeed)
		contents := []kv.ContentHash{0, 1<<64 - 1, 0, 1}
		engines := []kv.EngineHash{0, 1<<64 - 1, 1, 1 << 63}
		a.tell(&shard.Store{Namespace: ns, Engines: engines, Contents: contents})
		got := s.idx.Lookup(ns, contents, nil)
		check(s, "matches", len(got), 1)
		check(s, "match", got[0], kv.Match{Holder: uint32(a.h), Device: 4, Host: 4, Any: 4})
		a.tell(&shard.Store{Namespace: ns, HasParent: true, Parent: 0, Engines: []kv.EngineHash{5}, Contents: []kv.ContentHash{0}})
		check(s, "below the hash 0", s.idx.Lookup(ns, []kv.ContentHash{0, 0}, nil)[0].Any, 2)
		a.remove(kv.TierDevice, 0)
		check(s, "matches without the root block", len(s.idx.Lookup(ns, contents, nil)), 0)
	})
}
