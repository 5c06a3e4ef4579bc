// SPDX-License-Identifier: Apache-2.0

// Hop before: the arena, which takes and gives pieces.
// Hop after: numa, which takes memory from the system and gives it back.

package shard

// # Pages
//
// A page is consecutive pieces of one class. It stays in its class for ever; its
// memory goes back to the system when nothing of it is in use, and comes again.
//
// Pieces come from the lowest page that has one, so that higher ones run empty.
// What was empty for a whole period, but for a page for each eight others of the
// class, is given back, one page a call: a run of removals before a run of
// stores costs nothing, and no call takes long. A period is some frees.
//
// # Sizes
//
// Huge pages are worth 1.2 to 1.6 of the time of a dependent miss, and memory is
// truly the system's again only when a huge page goes as a whole: the parts of one
// that are unmapped wait for the kernel to want them, and until the last goes
// the rest lies in small pages. So a large class has pages of one huge page,
// aligned to it. But sixty classes with a huge page each would waste more than a
// small index takes. So a page is a sixteenth of what its class had when it was
// made, from 64 KiB up to a huge page: pages that share a huge page are those of
// classes below 32 MiB, and the memory that may ever lie in small pages is bounded
// by that.

// chunk sizes, in lines. A chunk is what the arena takes of its address space at a
// time.
const (
	minPageLines = 1 << 10 // 64 KiB
	pageShare    = 16      // of its class; see above
	systemLines  = 1 << 6  // 4 KiB, what the system gives and takes at least
	unitLines    = 1 << 10 // of the map from lines to pages
	spareLines   = 4 * minPageLines
	// testPageLines is a page small enough that all its pieces are often free.
	testPageLines = 1 << 7

	pageTable = 1 << 8  // pages in a table
	unitTable = 1 << 10 // units in a table

	idleShift  = 3   // idle pages that a class keeps: one for eight others or less
	reviewMin  = 256 // frees in a period, and a sixteenth of all pieces
	reviewPart = 16
)

// piecePage is one page.
type piecePage struct {
	version    uint64 // even; no run header in it had it or a later one
	line       uint32
	lines      uint32 // what pieces leave over, too
	free       uint32 // the first free piece's line, 0: none
	generation uint32 // no run header in it had it or a later one
	pieces     uint16 // that it has room for
	carved     uint16 // that were handed out since it has memory
	live       uint16
	class      uint8
	gone       bool   // its memory was given back
	after      uint32 // the page that begins where this one ends, when they may share a unit
}

// pieceClass is the pages of one class.
type pieceClass struct {
	live     uint32 // pieces in use
	free     uint32 // pieces that were in use and have memory
	uncarved uint32 // pieces that were never in use since their page has memory
	pages    uint32 // with memory

	open  pageSet // pages with free pieces
	fresh pageSet // pages with uncarved ones
	idle  pageSet // pages of which no piece is in use, but one was
	gone  pageSet // pages whose memory was given back

	leastIdle int // fewest idle pages in this period
	surplus   int // idle pages to be given back
}

// pages is where the arena's pieces lie.
type pages struct {
	classes [numPieces]pieceClass
	table   []*[pageTable]piecePage
	count   uint32 // pages; the first is number 1
	// units has for each unit of the address space the first page that has lines
	// there. The others are found by piecePage.after.
	units []*[unitTable]uint32
	// gaps has for each chunk how many lines of it were given back.
	gaps []uint32

	next      uint32 // first line of the address space that is in no chunk
	usable    uint32 // lines that may be touched
	chunk     uint32 // first unused line of the chunk that small pages share
	chunkEnd  uint32
	before    uint32 // the page that ends at chunk; 0: none
	goneLines uint64 // of pages whose memory was given back

	gives   uint64 // pieces given back, ever
	review  uint64 // gives at which the period ends
	surplus int    // pages to be given back, in all classes
	turn    int    // class to begin with
	locked  bool   // the system takes nothing back

	// testEager, where a test sets it, makes pages small and gives them back as soon
	// as they are idle.
	testEager bool
}

func (a *arena) page(id uint32) *piecePage { return &a.table[id/pageTable][id%pageTable] }

