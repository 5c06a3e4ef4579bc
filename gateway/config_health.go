// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"time"

	"kindex/internal/settings"
)

// HealthConfig says when a worker is passed over. 0 switches a rule off.
type HealthConfig struct {
	StallAfter time.Duration // connections fail, and it is silent for so long
	WedgeAfter time.Duration // it has requests and none moves
	StaleAfter time.Duration // its load record is older

	OverloadUsage   float64 // share of its KV pool in use
	OverloadWaiting int     // requests that wait there
	OverloadShed    bool    // all are overloaded: refuse instead of taking the least loaded

	ProbeInterval  time.Duration
	ProbeTimeout   time.Duration
	ProbeFailures  int // in a row until it is not ready
	ProbeSuccesses int // in a row until it is ready

	BreakerFailures  int // in a row until it opens
	BreakerOpen      time.Duration
	BreakerSuccesses int // on trial until it closes

	LoadInterval time.Duration // between questions for the load of who does not push it
}

func defaultHealth() HealthConfig {
	return HealthConfig{
		StallAfter: 2 * time.Second,
		WedgeAfter: 3 * time.Second,
		StaleAfter: 15 * time.Second,

		OverloadUsage:   0.8,
		OverloadWaiting: 8,

		ProbeInterval:  time.Second,
		ProbeTimeout:   5 * time.Second,
		ProbeFailures:  3,
		ProbeSuccesses: 2,

		BreakerFailures:  10,
		BreakerOpen:      time.Minute,
		BreakerSuccesses: 3,

		LoadInterval: time.Second,
	}
}

func (c *HealthConfig) options() []settings.Option {
	const day = 24 * time.Hour
	return []settings.Option{
		settings.Seconds("worker-stall-secs", "a worker whose connections fail and that is silent for so many seconds is passed over; 0: never", &c.StallAfter, 0, day),
		settings.Seconds("worker-wedge-secs", "the same of one that has requests and moves none of them, prefills allowed for; 0: never", &c.WedgeAfter, 0, day),
		settings.Seconds("worker-stale-secs", "the same of one that told its load and has not for so many seconds; 0: never", &c.StaleAfter, 0, day),
		settings.Number("worker-overload-token-usage", "the same of one with this share of its KV pool in use, 0 to 1; 0: never", &c.OverloadUsage, 0, 1),
		settings.Count("worker-overload-waiting", "the same of one with so many requests waiting; 0: never", &c.OverloadWaiting, 0, 1<<30),
		settings.Toggle("worker-overload-shed", "where all workers are overloaded, answer 503 instead of asking the least loaded", &c.OverloadShed),
		settings.Span("health-interval", "between two probes of a worker", &c.ProbeInterval, 10*time.Millisecond, day),
		settings.Span("health-timeout", "of one probe", &c.ProbeTimeout, 10*time.Millisecond, time.Hour),
		settings.Count("health-failures", "probes that fail in a row until a worker is not ready", &c.ProbeFailures, 1, 1_000),
		settings.Count("health-successes", "probes that pass in a row until it is ready again", &c.ProbeSuccesses, 1, 1_000),
		settings.Count("breaker-failures", "faults of a worker in a row until it is passed over; 0: no breaker", &c.BreakerFailures, 0, 1<<20),
		settings.Span("breaker-open", "how long, before it is tried again", &c.BreakerOpen, 10*time.Millisecond, day),
		settings.Count("breaker-successes", "requests that go well on trial until it is trusted again", &c.BreakerSuccesses, 1, 1<<20),
		settings.Span("load-interval", "between questions for the load of a worker that does not push it", &c.LoadInterval, 50*time.Millisecond, time.Hour),
	}
}
