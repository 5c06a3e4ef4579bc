// SPDX-License-Identifier: Apache-2.0

// Before: rank.go, which has a pass. After: nothing.

package engine

import (
	"math"
	"slices"
	"time"
)

// Timing is how long an engine's passes take.
type Timing struct {
	Prefill [3]float64 `json:"prefill_ms"` // constant, per token, per token squared
	Decode  [3]float64 `json:"decode_ms"`  // constant, per share of the cache in use (0 to 1), per its square

	// Table are measured prefills of one request alone, in ascending order of tokens:
	// between two the time lies on the line between them. Empty: Prefill holds.
	Table []Point `json:"table,omitempty"`
	// Pass is what a pass takes that computes the prompts of several requests, never
	// less than its largest would take alone. Nil: as one prompt of their length.
	Pass *PassFit `json:"pass,omitempty"`

	Reference int           `json:"reference_tokens"` // that a share of 1 means; 0: the cache's size
	Overhead  time.Duration `json:"overhead_ns"`      // by which a request comes later to the engine than to its front

	// What the measured engine had; 0: not said.
	Blocks    int `json:"-"`
	BlockSize int `json:"-"`
}

// Point is one measured prefill.
type Point struct {
	Tokens float64 `json:"tokens"`
	Ms     float64 `json:"ms"`
}

// PassFit is a line over the tokens of a pass.
type PassFit struct {
	InterceptMs float64 `json:"intercept_ms"`
	MsPerToken  float64 `json:"ms_per_token"`
}

// leastDecode is what a pass with answers in it takes at least, in ms.
const leastDecode = 1

// DefaultTiming returns the fit of a large model on one accelerator that
// AISimulate publishes for engines nobody has measured.
// Source: SMG's mock worker, whose default it is too.
func DefaultTiming() *Timing {
	return &Timing{Prefill: [3]float64{16.50142, 0.01518344, 4.209989e-7}, Decode: [3]float64{5.74, 54.01, -25.74}}
}

// took returns how long a pass takes, with used of the cache's tokens in use.
func (t *Timing) took(p *pass, used, of int) time.Duration {
	ms := 0.0
	switch {
	case p.prompts == 0:
	case t.Pass != nil && p.prompts > 1:
		ms = max(t.Pass.InterceptMs+t.Pass.MsPerToken*float64(p.prompt), t.prefill(p.largest))
	default:
		ms = t.prefill(p.prompt)
	}
	if p.decoding > 0 {
		if t.Reference > 0 {
			of = t.Reference
		}
		u := min(float64(used)/float64(max(of, 1)), 1)
		ms += max(leastDecode, t.Decode[0]+t.Decode[1]*u+t.Decode[2]*u*u)
	}
	return time.Duration(min(max(ms, 0), maxMs) * float64(time.Millisecond))
}

// prefill returns the ms that a prompt's share of n tokens takes.
func (t *Timing) prefill(n int) float64 {
	x := float64(n)
	if len(t.Table) < 2 {
		return t.Prefill[0] + t.Prefill[1]*x + t.Prefill[2]*x*x
	}
	i, _ := slices.BinarySearchFunc(t.Table, x, func(p Point, x float64) int {
		if p.Tokens < x {
			return -1
		}
		return 1
	})
	i = min(max(i, 1), len(t.Table)-1)
	a, b := t.Table[i-1], t.Table[i]
	return a.Ms + (b.Ms-a.Ms)*(x-a.Tokens)/(b.Tokens-a.Tokens)
}

// finite reports whether all of v are numbers of this world.
func finite(v ...float64) bool {
	return !slices.ContainsFunc(v, func(x float64) bool { return math.IsNaN(x) || math.IsInf(x, 0) })
}
