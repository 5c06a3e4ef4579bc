// SPDX-License-Identifier: Apache-2.0

// Before: own.go, peer.go (what a stream brought). After: Handler.

package client

import (
	"fmt"
	"time"

	"kindex/relay/normal"
)

// rank is one rank's place: its cursor, how far it can be trusted, and whom to
// tell.
//
// Concurrency: the client's goroutine.
type rank struct {
	number  uint32
	h       Handler
	load    LoadHandler   // nil: nobody wants it
	resumes ResumeHandler // the same
	anew    func(uint32)  // has this rank asked for from the beginning
	absent  string        // why the server has no such rank; "": it has, or cannot be asked

	blockSize  int // that is wanted, tokens; 0: any
	mostBlocks int // of a snapshot

	// The cursor.
	has        bool
	epoch, seq uint64
	check      uint64 // of batch seq; 0: it proves nothing
	// holds: the handler was told something since the rank was empty. void: that is
	// of no use any more and goes as soon as something else is known.
	holds, void bool

	snap *snapshot // being received

	resume

	// What keeps the rank from being exact.
	missing  string // numbers that never came
	mismatch int    // block size of stores that were left out
	relay    relayStanding
	life     uint64 // what the relay calls the epoch that this stream is in; 0: not known

	// catching: more may be on its way that was there before the stream. It ends
	// when target is reached, or, where the server cannot be asked for one, once the
	// stream is quiet.
	catching bool
	target   target
	content  bool      // something came on this stream
	since    time.Time // of this stream, or of the last reset
	heard    time.Time // when something came last

	told Standing // last told
	was  bool     // it was told since the stream stands

	gapped bool   // a batch was missing behind number gapAt
	gapAt  uint64 // relay's own contract only

	peer *peerRank // what only the peers' contract needs

	st counts
}

// relayStanding is what the relay said of itself. Peers say nothing: known is
// false.
type relayStanding struct {
	known, primed, exact bool
	epoch                uint64 // 0: it does not say
	why                  string
}

// of reports whether s is about the content of life, as far as that is known.
func (s *relayStanding) of(life uint64) bool { return s.epoch == 0 || life == 0 || s.epoch == life }

// target is the newest batch that the server had when it was asked.
type target struct {
	known, any bool
	epoch, seq uint64
}

// The pauses that end catching up where no number says so. Chosen, not measured.
const (
	quietAfterContent = 25 * time.Millisecond // history comes without pauses
	quietWithout      = time.Second           // a snapshot may have to be made first
	busyAfterContent  = 2 * time.Second       // a stream that is never quiet
)

// connected begins the rank's part of a stream.
func (r *rank) connected(c Contract) {
	r.was = false
	r.h.Connected(c)
	r.tell()
}

// begin prepares for a stream that was just asked for.
func (r *rank) begin(now time.Time) {
	r.catching, r.content, r.target = true, false, target{}
	r.since, r.heard = now, now
	r.relay, r.life = relayStanding{}, 0
}

// caughtUp reports whether what was there before the stream has come, and when to
// ask again if not.
func (r *rank) caughtUp(now time.Time) (bool, time.Time) {
	switch {
	case !r.catching:
		return true, time.Time{}
	case r.snap != nil:
		return false, time.Time{} // its end asks
	case r.target.known: // the next batch asks, or the next target
		if !r.target.any {
			return !r.has, time.Time{}
		}
		return r.has && r.epoch == r.target.epoch && r.seq >= r.target.seq, time.Time{}
	}
	var end time.Time
	if !r.content {
		end = r.heard.Add(quietWithout)
	} else {
		end = r.heard.Add(quietAfterContent)
		if busy := r.since.Add(busyAfterContent); busy.Before(end) {
			end = busy
		}
	}
	return !now.Before(end), end
}

// settle ends catching up when it is time; it returns when to ask again, zero for
// not at all.
func (r *rank) settle(now time.Time) time.Time {
	done, again := r.caughtUp(now)
	if !done {
		return again
	}
	if r.catching {
		r.catching = false
		if r.unproven {
			r.refuse("the server did not tell the content's last batch again")
			r.anew(r.number)
			return time.Time{}
		}
		if !r.content {
			r.dropVoid("nothing is there any more")
		}
		r.tell()
	}
	return time.Time{}
}

