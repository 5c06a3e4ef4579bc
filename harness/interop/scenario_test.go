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

	before int // so many of the events were published before anybody listened
	lost   int // the one that never arrived live, from 1; 0: none
	frames wire.ReplayFrames
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
	{name: "stored", events: []kv.Event{s(1, "abc", 0)}, chain: "abcd", right: 3, peer: 3},
	{name: "grown", events: []kv.Event{s(1, "ab", 0), s(3, "cd", 2)}, chain: "abcd", right: 4, peer: 4},
	{name: "tail removed", events: []kv.Event{s(1, "abc", 0), r(3)}, chain: "abc", right: 2, peer: 2},
	{name: "cleared", events: []kv.Event{s(1, "abc", 0), cleared, s(9, "a", 0)}, chain: "abc", right: 1, peer: 1},
	{name: "unknown removed", events: []kv.Event{s(1, "abc", 0), r(77)}, chain: "abc", right: 3, peer: 3},
	{name: "hole", events: []kv.Event{s(1, "abcd", 0), r(2)}, chain: "abcd", right: 1, peer: 1},
	{name: "root removed", events: []kv.Event{s(1, "abcd", 0), r(1)}, chain: "abcd", right: 0, peer: 0},
	{name: "hole healed", events: []kv.Event{s(1, "abcd", 0), r(2), s(2, "b", 1)}, chain: "abcd", right: 4, peer: 2, why: "what lies below a hole was never removed"},
	{name: "root healed", events: []kv.Event{s(1, "abcd", 0), r(1), s(1, "a", 0)}, chain: "abcd", right: 4, peer: 1, why: "what lies below a hole was never removed"},
	{name: "divergent tails", events: []kv.Event{s(1, "abc", 0), s(13, "xy", 2)}, chain: "abxy", right: 4, peer: 4},
	{name: "second copy", events: []kv.Event{s(1, "abc", 0), s(1, "abc", 0), r(3)}, chain: "abc", right: 3, peer: 2, why: "two copies were told and one taken back"},
	{name: "second copy gone too", events: []kv.Event{s(1, "abc", 0), s(1, "abc", 0), r(3), r(3)}, chain: "abc", right: 2, peer: 2},
	{name: "child first", events: []kv.Event{s(2, "bc", 1), s(1, "a", 0)}, chain: "abc", right: 3, peer: 1, why: "the child was told, and its parent after it"},
	{name: "child of a removed parent", events: []kv.Event{s(1, "a", 0), r(1), s(2, "b", 1), s(1, "a", 0)}, chain: "ab", right: 2, peer: 1, why: "the child was told, and its parent after it"},
	{name: "hash moved", events: []kv.Event{s(1, "ab", 0), s(2, "x", 1)}, chain: "ab", right: 1, peer: 2, why: "the hash names another block now: its latest store wins"},
	{name: "two hashes, one removed", events: []kv.Event{s(1, "ab", 0), s(11, "ab", 0), r(2)}, chain: "ab", right: 2, peer: 1, why: "the block is still held under its other hash"},
	{name: "two hashes, both removed", events: []kv.Event{s(1, "ab", 0), s(11, "ab", 0), r(2), r(12)}, chain: "ab", right: 1, peer: 1},
	{name: "joined late", events: []kv.Event{s(1, "ab", 0), s(3, "c", 2)}, chain: "abc", right: 3, peer: 3, before: 1},
	{
		name: "joined late, topic in replays", events: []kv.Event{s(1, "ab", 0), s(3, "c", 2)}, chain: "abc", right: 3, peer: 3,
		before: 1, frames: wire.ReplayTopic,
	},
	{name: "gap", events: []kv.Event{s(1, "ab", 0), s(3, "c", 2), s(4, "d", 3)}, chain: "abcd", right: 4, peer: 4, lost: 2},
	{
		name: "gap, topic in replays", events: []kv.Event{s(1, "ab", 0), s(3, "c", 2), s(4, "d", 3)}, chain: "abcd", right: 4, peer: 4,
		lost: 2, frames: wire.ReplayTopic,
	},
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
			d.frames = sc.frames
			var payloads [][]byte
			for _, e := range sc.events {
				b := kv.Batch{Timestamp: 1, HasRank: true, Events: []kv.Event{e}}
				payloads = append(payloads, wire.AppendBatch(nil, &b, layout))
			}
			d.join(t, 0, "", payloads[:sc.before:sc.before])
			for i, payload := range payloads[sc.before:] {
				if sc.before+i+1 == sc.lost {
					d.lose(t, 0, payload)
					continue
				}
				d.send(t, 0, payload)
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
