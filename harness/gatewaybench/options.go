// SPDX-License-Identifier: Apache-2.0

package gatewaybench

import (
	"fmt"
	"slices"
	"time"

	"kindex/harness/trial"
)

// The targets.
const (
	Ours      = "ours"       // our gateway as it is without flags: cache_aware, an index of its own, its usual log
	SMGTurns  = "smg-rr"     // the peer, in turns, logging warnings
	SMGTurnsI = "smg-rr-log" // the same with its usual log
	SMGCache  = "smg"        // the peer, cache_aware, logging warnings
	SMGCacheI = "smg-log"    // the same with its usual log
	Bare      = "bare"       // a proxy of the same HTTP library that does nothing else
	Direct    = "direct"     // no gateway: the first worker
)

// Targets are all targets.
var Targets = []string{Ours, SMGCache, SMGCacheI, SMGTurns, SMGTurnsI, Bare, Direct}

// ShortTargets are enough for every bar.
var ShortTargets = []string{Ours, SMGCache, Bare, Direct}

// The kinds of requests.
const (
	Small  = "small"  // a completion of a prompt of 128 bytes
	Large  = "8k"     // of 8,192
	Chat   = "chat"   // a chat of 2,048
	Stream = "stream" // a completion of 2,048, answered by 16 chunks
	Fresh  = "fresh"  // as small, no prompt twice
)

// Kinds are all kinds; the last is measured only when asked for.
var Kinds = []string{Small, Large, Chat, Stream, Fresh}

// How programs are placed.
const (
	PinSplit = "split"
	PinNone  = "none"
)

// Options say what is measured.
type Options struct {
	Targets []string      `json:"targets"`
	Kinds   []string      `json:"kinds"`
	Conns   []int         `json:"connections"`
	For     time.Duration `json:"measured_ns"` // of each trial
	Warm    time.Duration `json:"warm_ns"`     // before it, on the same connections
	Idle    time.Duration `json:"idle_ns"`     // alone, before memory is read, and again for CPU
	Rounds  int           `json:"rounds"`
	Pin     string        `json:"pin"`
	Gateway []string      `json:"gateway_flags"` // more flags of ours
	Seed    uint64        `json:"seed"`
}

// DefaultOptions are those of the published figures.
func DefaultOptions() Options {
	return Options{
		Targets: slices.Clone(Targets), Kinds: slices.Clone(Kinds[:4]), Conns: []int{1, 16, 64}, For: time.Second, Warm: 300 * time.Millisecond,
		Idle: 3 * time.Second, Rounds: 3, Pin: PinSplit, Seed: 7,
	}
}

// The bounds of what can be asked for. Chosen.
const (
	maxConns  = 1024
	maxRounds = 100
	maxTrial  = 5 * time.Minute
)

// Validate returns the first fault, naming the flag.
func (o *Options) Validate() error {
	for _, list := range []struct {
		flag       string
		got, known []string
	}{{"targets", o.Targets, Targets}, {"kinds", o.Kinds, Kinds}} {
		if len(list.got) == 0 {
			return fmt.Errorf("--%s: must be of %s, with commas between", list.flag, trial.OneOf(list.known))
		}
		for i, x := range list.got {
			if !slices.Contains(list.known, x) || slices.Contains(list.got[:i], x) {
				return fmt.Errorf("--%s %q: must be different ones of %s, with commas between", list.flag, x, trial.OneOf(list.known))
			}
		}
	}
	for i, n := range o.Conns {
		if n < 1 || n > maxConns || slices.Contains(o.Conns[:i], n) {
			return fmt.Errorf("--conns %d: must be different numbers from 1 to %d", n, maxConns)
		}
	}
	for _, d := range []struct {
		flag      string
		got       time.Duration
		low, high time.Duration
	}{{"duration", o.For, 10 * time.Millisecond, maxTrial}, {"warm-up", o.Warm, 0, maxTrial}, {"idle", o.Idle, 0, maxTrial}} {
		if d.got < d.low || d.got > d.high {
			return fmt.Errorf("--%s %v: must be %v to %v", d.flag, d.got, d.low, d.high)
		}
	}
	switch {
	case len(o.Conns) == 0:
		return fmt.Errorf("--conns: must be numbers from 1 to %d, with commas between", maxConns)
	case o.Rounds < 1 || o.Rounds > maxRounds:
		return fmt.Errorf("--rounds %d: must be 1 to %d", o.Rounds, maxRounds)
	case o.Pin != PinSplit && o.Pin != PinNone:
		return fmt.Errorf("--pin %q: must be %s or %s", o.Pin, PinSplit, PinNone)
	}
	return nil
}
