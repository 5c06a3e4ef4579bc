// SPDX-License-Identifier: Apache-2.0

// Before: collect.go, which says whose state is read. After: the choosers.

package policy

import (
	"math"

	"kindex/gateway/fleet"
)

const (
	// tie is how far expected times may differ and still be equal, in seconds.
	tie = 1e-6

	// unknownPrompt stands for a prompt whose tokens nobody counted.
	unknownPrompt = 1024

	maxKV = 0.999

	// fullKV is the share of the KV pool in use from which on requests wait for room
	// in it, and not for their turn to be prefilled. Chosen.
	fullKV = 0.9
)

// candidate is a holder in one decision: what was read of it, once, and what follows.
type candidate struct {
	h *fleet.Holder

	// Of the prompt: literal tokens and blocks, never weighed.
	cached, host   int64 // host: of cached, those that must be fetched
	blocks, device uint32
	depth          uint64 // of the match in order of worth, weighed; 0: none

	flags flags

	// Read.
	inFlight float64 // requests with a lease of ours
	reported float64 // requests in its reading
	since    float64 // leases that came after that
	queued   float64 // tokens to prefill in its reading
	pending  float64 // tokens to prefill of leases since
	kv       float64 // 0 to 1
	rate     float64 // tokens a second that it generates
	measured float64 // tokens a second that it prefills; 0: not known
	age      float64 // seconds of its reading; negative: it has none
	trust    float64 // in its reading, 0 to 1

	// Made of it.
	prefills             float64 // tokens a second that the fleet prefills
	load                 float64 // requests
	ahead, pressure, own float64 // seconds
	cost                 float64 // factor
	total                float64 // seconds, with what is cached
	bare                 float64 // seconds, as if nothing were
}

type flags uint16

const (
	ofFleet   flags = 1 << iota // counts for the mean
	gated                       // under pressure
	predicted                   // the match is
	degraded                    // the match is
	unmatched                   // nobody looked whether it has some of the prompt
	warm                        // it warms up, and it is its turn
	deepest                     // nobody has more
	runs                        // not out yet, in a choice of several steps
)

func (c *candidate) is(f flags) bool { return c.flags&f != 0 }

// read takes what is known of c's load. Each atomic is read once.
func (p *policy) read(c *candidate, now int64) {
	h := c.h
	c.inFlight = float64(h.InFlight())
	pending := float64(h.PrefillInFlight())
	c.rate, c.measured, c.age, c.cost = p.o.Throughput, h.PrefillRate(), -1, 1
	if x := h.Cost(); x > 0 {
		c.cost = x
	}
	r := h.Reading()
	if r == nil {
		c.since, c.pending = c.inFlight, pending
		return
	}
	c.age = float64(max(now-r.At, 0)) / 1e9
	c.trust = p.trust(now - r.At)
	c.reported = float64(max(r.Running, 0) + max(r.Waiting, 0))
	c.queued = float64(max(r.PrefillPending, r.WaitingUncached, 0))
	u := h.Unread(r)
	c.since, c.pending = min(float64(u.Requests), c.inFlight), min(float64(u.Prefill), pending)
	// What is not in a reading that is not trusted is all that is out.
	c.since += (1 - c.trust) * (c.inFlight - c.since)
	c.pending += (1 - c.trust) * (pending - c.pending)
	c.kv = clampKV(r)
	// An engine that could take more tells what was asked of it, and one behind whose
	// prefills requests wait what these left: neither tells what it could generate.
	full := r.MaxRunning > 0 && r.Running >= r.MaxRunning || r.Waiting > 0 && c.kv >= fullKV
	if r.Throughput > c.rate || full && r.Throughput > 0 {
		c.rate = r.Throughput
	}
}

// clampKV returns the share of the KV pool in use that counts.
func clampKV(r *fleet.Reading) float64 {
	k := r.ActiveUsage
	if !(k >= 0) {
		k = r.Usage
	}
	if !(k > 0) {
		return 0
	}
	return min(k, maxKV)
}

// trust returns how far a reading of that age, in ns, counts.
func (p *policy) trust(age int64) float64 {
	fresh, stale := int64(p.o.Fresh), int64(p.o.Stale)
	switch {
	case stale == 0 || age <= fresh:
		return 1
	case age >= stale:
		return 0
	}
	return float64(stale-age) / float64(stale-fresh)
}

// ahead is the time that so many requests and tokens to prefill take, in seconds.
func (p *policy) ahead(requests, prefill float64, of *candidate) float64 {
	return requests*p.o.RequestTokens/of.rate + prefill/of.prefills
}

func (p *policy) pressure(kv float64) float64 { return p.o.KVWeight * kv / (1 - kv) }

// price makes load and times of what was read of all candidates. A report that is
// missing, or not trusted, is the best of the others' in its place: it never reads as
// idle beside them. Where nobody reports, what is in flight is all there is.
func (p *policy) price(all []candidate, prompt int64) {
	prefills := p.prefills(all)
	for i := range all {
		all[i].prefills = prefills
	}
	var best *candidate
	least := math.Inf(1)
	for i := range all {
		c := &all[i]
		if c.trust < 1 {
			continue
		}
		if t := p.ahead(c.reported, c.queued, c) + p.pressure(c.kv); t < least {
			least, best = t, c
		}
	}
	for i := range all {
		c := &all[i]
		reported, queued, kv := c.reported, c.queued, c.kv
		if best != nil {
			reported = best.reported + c.trust*(reported-best.reported)
			queued = best.queued + c.trust*(queued-best.queued)
			kv = best.kv + c.trust*(kv-best.kv)
		} else {
			reported, queued, kv = c.trust*reported, c.trust*queued, c.trust*kv
		}
		// Leases are there whatever a reading says.
		c.load = max(reported+c.since, c.inFlight)
		c.ahead = p.ahead(c.load+1, queued+c.pending, c)
		c.pressure = p.pressure(kv)
		p.sum(c, prompt)
	}
}

// prefills returns how many tokens a second a holder prefills: the mean of those that are
// known. Each by its own would send all misses of an idle fleet to whose measurement
// happened to be highest, and those that never got a long prompt would get none.
func (p *policy) prefills(all []candidate) float64 {
	sum, n := 0.0, 0
	for i := range all {
		if rate := all[i].measured; rate > 0 {
			sum, n = sum+rate, n+1
		}
	}
	if n == 0 {
		return p.o.PrefillRate
	}
	return sum / float64(n)
}

// sum makes c's totals, of what is ahead and of its match.
func (p *policy) sum(c *candidate, prompt int64) {
	if prompt == 0 {
		prompt = max(unknownPrompt, c.cached)
	}
	own := float64(max(prompt-c.cached, 1)) + (1-p.o.HostWeight)*float64(c.host)
	c.own = own / c.prefills
	c.total = c.cost * (c.ahead + c.pressure + c.own)
	c.bare = c.cost * (c.ahead + c.pressure + float64(prompt)/c.prefills)
}

// mean returns the mean load of those that stand for the fleet.
func mean(all []candidate) float64 {
	var sum, n float64
	for i := range all {
		if all[i].is(ofFleet) {
			sum += all[i].load
			n++
		}
	}
	if n == 0 {
		return 0
	}
	return sum / n
}

// limit is the load past which a holder is under pressure, in requests.
func (p *policy) limit(mean float64) float64 {
	margin := min(p.o.GateMost, max(math.Ceil(2*math.Sqrt(mean)), p.o.GateLeast))
	return max(p.o.GateFactor*mean, mean+margin)
}
