// SPDX-License-Identifier: Apache-2.0

package numa

import (
	"errors"
	"fmt"
	"runtime"
)

// LockAndPin locks the calling goroutine to its thread and lets that thread run
// on cpus only. In this order: the runtime makes new threads from a thread of
// its own once one is locked, so that the mask stays with this thread. unpin
// undoes both and is called by the same goroutine.
//
// A goroutine that ends without unpin ends its thread, too.
//
// Errors: no CPU of cpus is allowed; then nothing is locked.
// Cost: about a microsecond. A locked goroutine that blocks on a channel pays 8
// to 17 us a round trip instead of 0.2: hand it batches.
func LockAndPin(cpus []int) (unpin func(), err error) {
	if len(cpus) == 0 {
		return nil, errors.New("numa: no CPUs to pin to")
	}
	runtime.LockOSThread()
	before, err := affinity()
	if err == nil {
		err = setAffinity(cpus)
	}
	if err != nil {
		runtime.UnlockOSThread()
		return nil, err
	}
	return func() {
		if setAffinity(before) != nil {
			return // stays locked: the thread ends with its goroutine, and so does its mask
		}
		runtime.UnlockOSThread()
	}, nil
}

// CurrentNode returns the CPU and the node that the calling thread runs on. It
// means something for a while only on a pinned goroutine.
//
// Cost: one system call, about 100 ns.
func CurrentNode() (cpu, node int, err error) { return currentCPU() }

// PinMode says whether threads are pinned.
type PinMode uint8

// The modes.
const (
	PinAuto PinMode = iota // where a node has CPUs to spare
	PinOn                  // wherever there is a CPU
	PinOff
)

var pinModes = [...]string{"auto", "on", "off"}

// String returns the mode's name.
func (m PinMode) String() string { return pinModes[m] }

// ParsePinMode is String's inverse.
func ParsePinMode(s string) (PinMode, error) {
	for i, name := range pinModes {
		if s == name {
			return PinMode(i), nil
		}
	}
	return 0, fmt.Errorf("pin mode %q: must be auto, on or off", s)
}

// spareCPUs is how many CPUs beside its locked threads a node must have, and
// GOMAXPROCS beside all of them: the runtime's own work and the system's must
// find a place. From measurements: with fewer, plain goroutines are faster.
const spareCPUs = 2

// Pin is what [PlanPins] decided for one node.
type Pin struct {
	Node int
	// CPUs is what to pin this node's threads to, all of the node's; empty: leave
	// them alone. The whole node and not one CPU a thread: memory stays near, and
	// the kernel may still step out of the way of an interrupt.
	CPUs []int
	Why  string // one line for the start-up log
}

// PlanPins decides, for each node that threads can run on, by ID, whether
// threadsPerNode locked threads are pinned there. procs is runtime.GOMAXPROCS(0).
//
// PinAuto pins on a node with at least threadsPerNode+2 CPUs, when procs is at
// least all nodes' threads+2: a locked thread that spins holds a processor of
// the runtime. So never on two CPUs. A single node is left alone: to lock costs,
// and nothing there is far away.
func PlanPins(t *Topology, mode PinMode, threadsPerNode, procs int) []Pin {
	places := t.Workplaces()
	pins := make([]Pin, len(places))
	want := len(places)*threadsPerNode + spareCPUs
	for i, n := range places {
		p := &pins[i]
		p.Node = n.ID
		switch {
		case mode == PinOff:
			p.Why = "not pinned: switched off"
		case mode == PinOn:
			p.CPUs, p.Why = n.CPUs, "pinned: switched on"
		case len(places) == 1:
			p.Why = "not pinned: one node, nothing is far away"
		case len(n.CPUs) < threadsPerNode+spareCPUs:
			p.Why = fmt.Sprintf("not pinned: %d CPUs, %d threads want %d", len(n.CPUs), threadsPerNode, threadsPerNode+spareCPUs)
		case procs < want:
			p.Why = fmt.Sprintf("not pinned: GOMAXPROCS is %d, %d threads on %d nodes want %d", procs, threadsPerNode, len(places), want)
		default:
			p.CPUs, p.Why = n.CPUs, "pinned: CPUs to spare"
		}
	}
	return pins
}
