// SPDX-License-Identifier: Apache-2.0

// Before: rules.go, which sees prompts come and go. After: how long a prefill is
// allowed for.

package health

import (
	"math"
	"sync/atomic"
	"time"

	"kindex/gateway/fleet"
)

const (
	// priorRate is what an engine is taken to prefill, tokens a second, until it was
	// seen to.
	priorRate = 10_000
	// The bounds of what is believed.
	slowestRate = 200
	fastestRate = 1e6
	// A measurement is at least so long and so many tokens.
	leastSpan   = time.Second
	leastTokens = 2_048
)

// prefillRate measures how many tokens a rank prefills in a second, while it has some to
// prefill throughout. Where it could do more this measures what it was asked for, so
// that what is allowed for is about what its requests waited till then.
//
// Concurrency: the rounds, but for value.
type prefillRate struct {
	rate   atomic.Uint64 // bits of a float64; 0: not known; any goroutine may read it
	began  int64         // of the measurement; 0: nothing is pending
	before int64         // tokens settled until then
}

// tick begins and ends measurements, as tokens are pending or not.
func (p *prefillRate) tick(h *fleet.Holder, now, pending int64) {
	if pending <= 0 {
		p.began = 0
	} else if p.began == 0 {
		p.began, p.before = now, settled(h)
	}
}

// progress measures until the token at the time moved. What was given up while nothing
// moves is not taken for prefilled.
func (p *prefillRate) progress(h *fleet.Holder, moved int64) {
	if p.began == 0 {
		return
	}
	span, tokens := time.Duration(moved-p.began), settled(h)-p.before
	if span < leastSpan || tokens < leastTokens {
		return
	}
	rate := min(max(float64(tokens)/span.Seconds(), slowestRate), fastestRate)
	if old := p.value(); old > 0 {
		rate = (old + rate) / 2
	}
	p.rate.Store(math.Float64bits(rate))
	p.began, p.before = moved, p.before+tokens
}

// value returns the rate; 0: not known.
func (p *prefillRate) value() float64 { return math.Float64frombits(p.rate.Load()) }

func (p *prefillRate) orPrior() float64 {
	if rate := p.value(); rate > 0 {
		return rate
	}
	return priorRate
}

// settled returns the tokens of all leases that are prefilled, or were given up.
func settled(h *fleet.Holder) int64 {
	var r fleet.Reading
	h.Stamp(&r)
	return r.TakenPrefill - h.PrefillInFlight()
}
