// SPDX-License-Identifier: Apache-2.0

// Before: kv.Batch (decoded events). After: an index's writer, a relay's rank.

package normal

import (
	"strconv"

	"kindex/internal/kv"
)

// maxGroups bounds the cache groups whose kinds are remembered; the index knows
// a group by 8 bits.
const maxGroups = 256

// foreignOwner is the owner whose copies no released router counts: blocks of a
// reuse layer, which gives them to whoever asks.
const foreignOwner = "kvcr"

// keyedGeneration bounds each of the two generations of [Normaliser.keyed].
// Chosen, not measured: 2 x 65,536 hashes are about 5 MB at worst, and most
// streams have none.
const keyedGeneration = 1 << 16

// Config says whose events a Normaliser takes.
type Config struct {
	// BlockSize is the content's block size in tokens. 0: that of the first store
	// of a main-attention group in each life.
	BlockSize int
	// Stated is set for engines whose every event names its whole namespace.
	Stated bool
}

// Normaliser turns one stream's events into operations. It remembers what later
// events of the stream leave unsaid: the kinds of cache groups, the block size.
//
// Concurrency: one goroutine. It allocates nothing once its buffers have grown,
// LoRA ids without names aside.
type Normaliser struct {
	cfg       Config
	blockSize int // 0: not learned yet

	groups map[int]kv.SpecKind

	// keyed are engine hashes whose blocks carry keys that the tokens do not
	// show: a salt, a LoRA adapter, an image. Some announcements of copies in
	// lower tiers repeat a block's tokens and leave its keys out; taken by their
	// tokens they would move the block to a place that it is not at, so such
	// blocks are joined by hash. Two generations, the older dropped when the
	// younger is full.
	keyed, keyedBefore map[kv.EngineHash]struct{}

	lookahead int // most tokens beyond a block that a hash of this stream covers

	drops [numReasons]uint64

	// Buffers of the batch in work.
	ops      []Op
	contents []kv.ContentHash
	extra    [][]byte
	extraBuf []byte
	ends     []int // of the event in work
}

// New returns a normaliser for one stream.
func New(cfg Config) *Normaliser {
	return &Normaliser{cfg: cfg, blockSize: cfg.BlockSize, groups: map[int]kv.SpecKind{}}
}

// Batch returns what b does to the content, in order. The operations are valid
// until the next call, and as long as b's events are.
//
// Cost: about 0.3 us for 8 blocks of 16 tokens, most of it hashing.
func (n *Normaliser) Batch(b *kv.Batch) []Op {
	n.ops = n.ops[:0]
	n.contents, n.extra, n.extraBuf = n.contents[:0], n.extra[:0], n.extraBuf[:0]
	for i := range b.Events {
		ev := &b.Events[i]
		var r Reason
		switch ev.Kind {
		case kv.KindStored:
			r = n.stored(ev, i)
		case kv.KindRemoved:
			r = n.removed(ev, i)
		case kv.KindCleared:
			n.ops = append(n.ops, Op{Kind: Clear, Event: i})
		}
		n.drops[r]++ // none is nobody's
	}
	return n.ops
}

// Drops returns how many events were left out for r so far.
func (n *Normaliser) Drops(r Reason) uint64 { return n.drops[r] }

// BlockSize returns the content's block size in tokens; 0: not learned yet.
func (n *Normaliser) BlockSize() int { return n.blockSize }

// Lookahead returns the most tokens beyond a block that this life's hashes cover;
// 0: none.
func (n *Normaliser) Lookahead() int { return n.lookahead }

// Restart forgets what belongs to one life of the publisher. What was counted
// stays counted.
func (n *Normaliser) Restart() {
	clear(n.groups)
	n.keyed, n.keyedBefore = nil, nil
	n.lookahead = 0
	n.blockSize = n.cfg.BlockSize
}

