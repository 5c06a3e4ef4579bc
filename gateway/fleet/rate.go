// SPDX-License-Identifier: Apache-2.0

// Before: leases, to which a first token comes. After: decisions, which weigh what is to
// be prefilled.

package fleet

import "math"

const (
	// leastMeasured is the tokens of a prompt by which a rate is measured: of shorter
	// ones most of the time is not prefill's. Chosen.
	leastMeasured = 2_048
	// weight is the part of the newest measurement in the rate. Chosen.
	weight = 1.0 / 8
	// The bounds of what is believed, tokens a second.
	slowestRate, fastestRate = 200, 1e6
)

// PrefillRate returns how many tokens a second h prefills while it has some to prefill;
// 0: not known yet.
//
// It is measured over the time from a long prompt's lease to its first token, in which
// there was always something to prefill, and counts all prompts of h that ended in it:
// so what a prompt waits for others does not make the rate lower.
func (h *Holder) PrefillRate() float64 { return math.Float64frombits(h.rate.Load()) }

// measure takes that h prefilled so many tokens in so many ns, the last of them a
// prompt of own tokens. Of two at the same time one may be lost.
func (h *Holder) measure(tokens, own, span int64, stream bool) {
	if !stream || own < leastMeasured || span <= 0 {
		return // of answers in one piece the first token is not seen
	}
	rate := min(max(float64(tokens)*1e9/float64(span), slowestRate), fastestRate)
	if old := h.PrefillRate(); old > 0 {
		rate = old + (rate-old)*weight
	}
	h.rate.Store(math.Float64bits(rate))
}
