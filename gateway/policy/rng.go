// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"math/bits"
	"math/rand/v2"
)

// rng is one decision's source of draws (splitmix64). Decisions share none: with a seed
// each takes its own place in the sequence, without it the runtime's source begins it.
type rng uint64

func (p *policy) rng() rng {
	if p.o.Seed == 0 {
		return rng(rand.Uint64())
	}
	return rng(mix(p.o.Seed + p.asked.Add(1)*0x9e3779b97f4a7c15))
}

func (r *rng) next() uint64 {
	*r += 0x9e3779b97f4a7c15
	return mix(uint64(*r))
}

// below returns a number under n, which is above 0.
func (r *rng) below(n int) int {
	hi, _ := bits.Mul64(r.next(), uint64(n))
	return int(hi)
}

// within returns a place in the k-th of so many equal stretches of n places, which may
// begin and end within a place: over all stretches every place is as likely.
func (r *rng) within(k, stretches, n int) int { return (k*n + r.below(n)) / stretches }

// mix spreads every bit over all.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
