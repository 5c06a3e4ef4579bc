// SPDX-License-Identifier: Apache-2.0

package health

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"math"
	"time"
)

// Options are a watch's. 0 switches a rule off where its comment says so.
type Options struct {
	StallAfter time.Duration // silent for so long after a failed connection: unreachable; 0: never
	WedgeAfter time.Duration // no token for so long: wedged; 0: never
	StaleAfter time.Duration // no load record for so long, once one was pushed: stale; 0: never

	OverloadUsage   float64 // share of the KV pool, 0 to 1; 0: not looked at
	OverloadWaiting int64   // requests; 0: not looked at
	OverloadShed    bool    // [Watch.Shed] refuses where all are overloaded
	// BackOff is how long a worker counts as overloaded that answered 429 or 503; 0: not.
	BackOff time.Duration

	ProbeInterval  time.Duration // between two probes of a worker that is well
	ProbeFast      time.Duration // and of one that is not
	ProbeTimeout   time.Duration // of one probe
	ProbeConnect   time.Duration // of its connection
	ProbeFailures  int           // in a row, to be not ready
	ProbeLost      int           // in a row, to be failed
	ProbeSuccesses int           // in a row, to be ready
	Probes         int           // at once, those left out that are overdue
	ProbePath      string        // of HTTP workers

	BreakerFailures  int // faults in a row, to open; 0: no breaker
	BreakerOpen      time.Duration
	BreakerSuccesses int // in a row on trial, to close

	TLS   *tls.Config  // to https and grpcs workers; nil: the system's roots
	Log   *slog.Logger // nil: nothing is logged
	Check Checker      // asks one worker; nil: over HTTP or gRPC, as its URL says
}

// DefaultOptions returns the defaults.
func DefaultOptions() Options {
	return Options{
		StallAfter: 2 * time.Second,
		WedgeAfter: 3 * time.Second,
		StaleAfter: 15 * time.Second,

		OverloadUsage:   0.8,
		OverloadWaiting: 8,
		BackOff:         time.Second,

		ProbeInterval:  time.Second,
		ProbeFast:      250 * time.Millisecond,
		ProbeTimeout:   5 * time.Second,
		ProbeConnect:   time.Second,
		ProbeFailures:  3,
		ProbeLost:      9,
		ProbeSuccesses: 2,
		Probes:         128,
		ProbePath:      "/health",

		BreakerFailures:  10,
		BreakerOpen:      time.Minute,
		BreakerSuccesses: 3,
	}
}

// Validate reports the first setting that cannot be.
func (o *Options) Validate() error {
	for _, s := range []struct {
		name string
		is   time.Duration
		zero bool // is a value
	}{
		{"worker-stall-secs", o.StallAfter, true},
		{"worker-wedge-secs", o.WedgeAfter, true},
		{"worker-stale-secs", o.StaleAfter, true},
		{"overload-back-off", o.BackOff, true},
		{"health-interval", o.ProbeInterval, false},
		{"health-fast-interval", o.ProbeFast, false},
		{"health-timeout", o.ProbeTimeout, false},
		{"health-connect-timeout", o.ProbeConnect, false},
		{"breaker-open", o.BreakerOpen, false},
	} {
		if s.is < 0 || s.is == 0 && !s.zero {
			return fmt.Errorf("%s: %v: must be positive", s.name, s.is)
		}
	}
	for _, s := range []struct {
		name      string
		is, least int
	}{
		{"health-failures", o.ProbeFailures, 1},
		{"health-lost", o.ProbeLost, 1},
		{"health-successes", o.ProbeSuccesses, 1},
		{"health-probes", o.Probes, 1},
		{"breaker-failures", o.BreakerFailures, 0},
		{"breaker-successes", o.BreakerSuccesses, 1},
	} {
		if s.is < s.least {
			return fmt.Errorf("%s: %d: must be at least %d", s.name, s.is, s.least)
		}
	}
	if u := o.OverloadUsage; math.IsNaN(u) || u < 0 || u > 1 {
		return fmt.Errorf("worker-overload-token-usage: %v: must be 0 to 1", u)
	}
	if o.OverloadWaiting < 0 {
		return fmt.Errorf("worker-overload-waiting: %d: must be 0 or more requests", o.OverloadWaiting)
	}
	return nil
}