// stored appends the stores that event at makes, in order, or returns why it
// makes none.
func (n *Normaliser) stored(ev *kv.Event, at int) Reason {
	n.learn(ev)
	if r := n.place(ev); r != none {
		return r
	}
	if len(ev.Hashes) == 0 {
		return NoHashes
	}
	op := Op{
		Kind:      Store,
		Event:     at,
		Tier:      ev.Tier,
		Group:     uint8(ev.Group),
		Parent:    ev.Parent,
		HasParent: ev.HasParent,
		Engines:   ev.Hashes,
	}
	if len(ev.Tokens) == 0 {
		// A placeholder names blocks told before: no parent, no content.
		op.Parent, op.HasParent = 0, false
		n.ops = append(n.ops, op)
		return none
	}
	if r := n.sized(ev, at); r != none {
		return r
	}
	for _, l := range ev.Lookahead {
		n.lookahead = max(n.lookahead, len(l))
	}
	op.LoRA = lora(ev)
	var extra [][]byte
	op.Salt, extra = n.extraKeys(ev, op.LoRA)
	if ev.HasSalt {
		op.Salt = ev.Salt
	}
	op.Seed = kv.ContentSeed(op.LoRA, op.Salt)
	op.Stated = n.cfg.Stated || ev.HasSalt
	// Bigram pages arrive folded: Tokens are each pair's first.
	op.Blocks = kv.Blocks{Tokens: ev.Tokens, BlockSize: n.blockSize, Extra: extra}
	hashed := len(n.contents)
	n.contents = op.Blocks.AppendHashes(n.contents, op.Seed)
	op.Contents = n.contents[hashed:len(n.contents):len(n.contents)]
	n.keep(ev, op.LoRA != "" || op.Salt != "", extra)
	if len(n.keyed) > 0 && ev.Tier != kv.TierDevice && !ev.HasExtra && !op.Stated {
		n.joinKeyed(&op)
	} else {
		n.ops = append(n.ops, op)
	}
	return none
}

// sized checks that ev's tokens are blocks of the content's size, and learns that
// size from the first that are whole blocks.
func (n *Normaliser) sized(ev *kv.Event, at int) Reason {
	size := n.blockSize
	if size == 0 {
		size = ev.BlockSize
	}
	if ev.BlockSize != size && ev.BlockSize > 0 {
		n.ops = append(n.ops, Op{Kind: Mismatch, Event: at, Size: ev.BlockSize})
		return BlockSize
	}
	// Compared by division, so that no product can overflow.
	if ev.BlockSize <= 0 || ev.Extra != nil && len(ev.Extra) != len(ev.Hashes) || len(ev.Tokens)%size != 0 || len(ev.Tokens)/size != len(ev.Hashes) {
		return Misaligned
	}
	n.blockSize = size
	return none
}

// removed appends what event at takes away, or returns why it takes nothing.
func (n *Normaliser) removed(ev *kv.Event, at int) Reason {
	if r := n.place(ev); r != none {
		return r
	}
	if len(ev.Hashes) == 0 {
		return NoHashes
	}
	n.ops = append(n.ops, Op{Kind: Remove, Event: at, Tier: ev.Tier, Group: uint8(ev.Group), Engines: ev.Hashes})
	return none
}

// learn remembers the kind of ev's cache group. Only stores say it; removals,
// and stores of some connectors, carry the bare number.
func (n *Normaliser) learn(ev *kv.Event) {
	kind := ev.Spec
	if kind == kv.SpecUnstated && ev.HasWindow {
		kind = kv.SpecWindow
	}
	if kind == kv.SpecUnstated {
		return
	}
	g := groupOf(ev)
	if _, ok := n.groups[g]; ok || len(n.groups) < maxGroups {
		n.groups[g] = kind
	}
}

// groupOf returns what ev's group's kind is remembered under. Events that name
// no group are a group of their own: they need not be group 0's.
func groupOf(ev *kv.Event) int {
	if !ev.HasGroup {
		return -1
	}
	return ev.Group
}

// place decides by where a copy lies and in which group whether it counts.
func (n *Normaliser) place(ev *kv.Event) Reason {
	kind := n.groups[groupOf(ev)]
	if ev.Spec != kv.SpecUnstated {
		kind = ev.Spec
	}
	switch {
	case kind == kv.SpecWindow, kind == kv.SpecOther:
		return NonMainGroup
	case ev.Locality == kv.LocalityRemote:
		return RemoteLocality
	case ev.Tier == kv.TierRemote:
		return RemoteTier
	case ev.Ownership == foreignOwner:
		return Ownership
	case ev.Tier >= kv.LocalTiers:
		return UnknownMedium
	case ev.Group < 0 || ev.Group >= maxGroups:
		return GroupRange
	}
	return none
}

// lora returns the adapter's name. Releases before vLLM 0.14 send its number
// alone, which counts from 1.
func lora(ev *kv.Event) string {
	switch {
	case ev.LoRAName != "":
		return ev.LoRAName
	case ev.HasLoRAID && ev.LoRAID != 0:
		return "lora-id:" + strconv.FormatInt(ev.LoRAID, 10)
	}
	return ""
}

