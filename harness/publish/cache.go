// SPDX-License-Identifier: Apache-2.0

// Before: nothing, a seed. After: publisher.go, which numbers and sends the batches.

package publish

import (
	"math/rand/v2"

	"kindex/internal/kv"
)

// Shape of the chains that a cache holds: chosen, not measured. They make every event
// of the drills' wire: roots and extensions, adapters, a second tier, holes and heals.
const (
	maxChain    = 96 // blocks, after which a chain is only evicted from
	adapterName = "adapter-1"
	vocabulary  = 150_000
)

// cache is one rank's blocks and the requests that change them. It is what an engine
// has and a restart of its publisher may keep.
//
// Concurrency: one goroutine.
type cache struct {
	rng      *rand.Rand
	block    int // tokens
	perBatch int // blocks stored by a batch
	capacity int // blocks on the device
	chains   []*chain
	device   int
}

type chain struct {
	lora   string
	blocks []cached
	held   int // copies on the device and the host
}

// cached is one block of a chain, in the cache or evicted from it.
type cached struct {
	engine  kv.EngineHash
	tokens  []uint32
	content kv.ContentHash
	device  bool
	host    bool
}

func newCache(seed uint64, rank, block, perBatch, capacity int) *cache {
	return &cache{
		rng:   rand.New(rand.NewPCG(seed, uint64(rank)+0x6361636865)), //nolint:gosec // seeded on purpose
		block: block, perBatch: perBatch, capacity: capacity,
	}
}

// empty forgets all blocks.
func (c *cache) empty() { c.chains, c.device = nil, 0 }

// pass serves one request and returns what it announces: at least one stored block.
func (c *cache) pass() []kv.Event {
	ch := c.pick()
	events := c.heal(ch, nil)
	events = c.extend(ch, events)
	if c.rng.IntN(16) == 0 {
		events = c.offload(ch, events)
	}
	for c.device > c.capacity {
		events = c.evict(events)
	}
	return events
}

// pick returns a chain to go on with, a new one at times.
func (c *cache) pick() *chain {
	if len(c.chains) > 0 && c.rng.IntN(10) < 7 {
		// The later ones are the warmer.
		ch := c.chains[max(c.rng.IntN(len(c.chains)), c.rng.IntN(len(c.chains)))]
		if len(ch.blocks) < maxChain {
			return ch
		}
	}
	ch := &chain{}
	if c.rng.IntN(8) == 0 {
		ch.lora = adapterName
	}
	c.chains = append(c.chains, ch)
	return ch
}

// heal stores again what of ch was evicted from the device.
func (c *cache) heal(ch *chain, events []kv.Event) []kv.Event {
	for from := 0; from < len(ch.blocks); from++ {
		to := from
		for to < len(ch.blocks) && !ch.blocks[to].device {
			to++
		}
		if to > from {
			events = append(events, c.store(ch, from, to, "GPU"))
			from = to
		}
	}
	return events
}

// extend adds blocks to ch's end.
func (c *cache) extend(ch *chain, events []kv.Event) []kv.Event {
	from := len(ch.blocks)
	seed := kv.ContentSeed(ch.lora, "")
	for range c.perBatch {
		b := cached{tokens: make([]uint32, c.block)}
		for i := range b.tokens {
			b.tokens[i] = uint32(c.rng.IntN(vocabulary))
		}
		b.content = kv.HashBlock(seed, b.tokens, nil)
		above := seed
		if n := len(ch.blocks); n > 0 {
			above = uint64(ch.blocks[n-1].engine)
		}
		b.engine = kv.EngineHash(below(above, b.content))
		ch.blocks = append(ch.blocks, b)
	}
	return append(events, c.store(ch, from, len(ch.blocks), "GPU"))
}

// offload copies the end of ch to the host.
func (c *cache) offload(ch *chain, events []kv.Event) []kv.Event {
	to := len(ch.blocks)
	from := max(0, to-c.perBatch)
	for i := from; i < to; i++ {
		if ch.blocks[i].host {
			return events
		}
	}
	return append(events, c.store(ch, from, to, "CPU"))
}

// evict takes blocks of an old chain off the device, its end most often, else its
// middle, and those of its copies on the host that are no use any more.
func (c *cache) evict(events []kv.Event) []kv.Event {
	ch := c.chains[min(c.rng.IntN(len(c.chains)), c.rng.IntN(len(c.chains)))]
	var on []int
	for i := range ch.blocks {
		if ch.blocks[i].device {
			on = append(on, i)
		}
	}
	if len(on) > 0 {
		n := min(len(on), c.perBatch)
		at := len(on) - n
		if c.rng.IntN(4) == 0 {
			at = c.rng.IntN(at + 1)
		}
		events = append(events, c.remove(ch, on[at:at+n], "GPU"))
	}
	if len(on) <= c.perBatch { // nothing is left of it on the device
		var host []int
		for i := range ch.blocks {
			if ch.blocks[i].host {
				host = append(host, i)
			}
		}
		if len(host) > 0 {
			events = append(events, c.remove(ch, host, "CPU"))
		}
	}
	if ch.held == 0 {
		for i := range c.chains {
			if c.chains[i] == ch {
				c.chains = append(c.chains[:i], c.chains[i+1:]...)
				break
			}
		}
	}
	return events
}

// store puts the blocks [from, to) into a tier and returns the event.
func (c *cache) store(ch *chain, from, to int, medium string) kv.Event {
	e := kv.Event{Kind: kv.KindStored, BlockSize: c.block, LoRAName: ch.lora, Medium: medium}
	if ch.lora != "" {
		e.LoRAID, e.HasLoRAID = 1, true
	}
	if from > 0 {
		e.Parent, e.HasParent = ch.blocks[from-1].engine, true
	}
	for i := from; i < to; i++ {
		b := &ch.blocks[i]
		if medium == "CPU" {
			b.host = true
		} else {
			b.device = true
			c.device++
		}
		ch.held++
		e.Hashes = append(e.Hashes, b.engine)
		e.Tokens = append(e.Tokens, b.tokens...)
	}
	return e
}

// remove takes blocks out of a tier and returns the event.
func (c *cache) remove(ch *chain, which []int, medium string) kv.Event {
	e := kv.Event{Kind: kv.KindRemoved, Medium: medium}
	for _, i := range which {
		b := &ch.blocks[i]
		if medium == "CPU" {
			b.host = false
		} else {
			b.device = false
			c.device--
		}
		ch.held--
		e.Hashes = append(e.Hashes, b.engine)
	}
	return e
}

// step returns what a wire event does to the content, hashed here and not by the code
// under test.
func step(e *kv.Event) Event {
	out := Event{Kind: e.Kind, Parent: e.Parent, HasParent: e.HasParent, Engines: e.Hashes}
	if e.Medium == "CPU" {
		out.Tier = kv.TierHost
	}
	if e.Kind == kv.KindStored {
		out.Seed = kv.ContentSeed(e.LoRAName, "")
		b := kv.Blocks{Tokens: e.Tokens, BlockSize: e.BlockSize}
		out.Contents = b.AppendHashes(nil, out.Seed)
	}
	return out
}
