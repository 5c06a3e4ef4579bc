// SPDX-License-Identifier: Apache-2.0

package fleet

import "time"

// What a registration has where it says nothing.
const (
	DefaultPriority = 50
	DefaultCost     = 1.0
)

// Terms are what an update may change of a worker in service. They are immutable once
// they are set. A pointer that is nil leaves a setting as the gateway has it.
type Terms struct {
	Priority int     // as the contract has it; a tie between equal costs goes to the higher
	Cost     float64 // factor on its expected wait
	Labels   map[string]string
	APIKey   string // sent to the engine; never shown

	Health     Health
	Resilience Resilience
	Overload   Overload

	// LoadInterval is how often its load is asked for where nothing is pushed; 0: as
	// the gateway has it.
	LoadInterval time.Duration
}

// Health is how one worker's health is probed, where that differs from all others.
type Health struct {
	Timeout   *time.Duration // of one probe
	Interval  *time.Duration
	Successes *int // in a row, to be ready
	Failures  *int // in a row, to be no longer ready
	Off       *bool
	Settle    *time.Duration // a removal drains for so long
}

// Resilience is what counts against one worker, where that differs from all others.
type Resilience struct {
	MaxRetries      *int // attempts in all
	NoRetry         *bool
	BreakerFailures *int // in a row, to open
	BreakerSuccess  *int // in a row, to close
	BreakerTimeout  *time.Duration
	NoBreaker       *bool
	Retryable       []int // HTTP statuses that are faults of the worker; nil: as the gateway has it
	Capacity        []int // and those that are back-pressure
}

// Overload is when one worker is full by its own word, where that differs from all
// others.
type Overload struct {
	Waiting *int64   // requests, on all ranks
	Usage   *float64 // of the KV pool, mean of the ranks
}