// standing says where the rank stands.
func (r *rank) standing() Standing {
	inexact := func(repairing bool, format string, args ...any) Standing {
		return Standing{Repairing: repairing, Why: fmt.Sprintf(format, args...)}
	}
	switch {
	case r.snap != nil:
		return inexact(true, "receiving a snapshot: chunk %d of %d", r.snap.next, r.snap.count)
	case r.void:
		return inexact(true, "waiting for the rank's content")
	case r.unproven:
		return inexact(true, whyUnproven)
	case r.mismatch != 0:
		return inexact(false, "the relay's block size is %d, registered was %d", r.mismatch, r.blockSize)
	case r.missing != "":
		return Standing{Why: r.missing}
	case r.relay.known && !r.relay.of(r.life):
		return inexact(true, "the relay has begun anew")
	case r.relay.known && !r.relay.primed:
		return inexact(true, "the relay is not primed: %s", orUnknown(r.relay.why))
	case r.catching:
		return inexact(true, "catching up")
	case r.relay.known && !r.relay.exact:
		return inexact(false, "the relay is not exact: %s", orUnknown(r.relay.why))
	}
	return Standing{Exact: true}
}

func orUnknown(why string) string {
	if why == "" {
		return "it does not say why"
	}
	return why
}

// tell tells the handler where the rank stands, if that is news. A snapshot's
// progress is none.
func (r *rank) tell() {
	s := r.standing()
	if r.was && (s == r.told || r.snap != nil && !r.told.Exact && r.told.Repairing) {
		return
	}
	if s.Exact {
		r.goesOn()
	}
	r.was, r.told = true, s
	r.h.Standing(s)
}

// reset takes back all that was told. A life of epoch follows.
func (r *rank) reset(epoch uint64, why string) {
	r.clearState()
	r.beganCold(why)
	r.epoch = epoch
	r.catching, r.content = true, false
	r.was = false // a handler takes a reset for not exact until it is told more
	r.st.resets++
	r.h.Reset(epoch, why)
}

// clearState forgets everything but the standing of the relay.
func (r *rank) clearState() {
	r.has, r.seq, r.check = false, 0, 0
	r.holds, r.void = false, false
	r.snap = nil
	r.missing, r.mismatch = "", 0
	r.peer.restart()
}

// dropVoid takes back what is of no use any more.
func (r *rank) dropVoid(why string) {
	if r.void {
		content := r.content
		r.reset(r.epoch, why)
		r.content = content
	}
}

// forget gives the cursor up: the rank is asked for from the beginning. What was
// told stays until something comes.
func (r *rank) forget() {
	if r.snap != nil {
		r.reset(r.epoch, "the snapshot did not end")
	}
	r.has, r.check = false, 0
	r.void, r.unproven = r.holds, false
}

// moved moves the cursor behind what was handed on.
func (r *rank) moved(epoch, seq, check uint64) {
	r.has, r.epoch, r.seq, r.check = true, epoch, seq, check
	r.life = epoch
}

// lost notes numbers that never come.
func (r *rank) lost(from, to uint64, why string) {
	r.st.lost += to - from + 1
	r.missing = fmt.Sprintf("batches %d to %d lost: %s", from, to, why)
}

// batch hands one batch on and moves the cursor behind it.
func (r *rank) batch(b *Batch, check uint64, now time.Time) {
	r.dropVoid("its content comes anew")
	r.goesOn()
	r.noteOps(b.Ops)
	r.moved(b.Epoch, b.Sequence, check)
	r.content, r.holds, r.heard = true, true, now
	r.st.batches++
	r.st.events += uint64(b.Events)
	r.st.lastBatch, r.st.engineTime = now, b.Timestamp
	r.h.Batch(b)
}

// noteOps notes what changes how far the rank can be trusted.
func (r *rank) noteOps(ops []Op) {
	for i := range ops {
		switch ops[i].Kind {
		case normal.Clear:
			r.missing, r.mismatch = "", 0
		case normal.Mismatch:
			r.mismatch = ops[i].Size
		case normal.Store, normal.Remove:
		}
	}
}
