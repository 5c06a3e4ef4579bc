// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"kindex/internal/kv"
	"kindex/relay/wire"
)

// history keeps every event of a worker as decoded, to show why an answer is
// right.
type history struct {
	block  int
	dec    wire.Decoder
	events []told
	n      map[int]int // batches by rank
}

// told is one event and where it stood.
type told struct {
	rank, batch int
	restart     bool // a new life began here; the event is empty
	kv.Event
}

func newHistory(block int) history { return history{block: block, n: map[int]int{}} }

func (h *history) restart(rank int) {
	h.events = append(h.events, told{rank: rank, batch: h.n[rank], restart: true})
}

// add decodes one batch and keeps copies of its events.
func (h *history) add(t *testing.T, rank int, payload []byte) {
	t.Helper()
	var b kv.Batch
	if err := h.dec.Decode(payload, &b); err != nil {
		t.Fatal(err)
	}
	for i := range b.Events {
		e := b.Events[i]
		e.Hashes = slices.Clone(e.Hashes)
		e.Tokens = slices.Clone(e.Tokens)
		e.Second = slices.Clone(e.Second)
		e.Extra = slices.Clone(e.Extra)
		for j := range e.Extra {
			e.Extra[j] = slices.Clone(e.Extra[j])
		}
		e.Lookahead = slices.Clone(e.Lookahead)
		for j := range e.Lookahead {
			e.Lookahead[j] = slices.Clone(e.Lookahead[j])
		}
		h.events = append(h.events, told{rank: rank, batch: h.n[rank], Event: e})
	}
	h.n[rank]++
}

// prompts returns the distinct token ranges that were stored from a root.
func (h *history) prompts() [][]uint32 {
	var out [][]uint32
	for i := range h.events {
		e := &h.events[i]
		if e.Kind == kv.KindStored && !e.HasParent && len(e.Tokens) > 0 && e.Tokens[0] < 1<<30 {
			out = append(out, e.Tokens)
		}
	}
	return out
}

// told of one block of a chain by one rank.
type blockStory struct {
	at     int // block of the chain
	stores []*told
	tokens []uint32
}

// stories returns, for each block of a prompt, the events of rank that stored a
// block of the same tokens with the block before it as its parent, or in the
// same event.
func (h *history) stories(rank int, tokens []uint32) []blockStory {
	out := make([]blockStory, len(tokens)/h.block)
	parents := map[kv.EngineHash]bool{}
	for i := range out {
		s := &out[i]
		s.at, s.tokens = i, tokens[i*h.block:(i+1)*h.block]
		names := map[kv.EngineHash]bool{}
		for j := range h.events {
			e := &h.events[j]
			if e.rank != rank || e.restart || e.Kind != kv.KindStored {
				continue
			}
			blocks := len(e.Tokens) / h.block
			for k := range blocks {
				if !slices.Equal(e.Tokens[k*h.block:(k+1)*h.block], s.tokens) {
					continue
				}
				switch {
				case k > 0 && blocks == len(e.Hashes) && parents[e.Hashes[k-1]],
					k > 0 && blocks != len(e.Hashes),
					k == 0 && i == 0 && !e.HasParent,
					k == 0 && i > 0 && e.HasParent && parents[e.Parent]:
					s.stores = append(s.stores, e)
					if blocks == len(e.Hashes) {
						names[e.Hashes[k]] = true
					}
				}
			}
		}
		parents = names
	}
	return out
}

// hashes returns the engine hashes that s was stored by.
func (h *history) hashes(s *blockStory) map[kv.EngineHash]bool {
	hashes := map[kv.EngineHash]bool{}
	for _, e := range s.stores {
		blocks := len(e.Tokens) / h.block
		for k := range blocks {
			if blocks == len(e.Hashes) && slices.Equal(e.Tokens[k*h.block:(k+1)*h.block], s.tokens) {
				hashes[e.Hashes[k]] = true
			}
		}
	}
	return hashes
}

// lines returns what rank told of the hashes that s was stored by.
func (h *history) lines(rank int, s *blockStory) []string {
	var out []string
	hashes := h.hashes(s)
	for i := range h.events {
		e := &h.events[i]
		if e.rank != rank {
			continue
		}
		switch {
		case e.restart:
			out = append(out, "another life of the engine begins")
		case e.Kind == kv.KindCleared:
			out = append(out, fmt.Sprintf("batch %d: cleared", e.batch))
		default:
			for j, hash := range e.Hashes {
				if !hashes[hash] {
					continue
				}
				out = append(out, fmt.Sprintf("batch %d: %v %016x %s%s", e.batch, e.Kind, uint64(hash), orGPU(e.Medium), e.details(j)))
			}
		}
	}
	return out
}

func orGPU(medium string) string {
	if medium == "" {
		return "GPU"
	}
	return medium
}

// details returns what else one hash's event says, where it says more than most.
func (e *told) details(j int) string {
	var b strings.Builder
	if e.HasGroup && e.Group > 0 {
		fmt.Fprintf(&b, " group %d", e.Group)
	}
	if e.Kind != kv.KindStored {
		return b.String()
	}
	if len(e.Tokens) == 0 {
		b.WriteString(" without tokens")
	}
	if e.Form == kv.FormBytes {
		b.WriteString(" as a digest")
	}
	if e.Second != nil {
		b.WriteString(" of token pairs")
	}
	if e.LoRAName != "" {
		fmt.Fprintf(&b, " lora %q", e.LoRAName)
	}
	if e.HasSalt {
		fmt.Fprintf(&b, " salt %q", e.Salt)
	}
	if j < len(e.Extra) && len(e.Extra[j]) > 0 {
		fmt.Fprintf(&b, " extra keys %v", e.Extra[j])
	}
	if len(e.Lookahead) > j {
		fmt.Fprintf(&b, " lookahead %v", e.Lookahead[j])
	}
	return b.String()
}