// pageOf returns the page that line lies in.
func (a *arena) pageOf(line uint32) uint32 {
	unit := line / unitLines
	id := a.units[unit/unitTable][unit%unitTable]
	for {
		p := a.page(id)
		if line-p.line < uint32(p.pieces)*pieceLines[p.class] {
			return id
		}
		id = p.after
	}
}

// wants returns how many lines of memory n more pieces of class take.
func (a *arena) wants(class, n int) uint64 {
	return uint64(max(n-int(a.classes[class].free), 0)) * uint64(pieceLines[class])
}

// prepare makes sure that n pieces of class can be taken without a refusal of the
// system.
func (a *arena) prepare(class, n int) bool {
	k := &a.classes[class]
	for uint64(k.free)+uint64(k.uncarved) < uint64(n) {
		if !a.nextPage(class) {
			return false
		}
	}
	return true
}

// spare makes sure of memory for pieces of lines in all, of any class.
func (a *arena) spare(lines uint64) bool {
	lines += spareLines
	left := uint64(a.chunkEnd-a.chunk) + uint64(a.usable-min(a.usable, a.next))
	if left < chunkLines/2 && a.next > chunkLines {
		a.soon(uint64(a.next) + chunkLines)
	}
	return left >= lines || a.ahead(lines/chunkLines+1)
}

// nextPage gives class a page with uncarved pieces: the lowest one whose memory was
// given back, or a new one.
func (a *arena) nextPage(class int) bool {
	k := &a.classes[class]
	if k.gone.n == 0 {
		return a.newPage(class)
	}
	id := k.gone.lowest()
	p := a.page(id)
	if !a.refill(p.line, p.lines) {
		return false
	}
	p.gone = false
	k.gone.del(id)
	k.fresh.add(id)
	k.pages++
	k.uncarved += uint32(p.pieces)
	a.goneLines -= uint64(p.lines)
	a.gap(p.line, p.lines, false)
	return true
}

// newPage makes a page for class.
func (a *arena) newPage(class int) bool {
	k := &a.classes[class]
	size := pieceLines[class]
	want := (uint64(k.live) + uint64(k.free)) * uint64(size) / pageShare
	var line, lines uint32
	if want >= chunkLines || size >= chunkLines {
		line, lines = a.newChunks(size/chunkLines + 1)
	}
	if lines == 0 && a.chunkEnd-a.chunk < size {
		first, n := a.newChunks(size/chunkLines + 1)
		if n == 0 {
			return false
		}
		a.chunk, a.chunkEnd, a.before = first, first+n, 0
	}
	shared := lines == 0
	if shared {
		least := uint32(minPageLines)
		if a.testEager {
			least = testPageLines
		}
		line = a.chunk
		lines = pageLines(max(uint32(want), least), size, a.chunkEnd-line)
		a.chunk += lines
	}
	a.count++
	id := a.count
	if int(id/pageTable) >= len(a.table) {
		a.table = append(a.table, new([pageTable]piecePage))
	}
	p := a.page(id)
	*p = piecePage{line: line, lines: lines, class: uint8(class), pieces: uint16(lines / size), version: 2, generation: 1}
	if shared {
		if a.before != 0 {
			a.page(a.before).after = id
		}
		a.before = id
	}
	k.fresh.add(id)
	k.pages++
	k.uncarved += uint32(p.pieces)
	for unit := line / unitLines; unit*unitLines < line+lines; unit++ {
		for int(unit/unitTable) >= len(a.units) {
			a.units = append(a.units, new([unitTable]uint32))
		}
		if first := &a.units[unit/unitTable][unit%unitTable]; *first == 0 {
			*first = id
		}
	}
	return true
}

// pageLines returns how many lines a page of about want lines for pieces of size
// takes: whole pages of the system, of which pieces leave as little over as
// possible, and at most left, into which one piece fits.
func pageLines(want, size, left uint32) uint32 {
	most := min(want+want/2+size, left)
	best := left
	for lines := (max(want, size) + systemLines - 1) &^ (systemLines - 1); lines <= most; lines += systemLines {
		if best == left || uint64(lines%size)*uint64(best) < uint64(best%size)*uint64(lines) {
			best = lines
		}
	}
	return best
}

