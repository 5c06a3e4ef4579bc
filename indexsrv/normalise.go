// SPDX-License-Identifier: Apache-2.0

// Before: Feed (decoded events). After: Writer (stores and removals).

package indexsrv

import (
	"strconv"

	"kindex/internal/kv"
	"kindex/shard"
)

// drop is why an event, or a part of one, makes no memberships.
type drop uint8

// The reasons that arise between the decoder and the index. Those of the decoder
// are wire.Reason.
const (
	dropNone           drop = iota
	dropMalformed           // a message or payload that cannot be read as a whole
	dropNonMainGroup        // a cache group that is not main attention
	dropRemoteLocality      // a copy in somebody else's storage
	dropRemoteTier          // a copy in shared storage
	dropUnknownMedium       // a medium this version cannot name
	dropGroupRange          // a main group number that is not 0 to 255
	dropBlockSize           // another block size than was registered
	dropMisaligned          // tokens that are not block size times hashes
	dropNoHashes            // an event that names no block
	dropArenaFull           // the index has no room
	numDrops
)

var dropNames = [numDrops]string{
	dropNone:           "none",
	dropMalformed:      "malformed",
	dropNonMainGroup:   "non_main_group",
	dropRemoteLocality: "remote_locality",
	dropRemoteTier:     "remote_tier",
	dropUnknownMedium:  "unknown_medium",
	dropGroupRange:     "group_range",
	dropBlockSize:      "block_size",
	dropMisaligned:     "misaligned",
	dropNoHashes:       "no_hashes",
	dropArenaFull:      "arena_full",
}

// String returns the metric label of d.
func (d drop) String() string { return dropNames[d] }

// maxGroups bounds the cache groups whose kinds are remembered; the index knows
// a group by 8 bits.
const maxGroups = 256

// keyedGeneration bounds each of the two generations of [normaliser.keyed].
// Chosen, not measured: 2 x 65,536 hashes are about 5 MB at worst, and most
// streams have none.
const keyedGeneration = 1 << 16

// normaliser turns one stream's events into what the index counts. It remembers
// what later events of the stream leave unsaid: the kinds of cache groups.
//
// Concurrency: one goroutine. It allocates nothing once its buffers have grown,
// LoRA ids without names aside.
type normaliser struct {
	model     kv.ModelKey
	blockSize int
	// stated is set for engines whose every event names its whole namespace.
	stated bool

	groups map[int]kv.SpecKind

	// keyed are engine hashes whose blocks carry keys that the tokens do not
	// show: a salt, a LoRA adapter, an image. Some announcements of copies in
	// lower tiers repeat a block's tokens and leave its keys out; taken by their
	// tokens they would move the block to a place that it is not at, so such
	// blocks are joined by hash. Two generations, the older dropped when the
	// younger is full.
	keyed, keyedBefore map[kv.EngineHash]struct{}

	lookahead int // most tokens beyond a block that a hash of this stream covers

	// Buffers of the batch in work.
	stores   []shard.Store
	removes  []shard.Remove
	contents []kv.ContentHash
	extra    [][]byte
	extraBuf []byte
	ends     []int // of the event in work
}

func newNormaliser(cfg *StreamConfig) *normaliser {
	return &normaliser{
		model:     cfg.Model,
		blockSize: cfg.BlockSize,
		stated:    cfg.Engine == "sglang",
		groups:    map[int]kv.SpecKind{},
	}
}

// begin begins a batch: what the last one made is no longer valid.
func (n *normaliser) begin() {
	n.stores, n.removes = n.stores[:0], n.removes[:0]
	n.contents, n.extra, n.extraBuf = n.contents[:0], n.extra[:0], n.extraBuf[:0]
}

// restart forgets what belongs to one life of the publisher.
func (n *normaliser) restart() {
	clear(n.groups)
	n.keyed, n.keyedBefore = nil, nil
	n.lookahead = 0
}

