// SPDX-License-Identifier: Apache-2.0

package lookup

import "time"

// LoadName tells a rank from all others of a host.
type LoadName struct {
	Instance, Model, Group, Tenant string
	Rank                           int
}

// Load is how one rank stands: what its cache holds by the index, and what its engine
// said of its load.
type Load struct {
	LoadName

	Status string // of its stream, as [Rank].Status
	Held   uint64 // blocks, as [Rank].Memberships
	// EventAge is how long ago its newest batch was applied; negative: none was.
	EventAge time.Duration

	Record *LoadRecord // nil: its engine has said nothing; immutable
}

// LoadRecord is what an engine, or a relay beside it, said of one rank's load. What it
// did not say is negative, which is not zero.
type LoadRecord struct {
	// Age is how old the record is as it is told: the engine's own word for its age and
	// the time since.
	Age time.Duration
	// Sample grows with each reading of the engine by whoever reads it, who tells a
	// reading more than once; 0: not said.
	Sample uint64

	Running, Waiting int64   // requests
	WaitingUncached  int64   // tokens of those that wait, to prefill and in no cache
	Usage            float64 // share of the KV pool in use, 0 to 1
	ActiveUsage      float64 // of it what cannot be evicted
	Throughput       float64 // generated tokens a second
	MaxRunning       int64   // requests
	PrefillPending   int64   // tokens, of all requests
	SilenceMS        int64   // without output while it holds requests
	ReportsSteps     bool    // it counts every step, so that silence is standing still
}

// LoadUpdate is one step of [Index].Loads: all ranks first, then those that changed.
type LoadUpdate struct {
	// Whole: Loads is all there is; what was known before is void.
	Whole bool
	// Lost: nobody tells now, the connection has broken; what was known is void, and the
	// next step is whole. A host in this process never says it.
	Lost  bool
	Loads []Load
	Gone  []LoadName
}
