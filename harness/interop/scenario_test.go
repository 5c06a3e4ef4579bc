// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"kindex/internal/kv"
	"kindex/relay/wire"
)

const scenarioBlock = 4 // tokens

// A scenario is a short stream in the events' own words, what chain is asked
// for, and the depth in blocks that is right and that the peer gives.
type scenario struct {
	name   string
	events []kv.Event // one batch each
	chain  string     // one letter a block
	right  int
	peer   int
	why    string // where they differ: why ours is right
}

// s stores a chain, one letter a block, under hashes that begin at first.
func s(first uint64, chain string, parent uint64) kv.Event {
	e := kv.Event{Kind: kv.KindStored, BlockSize: scenarioBlock, Medium: "GPU", Tokens: letters(chain)}
	for i := range chain {
		e.Hashes = append(e.Hashes, kv.EngineHash(first+uint64(i)))
	}
	if parent != 0 {
		e.Parent, e.HasParent = kv.EngineHash(parent), true
	}
	return e
}

func r(hashes ...uint64) kv.Event {
	e := kv.Event{Kind: kv.KindRemoved, Medium: "GPU"}
	for _, h := range hashes {
		e.Hashes = append(e.Hashes, kv.EngineHash(h))
	}
	return e
}

var cleared = kv.Event{Kind: kv.KindCleared}

func letters(chain string) []uint32 {
	var out []uint32
	for _, c := range chain {
		for i := range uint32(scenarioBlock) {
			out = append(out, 100*uint32(c)+i)
		}
	}
	return out
}

var scenarios = []scenario{
	{"stored", []kv.Event{s(1, "abc", 0)}, "abcd", 3, 3, ""},
	{"grown", []kv.Event{s(1, "ab", 0), s(3, "cd", 2)}, "abcd", 4, 4, ""},
	{"tail removed", []kv.Event{s(1, "abc", 0), r(3)}, "abc", 2, 2, ""},
	{"cleared", []kv.Event{s(1, "abc", 0), cleared, s(9, "a", 0)}, "abc", 1, 1, ""},
	{"unknown removed", []kv.Event{s(1, "abc", 0), r(77)}, "abc", 3, 3, ""},
	{"hole", []kv.Event{s(1, "abcd", 0), r(2)}, "abcd", 1, 1, ""},
	{"root removed", []kv.Event{s(1, "abcd", 0), r(1)}, "abcd", 0, 0, ""},
	{"hole healed", []kv.Event{s(1, "abcd", 0), r(2), s(2, "b", 1)}, "abcd", 4, 2, "what lies below a hole was never removed"},
	{"root healed", []kv.Event{s(1, "abcd", 0), r(1), s(1, "a", 0)}, "abcd", 4, 1, "what lies below a hole was never removed"},
	{"divergent tails", []kv.Event{s(1, "abc", 0), s(13, "xy", 2)}, "abxy", 4, 4, ""},
	{"second copy", []kv.Event{s(1, "abc", 0), s(1, "abc", 0), r(3)}, "abc", 3, 2, "two copies were told and one taken back"},
	{"second copy gone too", []kv.Event{s(1, "abc", 0), s(1, "abc", 0), r(3), r(3)}, "abc", 2, 2, ""},
	{"child first", []kv.Event{s(2, "bc", 1), s(1, "a", 0)}, "abc", 3, 1, "the child was told, and its parent after it"},
	{"child of a removed parent", []kv.Event{s(1, "a", 0), r(1), s(2, "b", 1), s(1, "a", 0)}, "ab", 2, 1, "the child was told, and its parent after it"},
	{"hash moved", []kv.Event{s(1, "ab", 0), s(2, "x", 1)}, "ab", 1, 2, "the hash names another block now: its latest store wins"},
	{"two hashes, one removed", []kv.Event{s(1, "ab", 0), s(11, "ab", 0), r(2)}, "ab", 2, 1, "the block is still held under its other hash"},
	{"two hashes, both removed", []kv.Event{s(1, "ab", 0), s(11, "ab", 0), r(2), r(12)}, "ab", 1, 1, ""},
}

// TestDynamoScenarios holds both indexes against streams that single out one
// rule each.
func TestDynamoScenarios(t *testing.T) {
	if !inNamespace(t, 5*time.Minute, func() {
		dynamoEnv.install(t)
		buildIndexsrv(t)
	}) {
		return
	}
	both := startBoth(t)
	layout, err := wire.LayoutFor("vllm", "0.32.0")
	if err != nil {
		t.Fatal(err)
	}
	for i := range scenarios {
		sc := &scenarios[i]
		t.Run(sc.name, func(t *testing.T) {
			d := &duel{
				pair: both, id: 1000 + i, model: fmt.Sprintf("scenario-%d", i), block: scenarioBlock, layout: layout,
				ref: newReference(t, scenarioBlock), past: newHistory(scenarioBlock),
			}
			d.join(t, 0, "", nil)
			for _, e := range sc.events {
				b := kv.Batch{Timestamp: 1, HasRank: true, Events: []kv.Event{e}}
				d.send(t, 0, wire.AppendBatch(nil, &b, layout))
			}
			d.sync(t)
			q := question{Model: d.model, Tokens: letters(sc.chain)}
			id := strconv.Itoa(d.id)
			depth := func(r reply) int { return r.Instances[id].Longest / scenarioBlock }
			if got := depth(d.ref.answer(&q, id)); got != sc.right {
				t.Errorf("the reference: got %d blocks, want %d", got, sc.right)
			}
			if got := depth(d.ours.ask(t, &q)); got != sc.right {
				t.Errorf("ours: got %d blocks, want %d", got, sc.right)
			}
			if got := depth(d.theirs.ask(t, &q)); got != sc.peer {
				t.Errorf("the peer: got %d blocks, want %d", got, sc.peer)
			}
			if (sc.right != sc.peer) != (sc.why != "") {
				t.Errorf("the peer's %d is not ours, %d: that needs a reason", sc.peer, sc.right)
			}
			d.leave(t)
		})
	}
}