// stored appends to n.stores the stores that ev makes, in order, and returns
// them, or why it makes none. They are valid until begin and alias ev's slices.
func (n *normaliser) stored(ev *kv.Event) ([]shard.Store, drop) {
	from := len(n.stores)
	n.learn(ev)
	if d := n.place(ev); d != dropNone {
		return nil, d
	}
	if len(ev.Hashes) == 0 {
		return nil, dropNoHashes
	}
	st := shard.Store{
		Tier:      ev.Tier,
		Group:     uint8(ev.Group),
		Parent:    ev.Parent,
		HasParent: ev.HasParent,
		Engines:   ev.Hashes,
	}
	if len(ev.Tokens) == 0 {
		// A placeholder names blocks told before: no parent, no content.
		st.Parent, st.HasParent = 0, false
		n.stores = append(n.stores, st)
		return n.stores[from:], dropNone
	}
	if ev.BlockSize != n.blockSize && ev.BlockSize > 0 {
		return nil, dropBlockSize
	}
	// Compared by division, so that no product can overflow.
	if ev.BlockSize == 0 || ev.Extra != nil && len(ev.Extra) != len(ev.Hashes) || len(ev.Tokens)%n.blockSize != 0 || len(ev.Tokens)/n.blockSize != len(ev.Hashes) {
		return nil, dropMisaligned
	}
	for _, l := range ev.Lookahead {
		n.lookahead = max(n.lookahead, len(l))
	}
	lora := n.lora(ev)
	salt, extra := n.extraKeys(ev, lora)
	if ev.HasSalt {
		salt = ev.Salt
	}
	seed := kv.ContentSeed(lora, salt)
	st.Namespace = n.model.Namespace(seed)
	st.Stated = n.stated || ev.HasSalt
	// Bigram pages arrive folded: Tokens are each pair's first.
	st.Blocks = kv.Blocks{Tokens: ev.Tokens, BlockSize: n.blockSize, Extra: extra}
	hashed := len(n.contents)
	n.contents = st.Blocks.AppendHashes(n.contents, seed)
	st.Contents = n.contents[hashed:len(n.contents):len(n.contents)]
	n.keep(ev, lora != "" || salt != "", extra)
	if len(n.keyed) > 0 && ev.Tier != kv.TierDevice && !ev.HasExtra && !st.Stated {
		n.joinKeyed(&st)
	} else {
		n.stores = append(n.stores, st)
	}
	return n.stores[from:], dropNone
}

// removed appends to n.removes what ev takes away, or returns why it takes
// nothing.
func (n *normaliser) removed(ev *kv.Event) drop {
	if d := n.place(ev); d != dropNone {
		return d
	}
	if len(ev.Hashes) == 0 {
		return dropNoHashes
	}
	n.removes = append(n.removes, shard.Remove{Tier: ev.Tier, Group: uint8(ev.Group), Engines: ev.Hashes})
	return dropNone
}

// learn remembers the kind of ev's cache group. Only stores say it; removals,
// and stores of some connectors, carry the bare number.
func (n *normaliser) learn(ev *kv.Event) {
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
func (n *normaliser) place(ev *kv.Event) drop {
	kind := n.groups[groupOf(ev)]
	if ev.Spec != kv.SpecUnstated {
		kind = ev.Spec
	}
	switch {
	case kind == kv.SpecWindow, kind == kv.SpecOther:
		return dropNonMainGroup
	case ev.Locality == kv.LocalityRemote:
		return dropRemoteLocality
	case ev.Tier == kv.TierRemote:
		return dropRemoteTier
	case ev.Tier >= kv.LocalTiers:
		return dropUnknownMedium
	case ev.Group < 0 || ev.Group >= maxGroups:
		return dropGroupRange
	}
	return dropNone
}

// lora returns the adapter's name. Releases before vLLM 0.14 send its number
// alone, which counts from 1.
func (n *normaliser) lora(ev *kv.Event) string {
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
func (n *normaliser) extraKeys(ev *kv.Event, lora string) (salt string, extra [][]byte) {
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
func (n *normaliser) keep(ev *kv.Event, namespaced bool, extra [][]byte) {
	root := namespaced && !ev.HasParent
	if n.stated || ev.HasSalt || !root && extra == nil {
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

func (n *normaliser) isKeyed(h kv.EngineHash) bool {
	if _, ok := n.keyed[h]; ok {
		return true
	}
	_, ok := n.keyedBefore[h]
	return ok
}

// joinKeyed appends st, an announcement without keys, in stretches: keyed blocks
// become placeholders, the others follow the block before them.
func (n *normaliser) joinKeyed(st *shard.Store) {
	for from := 0; from < len(st.Engines); {
		keyed := n.isKeyed(st.Engines[from])
		to := from + 1
		for to < len(st.Engines) && n.isKeyed(st.Engines[to]) == keyed {
			to++
		}
		part := shard.Store{Tier: st.Tier, Group: st.Group, Engines: st.Engines[from:to]}
		if !keyed {
			part.Namespace = st.Namespace
			part.Parent, part.HasParent = st.Parent, st.HasParent
			if from > 0 {
				part.Parent, part.HasParent = st.Engines[from-1], true
			}
			part.Contents = st.Contents[from:to]
			part.Blocks = kv.Blocks{Tokens: st.Blocks.Tokens[from*n.blockSize : to*n.blockSize], BlockSize: n.blockSize}
		}
		n.stores = append(n.stores, part)
		from = to
	}
}