// newChunks takes n chunks of the address space and makes them usable. It returns
// their lines, none when the system refuses.
func (a *arena) newChunks(n uint32) (first, lines uint32) {
	if uint64(a.next)+uint64(n)*chunkLines > uint64(a.hard) {
		return 0, 0
	}
	end := a.next + n*chunkLines
	if end > a.usable {
		usable, err := a.use(uint64(end))
		if err != nil {
			return 0, 0
		}
		a.usable = usable
	}
	if first = a.next; first == 0 {
		first = systemLines // line 0 means none
	}
	a.next = end
	return first, end - first
}

// trim ends the period when it is time, and gives one page back that is to go.
//
// Cost: now and then a look at each class; the system's for a page, at most a
// huge one.
func (a *arena) trim() {
	if a.gives >= a.review || a.testEager {
		a.endPeriod()
	}
	for ; a.surplus > 0; a.turn = (a.turn + 1) % numPieces {
		k := &a.classes[a.turn]
		if k.surplus == 0 {
			continue
		}
		k.surplus--
		a.surplus--
		if id := k.idle.highest(); id != 0 {
			a.discard(a.turn, id)
			return
		}
	}
}

// endPeriod decides what is to be given back.
func (a *arena) endPeriod() {
	pieces := uint64(0)
	a.surplus = 0
	for class := range a.classes {
		k := &a.classes[class]
		pieces += uint64(k.live) + uint64(k.free)
		keep := (int(k.pages) - k.idle.n + 1<<idleShift - 1) >> idleShift
		k.surplus = max(k.leastIdle-keep, 0)
		if a.testEager {
			k.surplus = k.idle.n
		}
		k.leastIdle = k.idle.n
		a.surplus += k.surplus
	}
	a.review = a.gives + reviewMin + pieces/reviewPart
	if a.locked {
		a.surplus = 0
	}
}

// discard gives an idle page's memory back. Readers that are late find zeros there:
// see the reclamation part of the essay on [chainCore].
func (a *arena) discard(class int, id uint32) {
	k, p := &a.classes[class], a.page(id)
	size := pieceLines[class]
	if !a.forget(p.line, p.lines) {
		a.locked, a.surplus = true, 0
		return
	}
	k.idle.del(id)
	k.open.del(id)
	k.leastIdle = min(k.leastIdle, k.idle.n)
	if p.carved < p.pieces {
		k.fresh.del(id)
		k.uncarved -= uint32(p.pieces - p.carved)
	}
	k.free -= uint32(p.carved)
	k.pages--
	a.touched -= uint64(p.carved) * uint64(size)
	a.free -= uint64(p.carved) * uint64(size)
	a.goneLines += uint64(p.lines)
	p.carved, p.free, p.gone = 0, 0, true
	k.gone.add(id)
	a.gap(p.line, p.lines, true)
}

// reclaim gives idle pages back at once, of any class but two whose free pieces are
// about to be used, until there is room for so many lines. It is for an arena at its
// bound: else trim waits to see whether they are wanted again.
func (a *arena) reclaim(lines uint64, but, and int) {
	for class := 0; class < numPieces && !a.tight && !a.locked; {
		if a.room() >= lines {
			return
		}
		k := &a.classes[class]
		id := k.idle.highest()
		if id == 0 || class == but || class == and {
			class++
			continue
		}
		if k.surplus > 0 {
			k.surplus--
			a.surplus--
		}
		a.discard(class, id)
	}
}

// gap counts what was given back of each chunk. One that has all its memory again
// may be one huge page again.
func (a *arena) gap(line, lines uint32, gone bool) {
	for end := line + lines; line < end; {
		chunk := line / chunkLines
		n := min(end, (chunk+1)*chunkLines) - line
		line += n
		for int(chunk) >= len(a.gaps) {
			a.gaps = append(a.gaps, 0)
		}
		if gone {
			a.gaps[chunk] += n
			continue
		}
		if a.gaps[chunk] -= n; a.gaps[chunk] == 0 {
			a.whole(chunk * chunkLines)
		}
	}
}

// resident is how many lines of memory the arena takes. Past its first chunk memory
// is taken before it is touched.
func (a *arena) resident() uint64 {
	if n := a.taken(); n > chunkLines {
		return n - a.goneLines
	}
	return a.touched + systemLines
}
