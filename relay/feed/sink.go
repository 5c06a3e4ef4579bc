// SPDX-License-Identifier: Apache-2.0

// Before: Feed (admission). After: whoever keeps the content: an index's writer, a
// relay's rank.

package feed

import "fmt"

// Batch is one batch in the publisher's order, each number of a life at most once.
type Batch struct {
	Seq      uint64
	Payload  []byte // never changed; whoever keeps it keeps the message it came in
	Sum      uint64 // XXH3-64 of the payload, but 1 for 0
	Replayed bool   // came through the replay socket
}

// Sink is what a feed hands to. A batch is handed over in two steps: Stage makes
// it ready, with nothing done that others could see; Commit applies what was
// staged. Where a caller runs bursts on lanes, Commit runs within the turn of a
// shard and Stage does not (see [Turner]).
//
// Between two Commits of one life every number is either committed or told lost,
// in ascending order; a Forget begins the count anew.
//
// Concurrency: all calls are made one at a time, under the lock of the feed's
// [Stream] where it has one. A sink must not call back into either.
type Sink interface {
	// Decodable reports whether payload is a batch. Nothing is kept or counted.
	Decodable(payload []byte) bool
	// Stage makes b ready. False, with nothing done: its payload is no batch. b is
	// valid until Commit returns, its payload as long as it is kept.
	Stage(b *Batch) bool
	// Commit applies the staged batch. What makes the content inexact it raises in
	// f; where the engine itself empties everything it heals f.
	Commit(f *Faults)
	// Lost tells that the batches from to to, inclusive, will never come.
	Lost(from, to uint64, why string)
	// Forget empties the content. The feed itself heals f where that makes the
	// content known.
	Forget(why Forget, f *Faults)
}

// Turner is a Sink whose Commit must run within a turn of something that others
// write, too.
type Turner interface {
	// InTurn calls fn within the turn. A feed calls it for every Commit that is not
	// made by somebody who has the turn already.
	InTurn(fn func())
}

// Forget is why a sink's content goes.
type Forget uint8

// Why content goes.
const (
	ForgetRestart Forget = iota // the publisher restarted: another life, the feed's epoch one higher
	ForgetResync                // of the same life; its whole content follows from the first batch
)

// Fault is a reason why a stream is not exact although nothing is being done
// about it. Faults add up.
type Fault uint8

// The faults. The first two, and the last, are the feed's own.
const (
	faultLost       Fault = 1 << iota // batches that never came
	faultUnverified                   // nobody could say what was missed, or whose life this is
	FaultOrphans                      // blocks dropped that waited for their parent
	FaultBlockSize                    // the engine's block size is another one than the content's
	FaultRefused                      // an event could not be applied
	faultForeign                      // the replay socket seems to be another engine's; the feed's own
	allFaults       = faultForeign<<1 - 1
)

// Faults are those of one stream and why the last was raised.
//
// Concurrency: as [Sink].
type Faults struct {
	set    Fault
	reason string
}

// Raise notes a fault and why. The stream is degraded until it is healed.
func (f *Faults) Raise(what Fault, format string, args ...any) {
	f.set |= what
	f.reason = fmt.Sprintf(format, args...)
}

// Any reports whether there is a fault, and Why the last one.
func (f *Faults) Any() bool { return f.set != 0 }

// Has reports whether what, or one of several, was raised.
func (f *Faults) Has(what Fault) bool { return f.set&what != 0 }

// Why says what the last fault was; "" where there is none.
func (f *Faults) Why() string { return f.reason }

// Set returns the faults that were raised.
func (f *Faults) Set() Fault { return f.set }

// Heal takes back every fault: the content is known, whatever was missed before.
func (f *Faults) Heal() { f.set, f.reason = 0, "" }