// extraKeys takes ev's extra keys apart: the salt, and per block the canonical
// encoding of the keys that are the block's own (nil when no block has any).
//
// The wire's list is untagged: LoRA name, multimodal items, salt, digests of
// prompt embeddings, in this order. The LoRA name and the salt are bare strings,
// and so are the identifiers of multimodal items in vLLM 0.17 to 0.19 (9-element
// arrays). They are told apart so, in every layout:
//
//   - one string equal to the event's LoRA name is that name, whichever block;
//   - a salt stands on the first block of a chain only, after all items: it is
//     the last string left on the first block of an event without a parent,
//     unless the same string is left on another block of the event too, which
//     makes it an item that spans both;
//   - every other string is an item's identifier.
//
// An old release's item that lies within the first block alone, in a request
// without a salt, cannot be told from a salt. It then separates its chain as one:
// a lookup that does not name it misses, none hits wrongly.
func (n *Normaliser) extraKeys(ev *kv.Event, lora string) (salt string, extra [][]byte) {
	if !ev.HasExtra {
		return "", nil
	}
	saltAt := -1
	if !ev.HasParent && len(ev.Extra) > 0 {
		saltAt = saltKey(ev.Extra, lora)
		if saltAt >= 0 {
			salt = ev.Extra[0][saltAt].ID
		}
	}
	n.ends = n.ends[:0]
	begin, first := len(n.extraBuf), len(n.extra)
	for i, keys := range ev.Extra {
		name := loraKey(keys, lora)
		for k := range keys {
			if k == name || i == 0 && k == saltAt {
				continue
			}
			n.extraBuf = kv.AppendExtraKey(n.extraBuf, keys[k])
		}
		n.ends = append(n.ends, len(n.extraBuf))
	}
	if len(n.extraBuf) == begin {
		return salt, nil
	}
	from := begin
	for _, end := range n.ends {
		n.extra = append(n.extra, n.extraBuf[from:end:end])
		from = end
	}
	return salt, n.extra[first:len(n.extra):len(n.extra)]
}

// loraKey returns which of one block's keys is the LoRA name, or -1.
func loraKey(keys []kv.ExtraKey, lora string) int {
	if lora == "" {
		return -1
	}
	for k := range keys {
		if keys[k].Kind == kv.ExtraString && keys[k].ID == lora {
			return k
		}
	}
	return -1
}

// saltKey returns which key of the first block is the salt, or -1.
func saltKey(extra [][]kv.ExtraKey, lora string) int {
	name, salt := loraKey(extra[0], lora), -1
	for k := range extra[0] {
		if k != name && extra[0][k].Kind == kv.ExtraString && extra[0][k].ID != "" {
			salt = k
		}
	}
	if salt < 0 {
		return -1
	}
	for _, keys := range extra[1:] {
		name := loraKey(keys, lora)
		for k := range keys {
			if k != name && keys[k].Kind == kv.ExtraString && keys[k].ID == extra[0][salt].ID {
				return -1
			}
		}
	}
	return salt
}

// keep remembers the hashes of ev whose blocks carry keys of their own: the
// root of a chain in a namespace, and blocks with extra keys. Blocks below a root
// need none: they lie in their parent's namespace whatever they say. Engines that
// repeat the keys in every event need no memory of them.
func (n *Normaliser) keep(ev *kv.Event, namespaced bool, extra [][]byte) {
	root := namespaced && !ev.HasParent
	if n.cfg.Stated || ev.HasSalt || !root && extra == nil {
		return
	}
	for i, h := range ev.Hashes {
		if own := extra != nil && len(extra[i]) > 0; !own && (i > 0 || !root) {
			continue
		}
		if len(n.keyed) >= keyedGeneration {
			n.keyedBefore, n.keyed = n.keyed, nil
		}
		if n.keyed == nil {
			n.keyed = map[kv.EngineHash]struct{}{}
		}
		n.keyed[h] = struct{}{}
	}
}

func (n *Normaliser) isKeyed(h kv.EngineHash) bool {
	if _, ok := n.keyed[h]; ok {
		return true
	}
	_, ok := n.keyedBefore[h]
	return ok
}

// joinKeyed appends op, an announcement without keys, in stretches: keyed blocks
// become placeholders, the others follow the block before them.
func (n *Normaliser) joinKeyed(op *Op) {
	for from := 0; from < len(op.Engines); {
		keyed := n.isKeyed(op.Engines[from])
		to := from + 1
		for to < len(op.Engines) && n.isKeyed(op.Engines[to]) == keyed {
			to++
		}
		part := Op{Kind: Store, Event: op.Event, From: from, Tier: op.Tier, Group: op.Group, Engines: op.Engines[from:to]}
		if !keyed {
			part.Seed, part.LoRA, part.Salt = op.Seed, op.LoRA, op.Salt
			part.Parent, part.HasParent = op.Parent, op.HasParent
			if from > 0 {
				part.Parent, part.HasParent = op.Engines[from-1], true
			}
			part.Contents = op.Contents[from:to]
			part.Blocks = kv.Blocks{Tokens: op.Blocks.Tokens[from*n.blockSize : to*n.blockSize], BlockSize: n.blockSize}
		}
		n.ops = append(n.ops, part)
		from = to
	}
}
