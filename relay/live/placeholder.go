// SPDX-License-Identifier: Apache-2.0

// Before: State.Apply (stores without tokens). After: Effects.

package live

import (
	"slices"

	"kindex/internal/kv"
)

// touched is a block that a placeholder names, and what its copy is.
type touched struct{ rec, attr uint32 }

// placeholders adds a copy of each of t's blocks, or waits with one that waits.
func (s *State) placeholders(t *told) {
	s.touched = s.touched[:0]
	s.fx.copies(t.attr.place)
	for _, e := range t.engines {
		r := s.held.find(&s.recs, uint64(e))
		switch {
		case r != 0:
			a := t.attr
			known := s.attrs.list[s.recs.at(r).attr]
			a.seed, a.lora, a.salt, a.blockSize = known.seed, known.lora, known.salt, known.blockSize
			if a.text() > maxText {
				s.stats.Refused++
				continue
			}
			num := s.attrs.intern(&a)
			if s.addCopy(r, num) {
				s.fx.engine(uint64(e))
				if !s.opts.HashTokens {
					s.attrs.ref(num)
					s.touched = append(s.touched, touched{r, num})
				}
			}
			s.attrs.unref(num)
		case s.room.holdsBlock(uint64(e)):
			one := *t
			one.engines = []kv.EngineHash{e}
			s.wait(newOrphan(&one, uint64(e)))
		default:
			s.stats.StoreUnknown++
		}
	}
	s.fx.end()
	s.tellCopies()
	for _, c := range s.touched {
		s.attrs.unref(c.attr)
	}
}

// maxBracket bounds the ghosts that are named to tell copies, in one batch. Chosen:
// a chain of 1,024 blocks is a long prompt, and its cost to the history a few tens
// of kB.
const maxBracket = 1024

// tellCopies tells the peer's form of s.touched, which knows no placeholders: the
// blocks with their tokens, as runs.
func (s *State) tellCopies() {
	run := s.touched
	for i := 1; i <= len(run); i++ {
		if i < len(run) && run[i].attr == run[i-1].attr && s.recs.at(run[i].rec).parent == run[i-1].rec {
			continue
		}
		s.tellRun(run[:i])
		run, i = run[i:], 0
	}
}

// tellRun tells one run, each block the child of the one before it. Ghosts above it
// are named for that time, so that it lands where it is.
func (s *State) tellRun(run []touched) {
	fx, a := s.fx, s.attrs.list[run[0].attr]
	var ghosts []uint32
	top := s.recs.at(run[0].rec).parent
	for top != 0 && s.recs.at(top).size&ghost != 0 {
		if fx.bracketed+len(ghosts) == maxBracket {
			s.stats.PeerUntold += uint64(len(run))
			return
		}
		ghosts = append(ghosts, top)
		top = s.recs.at(top).parent
	}
	fx.bracketed += len(ghosts)
	var parent uint64
	if top != 0 {
		parent = s.recs.at(top).engine
	}
	fx.store(a, fxPeer, top != 0, parent)
	var named []uint64
	for _, g := range slices.Backward(ghosts) {
		e := s.freshEngine()
		named = append(named, e)
		fx.named(s, g, e)
	}
	for _, c := range run {
		fx.block(s, c.rec)
	}
	fx.end()
	fx.removeLike(a, fxPeer, named)
}
