// SPDX-License-Identifier: Apache-2.0

package corpus

import "fmt"

// DefaultRows is as many requests as the published conversation trace has.
const DefaultRows = 12_031

// The generated trace's shape, taken from the published conversation trace: 3.4
// requests a second in batches every 3 s; 39 % of them the next turn of a
// conversation that rested for half a minute or more; all prompts begin alike.
const (
	batchEvery    = 3_000  // ms
	batchMean     = 10_204 // requests a batch, thousandths
	nextTurn      = 388    // thousandths of requests
	restLeast     = 30_000 // ms
	longestPrompt = 126_195
	restingMost   = 4_096 // conversations that may go on
)

// Quantiles at 0, 5, 25, 50, 75, 95, 99 and 100 %, in tokens.
var (
	quantileAt   = [...]uint64{0, 50, 250, 500, 750, 950, 990, 1_000}
	firstPrompts = [...]uint64{891, 897, 1_336, 5_264, 13_056, 38_538, 89_869, 126_195}
	outputs      = [...]uint64{1, 10, 156, 350, 472, 698, 1_120, 2_000}
	questions    = [...]uint64{1, 4, 7, 23, 425, 7_046, 17_091, 91_467} // what a turn adds beside the answer before it
)

// source is a stream of numbers from a seed: splitmix64. All arithmetic on what it
// gives is on integers, so that every machine generates the same.
type source uint64

func (s *source) next() uint64 {
	z := mix(uint64(*s))
	*s += 0x9E37_79B9_7F4A_7C15
	return z
}

// below returns a number from 0 to n-1.
func (s *source) below(n uint64) uint64 { return s.next() % n }

// length draws a length, between two quantiles by straight line.
func (s *source) length(q *[8]uint64) uint64 {
	at := s.below(1_000_000)
	i := 1
	for at >= quantileAt[i]*1_000 {
		i++
	}
	lo, hi := quantileAt[i-1]*1_000, quantileAt[i]*1_000
	return q[i-1] + (q[i]-q[i-1])*(at-lo)/(hi-lo)
}

// talk is one conversation so far.
type talk struct {
	ids    []uint64
	tokens uint64 // prompt and answer
	rested uint64 // ms
}

// Generate makes a trace of rows requests in the shape of the published one. Equal
// arguments give equal traces on every machine.
func Generate(seed uint64, rows int) ([]Row, error) {
	if rows < 1 || rows > maxRows {
		return nil, fmt.Errorf("--rows %d: must be 1 to %d", rows, maxRows)
	}
	s := source(seed)
	out := make([]Row, 0, rows)
	var resting []talk
	fresh := uint64(1) // id 0 begins every prompt
	for now := uint64(0); len(out) < rows; now += batchEvery {
		// A batch of about batchMean, give or take half of it.
		n := (batchMean/2 + s.below(batchMean+1) + s.below(1_000)) / 1_000
		for ; n > 0 && len(out) < rows; n-- {
			t := talk{ids: []uint64{0}}
			input := s.length(&firstPrompts)
			if s.below(1_000) < nextTurn {
				if i := pick(&s, resting, now); i >= 0 {
					t = resting[i]
					resting[i] = resting[len(resting)-1]
					resting = resting[:len(resting)-1]
					input = min(t.tokens+s.length(&questions), longestPrompt)
				}
			}
			r := Row{Timestamp: now, Input: input, Output: s.length(&outputs)}
			// Ids stand for whole stretches of the prompt before; its last one may be cut.
			keep := min(uint64(len(t.ids)), max(input/TokensPerID, 1))
			r.IDs = append(r.IDs, t.ids[:keep]...)
			for uint64(len(r.IDs))*TokensPerID < input {
				r.IDs = append(r.IDs, fresh)
				fresh++
			}
			out = append(out, r)
			whole := max(input/TokensPerID, 1)
			resting = append(resting, talk{ids: r.IDs[:whole], tokens: input + r.Output, rested: now + restLeast})
			if len(resting) > restingMost {
				resting[s.below(restingMost)] = resting[restingMost]
				resting = resting[:restingMost]
			}
		}
	}
	return out, nil
}

// pick finds a conversation that has rested, or returns -1. Younger ones are likelier.
func pick(s *source, resting []talk, now uint64) int {
	for range 8 {
		n := uint64(len(resting))
		if n == 0 {
			return -1
		}
		i := max(s.below(n), s.below(n))
		if resting[i].rested <= now {
			return int(i)
		}
	}
	return -1
}
