// SPDX-License-Identifier: Apache-2.0

package feed

// Position is where a stream stands between two batches: together with the content
// that its sink holds then, all that another feed needs to go on exactly.
type Position struct {
	Epoch   uint64 // the publisher's life, from 1
	HasSeq  bool   // a batch was admitted in this epoch, or told lost
	LastSeq uint64 // number of the last one
	// LastSum is that batch's [Batch.Sum]. 0: its bytes are not known (it was lost),
	// so that nothing can show that a publisher is still the same.
	LastSum uint64

	Faults Fault  // why the content is not exact, all of them
	Why    string // the last of them
}

// Position returns where f stands. What is held behind a gap is not in it: it comes
// again from the replay socket.
func (f *Feed) Position() Position {
	return Position{
		Epoch: f.epoch, HasSeq: f.has, LastSeq: f.last, LastSum: f.history.get(f.last),
		Faults: f.faults.set, Why: f.faults.reason,
	}
}

// RestoreFaults returns the faults as they were. What this program does not know is
// left out.
func (p *Position) RestoreFaults() Faults { return Faults{p.Faults & allFaults, p.Why} }

// Freeze calls fn while nothing of the stream is admitted: what the sink holds
// meanwhile is the content at pos. Its socket is not read, so that fn must end
// soon; Status, State and Between go on, and so do other streams.
func (s *Stream) Freeze(fn func(st Status, pos Position)) {
	s.gate.Lock()
	defer s.gate.Unlock()
	s.mu.Lock()
	st, pos := s.feed.Status(), s.feed.Position()
	s.mu.Unlock()
	fn(st, pos)
}