// left counts the copies of the block of s that rank's events leave, how many of
// those were told without tokens, and how many were taken away before.
func (h *history) left(rank int, s *blockStory) (copies, placeholders, removals int) {
	type name struct {
		hash  kv.EngineHash
		tier  kv.Tier
		group int
	}
	held, bare := map[name]int{}, map[name]int{}
	hashes := h.hashes(s)
	for i := range h.events {
		e := &h.events[i]
		if e.rank != rank {
			continue
		}
		if e.restart || e.Kind == kv.KindCleared {
			clear(held)
			clear(bare)
			continue
		}
		for _, hash := range e.Hashes {
			n := name{hash, e.Tier, e.Group}
			switch {
			case !hashes[hash]:
			case e.Kind == kv.KindRemoved:
				removals++
				held[n] = max(0, held[n]-1)
				bare[n] = max(0, bare[n]-1)
			default:
				held[n]++
				if len(e.Tokens) == 0 {
					bare[n]++
				}
			}
		}
	}
	for n := range held {
		copies += held[n]
		placeholders += bare[n]
	}
	return copies, placeholders, removals
}

// The kinds of differences: what an index must read in the events and the peer
// does not, or reads otherwise. In each the events shown make ours right.
const (
	// A digest of 16 or 32 bytes names a block by its last 8; the peer drops
	// every such event.
	kindDigest = "digest hashes"
	// EAGLE's pages hold pairs of tokens; a question has single ones. The peer
	// hashes the pairs.
	kindPairs = "pages of token pairs"
	// vLLM writes a salt as an extra key of a chain's first block, and only
	// there. The peer holds such chains for the bare namespace: too much for
	// bare questions, nothing for salted ones, and where both are cached one
	// takes the other's place.
	kindSalt = "salt in extra keys"
	// Blocks that show an image differ by its identifier, however equal their
	// placeholder tokens. The peer answers for the tokens alone.
	kindItems = "images in extra keys"
	// An engine may hold a block in several copies, told one by one and taken
	// back one by one. The peer forgets it with the first removal.
	kindCopies = "second copies"
	// An offload tier may name its blocks by hash alone. The peer makes nothing
	// of it.
	kindPlaceholder = "host copies told by hash"
	// A publisher that starts anew starts at 0. The peer keeps the old life's
	// content and ignores all numbers up to its last.
	kindRestart = "restart"

	kindUnexplained = "unexplained"
)

// explain names the kind of a difference and shows the events behind it.
func (d *duel) explain(q *question, want, got *reply) (kind, shown string) {
	id := strconv.Itoa(d.id)
	for rank := range d.pubs {
		name := strconv.Itoa(rank)
		right, peer := want.Instances[id].Ranks[name]/d.block, got.Instances[id].Ranks[name]/d.block
		if right == peer { // then a slower tier differs, which only the worker's sum shows
			right, peer = want.Instances[id].Disk/d.block, got.Instances[id].Disk/d.block
		}
		if right == peer {
			continue
		}
		at := min(right, peer)
		stories := d.past.stories(rank, q.prompt)
		kind := d.kind(q, rank, stories[:max(right, peer)], at, right > peer)
		return kind, fmt.Sprintf("\n      rank %d, block %d\n      %s", rank, at,
			strings.Join(d.past.lines(rank, &stories[at]), "\n      "))
	}
	return kindUnexplained, ""
}

// kind finds the fact of the events that makes the difference. The path is what
// was told of the blocks up to the greater of both answers, at the first block
// they disagree about; under is true where the peer knows less than is there.
func (d *duel) kind(q *question, rank int, path []blockStory, at int, under bool) string {
	says := func(path []blockStory, f func(*told) bool) bool {
		return slices.ContainsFunc(path, func(s blockStory) bool { return slices.ContainsFunc(s.stores, f) })
	}
	salted := q.Salt != ""
	for other := range d.pubs {
		if first := d.past.stories(other, q.prompt[:d.block]); says(first, (*told).salted) {
			salted = true
		}
	}
	copies, placeholders, removals := d.past.left(rank, &path[at])
	switch {
	case d.lost[rank]:
		return kindRestart
	case says(path, func(e *told) bool { return e.Form == kv.FormBytes }):
		return kindDigest
	case says(path, func(e *told) bool { return e.Second != nil }):
		return kindPairs
	case says(path, (*told).items):
		return kindItems
	case salted:
		return kindSalt
	case under && placeholders > 0:
		return kindPlaceholder
	case under && removals > 0 && copies > 0:
		return kindCopies
	}
	return kindUnexplained
}

// salted reports whether e is the beginning of a chain under a salt.
func (e *told) salted() bool {
	if e.HasParent || len(e.Extra) == 0 {
		return false
	}
	return slices.ContainsFunc(e.Extra[0], func(k kv.ExtraKey) bool { return k.Kind == kv.ExtraString && k.ID != e.LoRAName })
}

// items reports whether e has a block that shows an image.
func (e *told) items() bool {
	return slices.ContainsFunc(e.Extra, func(keys []kv.ExtraKey) bool {
		return slices.ContainsFunc(keys, func(k kv.ExtraKey) bool { return k.Kind != kv.ExtraString })
	})
}
