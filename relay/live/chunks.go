// SPDX-License-Identifier: Apache-2.0

// Before: Cut. After: subscribers' streams, which frame the chunks.

package live

// The bounds of one chunk. Source: the peer's.
const (
	chunkBlocks = 2048
	chunkBytes  = 1 << 20
)

// Chunks is a snapshot laid out: at most 2,048 blocks and 1 MiB each (the peer's
// rule doubles both while there are more chunks than numbers), parents first, the
// first chunk beginning with a clear. There is always at least one.
//
// First come all blocks, ghosts under engine hashes that nobody uses; then the
// copies beyond each block's first; then the ghosts are taken away again. Stores
// that wait for their parents are no part of it: a subscriber is told of them when
// they take effect.
//
// Concurrency: any goroutine, several at once, until the cut is closed.
type Chunks struct {
	cut    *Cut
	peer   bool
	class  []uint32 // by attribute: equal ones may stand in one event
	items  []item
	copies int // items[copies:] are copies beyond the first
	gone   int // items[gone:] are ghosts to take away
	starts []int
}

// item is one block of one event.
type item struct {
	rec  uint32
	attr uint32
	// size is the most bytes that it takes in its chunk, and whether it goes on with
	// the event of the item before it.
	size uint32
}

const joined uint32 = 1 << 31

// Own returns the content as chunks of the relay's own contract: each the field
// events of kindex.relay.v1.SnapshotChunk.
func (c *Cut) Own() *Chunks {
	ch := &Chunks{cut: c, class: c.ownClasses()}
	ch.fill()
	ch.layOut(chunkBlocks, chunkBytes)
	return ch
}

// Peer returns the content as chunks of the peer's contract: each the field events
// of smg.grpc.common.KvEventBatch. There are at most through+1 of them: chunks
// carry the numbers that end with through. It returns nil when tokens are hashed.
func (c *Cut) Peer(through uint64) *Chunks {
	if c.hashed {
		return nil
	}
	ch := &Chunks{cut: c, peer: true, class: make([]uint32, len(c.attrs))}
	for i := range ch.class {
		ch.class[i] = uint32(i)
	}
	ch.fill()
	for blocks, bytes := chunkBlocks, chunkBytes; ; blocks, bytes = 2*blocks, 2*bytes {
		ch.layOut(blocks, bytes)
		if uint64(ch.Len()-1) <= through {
			return ch
		}
	}
}

// ownClasses numbers attributes by what the own contract shows of them.
func (c *Cut) ownClasses() []uint32 {
	type shown struct {
		place     place
		seed      uint64
		blockSize int
	}
	seen := map[shown]uint32{}
	out := make([]uint32, len(c.attrs))
	for i, a := range c.attrs {
		if a == nil {
			continue
		}
		k := shown{a.place, a.seed, a.blockSize}
		n, ok := seen[k]
		if !ok {
			n = uint32(len(seen))
			seen[k] = n
		}
		out[i] = n
	}
	return out
}

// fill lists the items.
func (ch *Chunks) fill() {
	c := ch.cut
	order := c.order()
	ch.items = make([]item, 0, c.copies+2*c.ghosts)
	var ghosts []item
	var more []copyList
	var before item
	for _, i := range order {
		r := c.recs.at(i)
		it := item{rec: i, attr: r.attr, size: ch.blockBound(r.size, r.attr)}
		if r.parent == before.rec && ch.alike(it, before) {
			it.size |= joined
		}
		before = it
		ch.items = append(ch.items, it)
		if r.size&ghost != 0 {
			ghosts = append(ghosts, it)
		}
		if r.more != 0 {
			more = append(more, copyList{rec: i, node: r.more, left: c.nodes.at(r.more).count})
		}
	}
	ch.copies = len(ch.items)
	ch.fillCopies(more)
	ch.gone = len(ch.items)
	for i, it := range ghosts {
		it.size = goneBound
		if i > 0 && ch.alike(it, ghosts[i-1]) {
			it.size |= joined
		}
		ch.items = append(ch.items, it)
	}
}

// fillCopies lists the copies beyond each block's first: one of each block a pass,
// so that what is chained stays so.
func (ch *Chunks) fillCopies(more []copyList) {
	c := ch.cut
	for len(more) > 0 {
		left := more[:0]
		var before item
		for _, m := range more {
			nd, r := c.nodes.at(m.node), c.recs.at(m.rec)
			it := item{rec: m.rec, attr: nd.attr, size: ch.blockBound(r.size, nd.attr)}
			if before.rec != 0 && ch.alike(it, before) && (!ch.peer || r.parent == before.rec) {
				it.size |= joined
			}
			before = it
			ch.items = append(ch.items, it)
			if m.left--; m.left == 0 {
				if m.node = nd.next; m.node != 0 {
					m.left = c.nodes.at(m.node).count
				}
			}
			if m.node != 0 {
				left = append(left, m)
			}
		}
		more = left
	}
}

