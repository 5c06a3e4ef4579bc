// SPDX-License-Identifier: Apache-2.0

// Hop before: an index, whose writer gives its place piece by piece.
// Hop after: dumps, digests, state files.

package shard

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"github.com/zeebo/xxh3"

	"kindex/internal/kv"
)

// Content is a copy of what one holder holds: positions, parents first, holes with
// held positions below included, numbered from 0 in that order.
//
// Shape: len(Hashes) == len(Ends); the copies of position i end at Ends[i] in Copies
// and begin where those of the position before end; a hole has none.
type Content struct {
	Stretches []Stretch // ascending by First; the first begins at 0
	Hashes    []kv.ContentHash
	Ends      []uint32
	Copies    []Copy
	Orphans   []Orphan // in the order they came
}

// Stretch is a part of a content in which each position lies below the one before.
type Stretch struct {
	First     int // position
	Parent    int // position above First; -1: First is a root
	Namespace kv.Namespace
}

// Orphan is a store that waits for its parent, or a placeholder that waits for its
// block, without the tokens that its content hashes were made of.
type Orphan struct {
	Store Store // Blocks is empty
	Out   []bool
	// Bare says that there were tokens: under a parent in another namespace than the
	// store's own the hashes would be others, which nobody can make any more.
	Bare bool
}

// CopiesOf returns the copies of position i.
func (c *Content) CopiesOf(i int) []Copy {
	from := uint32(0)
	if i > 0 {
		from = c.Ends[i-1]
	}
	return c.Copies[from:c.Ends[i]]
}

// End returns one past the last position of stretch i.
func (c *Content) End(i int) int {
	if i+1 < len(c.Stretches) {
		return c.Stretches[i+1].First
	}
	return len(c.Hashes)
}

// Add adds a position below parent (-1: a root of ns), with copies of its own, and
// returns its number.
func (c *Content) Add(parent int, ns kv.Namespace, content kv.ContentHash, copies ...Copy) int {
	n := len(c.Hashes)
	if parent != n-1 || n == 0 {
		c.Stretches = append(c.Stretches, Stretch{n, parent, ns})
	}
	c.Hashes = append(c.Hashes, content)
	c.Copies = append(c.Copies, copies...)
	c.Ends = append(c.Ends, uint32(len(c.Copies)))
	return n
}

// Digest is [Digest] of the copied holder.
func (c *Content) Digest() uint64 {
	paths := make([]uint64, len(c.Hashes)) // hash of the path to each position
	var sum, count uint64
	var b [17]byte
	from := uint32(0)
	for i, st := range c.Stretches {
		above := uint64(st.Namespace)
		if st.Parent >= 0 {
			above = paths[st.Parent]
		}
		for at := st.First; at < c.End(i); at++ {
			binary.LittleEndian.PutUint64(b[0:], above)
			binary.LittleEndian.PutUint64(b[8:], uint64(c.Hashes[at]))
			above = xxh3.HashSeed(b[:16], kv.HashSeed)
			paths[at] = above
			copies := c.Copies[from:c.Ends[at]]
			from = c.Ends[at]
			for i, cp := range copies {
				if told(copies[:i], cp) {
					continue
				}
				binary.LittleEndian.PutUint64(b[0:], above)
				binary.LittleEndian.PutUint64(b[8:], uint64(cp.Engine))
				b[16] = byte(cp.Tier)
				sum += xxh3.HashSeed(b[:], kv.HashSeed)
				count++
			}
		}
	}
	binary.LittleEndian.PutUint64(b[0:], sum)
	binary.LittleEndian.PutUint64(b[8:], count)
	return xxh3.HashSeed(b[:16], kv.HashSeed)
}

// ContentReader copies one holder's content, a piece a call, so that whoever has the
// writer's place can give it to others in between. Meanwhile nobody stores, removes
// or clears for that holder, nor drops it; everything may be done to others.
type ContentReader struct {
	index  Index // read at once; nil: by pieces
	id     Holder
	shard  *Shard
	holder *holder

	pieces  *chainPieces   // nil: the core is walked at once
	numbers map[uint64]int // positions by ID; of a run only the first, the others follow
	bits    int            // of an ID that number the positions of a run
	last    uint64         // ID of the last position

	orphans []*orphan // still to be copied
	begun   bool
	units   int // of a piece
}

