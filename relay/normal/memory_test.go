// SPDX-License-Identifier: Apache-2.0

package normal

import (
	"bytes"
	"reflect"
	"testing"

	"kindex/internal/kv"
)

// remembering returns a normaliser with something to remember of every kind.
func remembering(t testing.TB) *Normaliser {
	t.Helper()
	n := newTest("vllm")
	window := storeOf(0, 1)
	window.Group, window.Spec = 3, kv.SpecWindow
	one(n, window)
	bare := storeOf(0, 2)
	bare.HasGroup, bare.Spec = false, kv.SpecOther
	one(n, bare)
	for h := range uint64(keyedGeneration + 3) {
		n.keep(&kv.Event{Hashes: []kv.EngineHash{kv.EngineHash(h)}}, true, nil)
	}
	ahead := storeOf(0, 7)
	ahead.Lookahead = [][]uint32{{1, 2, 3}}
	one(n, ahead)
	if len(n.groups) < 3 || len(n.keyed) == 0 || len(n.keyedBefore) == 0 || n.lookahead != 3 {
		t.Fatalf("the normaliser remembers too little: %d groups, %d and %d keyed, lookahead %d", len(n.groups), len(n.keyedBefore), len(n.keyed), n.lookahead)
	}
	return n
}

// TestMemory: a normaliser that was given another's memory does what that one would.
func TestMemory(t *testing.T) {
	n, m := remembering(t), newTest("vllm")
	b := n.AppendMemory(nil)
	if err := m.Restore(b); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(m.groups, n.groups) || !reflect.DeepEqual(m.keyed, n.keyed) || !reflect.DeepEqual(m.keyedBefore, n.keyedBefore) || m.lookahead != n.lookahead || m.blockSize != n.blockSize {
		t.Error("the memory restored is another one")
	}
	host := storeOf(0, keyedGeneration+1)
	host.Tier = kv.TierHost
	if ops, _ := one(m, host); len(ops) != 1 || len(ops[0].Contents) != 0 {
		t.Errorf("a copy whose keys were left out: got %+v, want it joined by hash", ops)
	}
	bare := kv.Event{Kind: kv.KindStored, BlockSize: testBlock, HasGroup: true, Group: 3, Hashes: []kv.EngineHash{9}, Tokens: blockTokens(9)}
	if _, r := one(m, bare); r != NonMainGroup {
		t.Errorf("a store of a window group by its number: got %v, want %v", r, NonMainGroup)
	}
	empty := New(Config{})
	if err := empty.Restore(New(Config{}).AppendMemory(nil)); err != nil || empty.keyed != nil || empty.blockSize != 0 {
		t.Errorf("nothing remembered: got %v, %+v", err, empty)
	}
}

// TestMemoryRefused: what is no memory is refused, and nothing changes.
func TestMemoryRefused(t *testing.T) {
	n := newTest("vllm")
	one(n, storeOf(0, 1))
	n.keep(&kv.Event{Hashes: []kv.EngineHash{5}}, true, nil)
	b := n.AppendMemory(nil)
	for cut := range b {
		if err := n.Restore(b[:cut]); err == nil {
			t.Errorf("cut at %d of %d: no error", cut, len(b))
		}
	}
	for name, bad := range map[string][]byte{
		"more":           append(bytes.Clone(b), 0),
		"version":        append([]byte{9}, b[1:]...),
		"block size":     New(Config{BlockSize: 32}).AppendMemory(nil),
		"no such kind":   {memoryVersion, 16, 0, 1, 2, 9, 0, 0},
		"many groups":    {memoryVersion, 16, 0, 0xff, 0xff, 3, 2, 1, 0, 0},
		"many hashes":    {memoryVersion, 16, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 0},
		"endless":        bytes.Repeat([]byte{0x81}, 40),
		"a size of 2^40": {memoryVersion, 0x80, 0x80, 0x80, 0x80, 0x80, 0x20, 0, 0, 0, 0},
	} {
		if err := n.Restore(bad); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if !bytes.Equal(n.AppendMemory(nil), b) {
		t.Error("a memory that was refused changed something")
	}
}

func FuzzMemory(f *testing.F) {
	n := newTest("vllm")
	one(n, storeOf(0, 1))
	n.keep(&kv.Event{Hashes: []kv.EngineHash{5}}, true, nil)
	f.Add(n.AppendMemory(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		n := New(Config{})
		if n.Restore(b) != nil {
			return
		}
		again := New(Config{})
		if err := again.Restore(n.AppendMemory(nil)); err != nil || !reflect.DeepEqual(again.groups, n.groups) || !reflect.DeepEqual(again.keyed, n.keyed) {
			t.Errorf("restored twice: %v", err)
		}
	})
}