// alike reports whether a and b may stand in one event.
func (ch *Chunks) alike(a, b item) bool {
	return b.rec != 0 && (a.attr == b.attr || ch.class[a.attr] == ch.class[b.attr])
}

// copyList is how far the copies of one block are listed.
type copyList struct{ rec, node, left uint32 }

// layOut finds where chunks begin.
func (ch *Chunks) layOut(blocks, bytes int) {
	ch.starts = append(ch.starts[:0], 0)
	n, size := 0, eventBound
	for i, it := range ch.items {
		block := int(it.size &^ joined)
		add := block
		if it.size&joined == 0 {
			add += ch.headBound(it.attr)
		}
		if n+1 > blocks || size+add > bytes && n > 0 {
			ch.starts = append(ch.starts, i)
			n, size, add = 0, eventBound, block+ch.headBound(it.attr)
		}
		n++
		size += add
	}
	ch.starts = append(ch.starts, len(ch.items))
}

const (
	// eventBound is the most bytes that an event takes without its blocks and
	// attributes.
	eventBound = 64
	// goneBound is the most that a hash taken away takes.
	goneBound = 10
)

// headBound returns the most bytes that an event takes besides its blocks.
func (ch *Chunks) headBound(attr uint32) int {
	if !ch.peer {
		return eventBound
	}
	return eventBound + len(ch.cut.attrs[attr].stored)
}

// blockBound returns the most bytes that a block takes.
func (ch *Chunks) blockBound(size, attr uint32) uint32 {
	if !ch.peer {
		return 16
	}
	return size&sizeMask + uint32(len(ch.cut.attrs[attr].block)) + 20
}

// Len returns the number of chunks.
func (ch *Chunks) Len() int { return len(ch.starts) - 1 }

// Append appends chunk i to dst.
//
// Cost: one allocation of 16 bytes a block besides dst's.
func (ch *Chunks) Append(dst []byte, i int) []byte {
	from, to := ch.starts[i], ch.starts[i+1]
	if i == 0 {
		if ch.peer {
			dst = appendPeerCleared(dst, 0, nil)
		} else {
			dst = appendOwnCleared(dst, tagChunkEvents)
		}
	}
	var g gathered
	for from < to {
		end := from + 1
		for end < to && ch.items[end].size&joined != 0 {
			end++
		}
		if ch.peer {
			dst = ch.appendPeer(dst, from, end, &g)
		} else {
			dst = ch.appendOwn(dst, from, end, &g)
		}
		from = end
	}
	return dst
}

// gathered is the memory in which one event is gathered.
type gathered struct {
	engines  []uint64
	contents []uint64
	blobs    []blobRef
}

// gather fills g with the blocks of items [from, to).
func (ch *Chunks) gather(from, to int, g *gathered) {
	if cap(g.engines) == 0 {
		g.engines = make([]uint64, 0, chunkBlocks)
	}
	g.engines, g.contents, g.blobs = g.engines[:0], g.contents[:0], g.blobs[:0]
	for _, it := range ch.items[from:to] {
		r := ch.cut.recs.at(it.rec)
		e := r.engine
		if r.size&ghost != 0 {
			e = ch.cut.engineOf(it.rec)
		}
		g.engines = append(g.engines, e)
		if ch.peer {
			g.blobs = append(g.blobs, blobRef{r.blob, r.size})
		} else {
			g.contents = append(g.contents, r.content)
		}
	}
}

func (ch *Chunks) appendOwn(dst []byte, from, to int, g *gathered) []byte {
	ch.gather(from, to, g)
	a := ch.cut.attrs[ch.items[from].attr]
	switch {
	case from >= ch.gone:
		return appendOwnRemoved(dst, tagChunkEvents, a.place, g.engines)
	case from >= ch.copies:
		return appendOwnStored(dst, tagChunkEvents, &ownRun{place: a.place, engines: g.engines})
	}
	run := ownRun{place: a.place, seed: a.seed, blockSize: a.blockSize, engines: g.engines, contents: g.contents}
	run.hasParent, run.parent = ch.parent(from)
	return appendOwnStored(dst, tagChunkEvents, &run)
}

func (ch *Chunks) appendPeer(dst []byte, from, to int, g *gathered) []byte {
	ch.gather(from, to, g)
	a := ch.cut.attrs[ch.items[from].attr]
	if from >= ch.gone {
		return appendPeerRemoved(dst, 0, g.engines, appendRemovedTail(nil, a.place, &a.peer))
	}
	run := peerRun{attr: a, engines: g.engines, blobs: g.blobs, chunks: ch.cut.blobs}
	run.hasParent, run.parent = ch.parent(from)
	return appendPeerStored(dst, &run)
}

// parent returns the engine hash of the parent of item i's block.
func (ch *Chunks) parent(i int) (has bool, e uint64) {
	p := ch.cut.recs.at(ch.items[i].rec).parent
	if p == 0 {
		return false, 0
	}
	return true, ch.cut.engineOf(p)
}