// ReadContent begins to copy what h holds. It makes no copy itself.
//
// Concurrency: a writer's call of h's shard, as [ContentReader.Next] is.
func ReadContent(idx Index, h Holder) (*ContentReader, error) {
	switch x := idx.(type) {
	case *Sharded:
		return ReadContent(x.of(h), h)
	case *Shard:
		hd := x.holders[h]
		if hd == nil {
			return nil, ErrUnknownHolder
		}
		r := &ContentReader{id: h, shard: x, holder: hd, numbers: map[uint64]int{}, orphans: hd.room.order, units: pieceUnits}
		if x.chain != nil && hd.any() != 0 {
			r.pieces, r.bits = x.chain.piecesOf(hd.any()), offsetBits
		}
		return r, nil
	}
	if _, err := idx.HolderStats(h); err != nil {
		return nil, err
	}
	return &ContentReader{index: idx, id: h, numbers: map[uint64]int{}}, nil
}

// pieceUnits is how much one piece costs at most, in units of about 30 ns: one for a
// position or a look into a core, a few for a run. Chosen: some 100 us.
const pieceUnits = 3_000

// Prepare may be called once before the first Next, without the writer's place: it
// takes work from that which looks at nothing but h's own tables.
func (r *ContentReader) Prepare() {
	if r.pieces != nil {
		r.pieces.prepare()
	}
}

// Next adds the next piece to c and reports whether there is more.
//
// Cost: one piece, some 100 us, for the chain index; for the other kinds, which know
// no pieces, all of the content.
func (r *ContentReader) Next(c *Content) (more bool) {
	if r.index != nil {
		r.readIndex(c)
		return false
	}
	if !r.begun {
		r.begun = true
		if r.pieces == nil {
			if all := r.holder.any(); all != 0 {
				r.shard.core.walk(all, func(n *coreNode) bool { r.add(c, n); return true })
			}
			return len(r.orphans) > 0
		}
	}
	if r.pieces != nil {
		if r.pieces.next(r.units, func(n *coreNode) int { return r.add(c, n) }) {
			return true
		}
		r.pieces = nil
		return len(r.orphans) > 0
	}
	return r.nextOrphans(c)
}

// add adds one position to c and returns what it cost in units.
func (r *ContentReader) add(c *Content, n *coreNode) (units int) {
	number, mask := len(c.Hashes), uint64(1)<<r.bits-1
	parent := -1
	switch above := uint64(n.parent); {
	case above == 0:
	case above == r.last && number > 0:
		parent = number - 1
	default:
		parent = r.numbers[above&^mask] + int(above&mask)
	}
	if r.last = uint64(n.id); r.last&mask == 0 {
		r.numbers[r.last] = number
	}
	if parent != number-1 || number == 0 {
		c.Stretches = append(c.Stretches, Stretch{number, parent, n.ns})
	}
	c.Hashes = append(c.Hashes, n.content)
	c.Copies = r.shard.appendCopies(c.Copies, r.holder, n)
	c.Ends = append(c.Ends, uint32(len(c.Copies)))
	units = 1
	if raws := len(r.holder.raws); raws > 1 {
		units += 3 * raws * len(n.engines)
	}
	return units
}

// nextOrphans adds some of those that wait.
func (r *ContentReader) nextOrphans(c *Content) (more bool) {
	for units := 0; len(r.orphans) > 0 && units < r.units; {
		o := r.orphans[0]
		if r.orphans = r.orphans[1:]; !o.gone {
			c.Orphans = append(c.Orphans, makeOrphan(&o.store, o.out, o.bare))
		}
		units += 8 + len(o.store.Engines)/4
	}
	return len(r.orphans) > 0
}

func makeOrphan(st *Store, out []bool, bare bool) Orphan {
	without := *st
	without.Blocks = kv.Blocks{}
	o := Orphan{Store: without.clone(), Bare: bare || st.Blocks.Len() > 0}
	if slices.Contains(out, true) {
		o.Out = slices.Clone(out)
	}
	return o
}

// readIndex copies all at once.
func (r *ContentReader) readIndex(c *Content) {
	_ = r.index.Walk(r.id, func(n *Node) bool { // its holder is known
		parent := -1
		if n.Parent != 0 {
			parent = r.numbers[n.Parent]
		}
		r.numbers[n.ID] = c.Add(parent, n.Namespace, n.Content, n.Copies...)
		return true
	})
	if ref, ok := r.index.(*Reference); ok {
		c.Orphans = append(c.Orphans, ref.orphans(r.id)...)
	}
}

