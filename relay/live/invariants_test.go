// SPDX-License-Identifier: Apache-2.0

package live

import "testing"

// checkInvariants walks everything that s keeps.
func checkInvariants(t testing.TB, s *State) {
	t.Helper()
	children := map[uint32]uint32{}
	refs := map[uint32]uint32{}
	var nHeld, nGhosts, nCopies uint64
	var cells, used uint64
	for i := uint32(1); i < s.recs.next; i++ {
		r := s.recs.at(i)
		switch {
		case r.size&held != 0 && r.size&ghost == 0:
			nHeld++
			nCopies++
			if got := s.held.find(&s.recs, r.engine); got != i {
				t.Fatalf("engine hash %x is found in record %d, want %d", r.engine, got, i)
			}
		case r.size&ghost != 0 && r.size&held == 0:
			nGhosts++
			if r.children == 0 || r.more != 0 {
				t.Fatalf("ghost %d has %d children and copies %d", i, r.children, r.more)
			}
			s.ghost.slot(r.position, i) // panics when it is not there
		case r.size&(held|ghost) == 0:
			continue
		default:
			t.Fatalf("record %d is held and a ghost", i)
		}
		used++
		refs[r.attr]++
		for n := r.more; n != 0; n = s.nodes.at(n).next {
			refs[s.nodes.at(n).attr]++
			nCopies += uint64(s.nodes.at(n).count)
		}
		if r.parent != 0 {
			if s.recs.at(r.parent).size&(held|ghost) == 0 {
				t.Fatalf("record %d has a free one for a parent", i)
			}
			children[r.parent]++
		}
		if n := int(r.size & sizeMask); n > 0 {
			class, _ := classOf(n)
			cells += uint64(cellSize(class))
		}
	}
	for i := uint32(1); i < s.recs.next; i++ {
		if r := s.recs.at(i); r.children != children[i] {
			t.Fatalf("record %d counts %d children, want %d", i, r.children, children[i])
		}
	}
	for i, n := range s.attrs.refs {
		if n != refs[uint32(i)] || (n == 0) != (s.attrs.list[i] == nil) {
			t.Fatalf("attributes %d have %d references, want %d", i, n, refs[uint32(i)])
		}
	}
	for _, w := range s.blobs.waiting[s.blobs.head:] {
		cells += uint64(cellSize(int(w.class)))
	}
	st := s.Stats()
	if st.Blocks != nHeld || st.Ghosts != nGhosts || st.Copies != nCopies || uint64(s.recs.used) != used || s.blobs.used != cells {
		t.Fatalf("counted %d blocks, %d ghosts, %d copies, %d records, %d bytes; there are %d, %d, %d, %d, %d",
			st.Blocks, st.Ghosts, st.Copies, s.recs.used, s.blobs.used, nHeld, nGhosts, nCopies, used, cells)
	}
	tables := 0
	for i := range s.held.parts {
		tables += s.held.parts[i].used + s.ghost.parts[i].used
	}
	if uint64(tables) != nHeld+nGhosts {
		t.Fatalf("%d records are in tables, want %d", tables, nHeld+nGhosts)
	}
}
