// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"runtime"
	"time"

	"kindex/harness/trial"
	"kindex/numa"
)

// The published rule of an open loop that kept up.
const (
	// IssuedWithin is the windows until the last operation was issued: the load was
	// really offered.
	IssuedWithin = 1.01
	doneWithin   = 1.10 // windows until the last was done
)

// InOrder is what a replay of the whole corpus in order took.
type InOrder struct {
	Ops      int64          `json:"ops"`
	Blocks   int64          `json:"block_ops"`
	FrontCPU int64          `json:"front_cpu_ns"` // issuing and looking up; in open loops waiting for deadlines, too
	Looking  int64          `json:"lookups_ns"`   // the lookups alone, by the clock
	LaneCPU  int64          `json:"lane_cpu_ns"`
	Wall     int64          `json:"wall_ns"`   // until the last operation was done
	Issued   int64          `json:"issued_ns"` // until the last was issued
	Latency  *trial.Latency `json:"lookup_ns"`
	// DueToDone is the time from a lookup's deadline to its end, in open loops.
	DueToDone *trial.Latency `json:"lookup_due_to_done_ns,omitempty"`
	Window    int64          `json:"window_ns,omitempty"`
}

// Offered and Achieved are block operations a second of an open loop.
func (r *InOrder) Offered() float64 { return float64(r.Blocks) * 1e9 / float64(r.Window) }

// Achieved is what was done of it.
func (r *InOrder) Achieved() float64 { return float64(r.Blocks) * 1e9 / float64(r.Wall) }

// KeptUp is the published rule: all issued within 1.01 windows, all done within 1.10.
func (r *InOrder) KeptUp() bool {
	return r.ValidGenerator() && float64(r.Wall) <= doneWithin*float64(r.Window)
}

// ValidGenerator reports whether the load was really offered.
func (r *InOrder) ValidGenerator() bool {
	return float64(r.Issued) <= IssuedWithin*float64(r.Window)
}

// Replay plays the whole corpus in order, lookups inline on the calling thread, events
// through the lanes. With a window it is an open loop: every operation is issued at its
// deadline, scaled so that the last one's is the window's end. Without, as fast as it
// goes, with at most MaxWaiting events waiting.
func Replay(src *Source, window time.Duration) (*Target, *InOrder, error) {
	t, err := src.NewTarget()
	if err != nil {
		return nil, nil, err
	}
	steps := src.Corpus.Steps(0, len(src.Corpus.Ops), nil)
	events, lookups := split(steps)
	room := MaxWaiting / max(src.Lanes, 1)
	if window > 0 {
		room = len(events) + 1 // an open loop is not held up
	}
	l, err := NewLanes(t, src.Lanes, room)
	if err != nil {
		return nil, nil, err
	}
	f := front{t: t, l: l, buf: t.Buffer(), service: make([]uint32, 0, len(lookups))}
	r := &InOrder{Ops: int64(len(steps)), Blocks: blocks(events) + blocks(lookups), Window: int64(window)}
	quiet()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	l.Open()
	cpu := numa.ThreadCPU()
	f.start = clock()
	if window > 0 {
		f.late = make([]uint32, 0, len(lookups))
		f.open(steps, int64(window))
	} else {
		f.flatOut(steps)
	}
	l.flush()
	r.Issued = clock() - f.start
	r.FrontCPU = numa.ThreadCPU() - cpu
	l.drain()
	r.Wall = clock() - f.start
	r.LaneCPU, err = l.Stop()
	for _, ns := range f.service {
		r.Looking += int64(ns)
	}
	r.Latency, r.DueToDone = trial.NewLatency(f.service), trial.NewLatency(f.late)
	return t, r, err
}