// orphans returns what waits for h's parents.
func (r *Reference) orphans(h Holder) (all []Orphan) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for _, o := range r.holders[h].room {
		all = append(all, makeOrphan(&o.store, o.out, o.bare))
	}
	return all
}

// waitsFor is the engine hash that o waits for.
func (o *Orphan) waitsFor() kv.EngineHash {
	if o.Store.placeholder() {
		return o.Store.Engines[0]
	}
	return o.Store.Parent
}

// Valid refuses what can wait for nothing.
func (o *Orphan) Valid() error {
	if err := o.Store.valid(); err != nil {
		return err
	}
	if placeholder := o.Store.placeholder(); placeholder && len(o.Store.Engines) != 1 || !placeholder && !o.Store.HasParent {
		return fmt.Errorf("shard: an orphan of %d blocks that waits for nothing", len(o.Store.Engines))
	}
	if o.Out != nil && (len(o.Out) != len(o.Store.Engines) || !slices.Contains(o.Out, false)) {
		return fmt.Errorf("shard: an orphan of %d blocks with marks for %d", len(o.Store.Engines), len(o.Out))
	}
	return nil
}

// AddOrphan puts o, as a [ContentReader] gave it, into h's waiting room, behind those
// that wait already. h holds nothing that o waits for.
//
// Errors: ErrUnknownHolder; an orphan that cannot be.
// Concurrency: a writer's call of h's shard. It keeps nothing of o.
func AddOrphan(idx Index, h Holder, o *Orphan) error {
	if err := o.Valid(); err != nil {
		return err
	}
	switch x := idx.(type) {
	case *Sharded:
		return AddOrphan(x.of(h), h, o)
	case *Shard:
		hd := x.holders[h]
		if hd == nil {
			return ErrUnknownHolder
		}
		hd.wait(&x.opts, &orphan{waitsFor: o.waitsFor(), store: o.Store.clone(), out: slices.Clone(o.Out), bytes: o.Store.bytes(), bare: o.Bare})
		return nil
	case *Reference:
		return x.addOrphan(h, o)
	}
	return fmt.Errorf("shard: %T takes no orphans", idx)
}

func (r *Reference) addOrphan(h Holder, o *Orphan) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	rh := r.holders[h]
	if rh == nil {
		return ErrUnknownHolder
	}
	out := make([]bool, len(o.Store.Engines))
	copy(out, o.Out)
	rh.wait(r.opts, &refOrphan{waitsFor: o.waitsFor(), store: o.Store.clone(), out: out, bytes: o.Store.bytes(), bare: o.Bare})
	return nil
}

// AddCopies counts n more copies of c's block, which h holds in that tier and group.
//
// Errors: ErrUnknownHolder; a block that is not held there.
// Concurrency: a writer's call of h's shard.
func AddCopies(idx Index, h Holder, c Copy, n uint32) error {
	switch x := idx.(type) {
	case *Sharded:
		return AddCopies(x.of(h), h, c, n)
	case *Shard:
		hd := x.holders[h]
		if hd == nil {
			return ErrUnknownHolder
		}
		for i := range hd.raws {
			r := &hd.raws[i]
			if r.tier != c.Tier || r.group != c.Group || x.core.find(r.slot, c.Engine) == 0 {
				continue
			}
			if n = min(n, math.MaxUint32-1-r.extra[c.Engine]); n > 0 {
				if r.extra == nil {
					r.extra = map[kv.EngineHash]uint32{}
				}
				r.extra[c.Engine] += n
				hd.extras += uint64(n)
			}
			return nil
		}
	case *Reference:
		x.mu.Lock()
		defer x.mu.Unlock()
		rh := x.holders[h]
		if rh == nil {
			return ErrUnknownHolder
		}
		if b := rh.blocks[c.Engine]; b != nil && b.copies[refPlace{c.Tier, c.Group}] > 0 {
			b.copies[refPlace{c.Tier, c.Group}] += n
			return nil
		}
	}
	return fmt.Errorf("shard: copies of block %d, which is not held there", c.Engine)
}
