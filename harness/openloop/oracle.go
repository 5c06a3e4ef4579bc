// SPDX-License-Identifier: Apache-2.0

// Before: run.go, which has rows and when they are due. After: summary.go.

package openloop

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"kindex/harness/mockworker/engine"
)

// maxModelled bounds the blocks of a fleet that is modelled: each takes some 300 bytes.
const maxModelled = 1 << 22

// maxShaped bounds the workers of a fleet that is told on the command line.
const maxShaped = 256

// errTooMany is a fleet that is too large to be modelled.
var errTooMany = errors.New("too large to be modelled")

// usualShape is a worker of which no more is known.
func usualShape(blocks, blockSize int) engine.Shape {
	return engine.Shape{Engine: engine.VLLM, Blocks: blocks, BlockSize: blockSize, ContextLength: maxTokens, Timing: engine.DefaultTiming()}
}

// oracle is what a fleet of known shape reuses of a trace behind an ideal router: the
// mock's own engine model, a model a rank, in virtual time, each request submitted at
// its due time. It depends on rows, due times, answers' lengths, seed and shapes alone.
//
// # Ideal routers
//
// An ideal router knows every cache as it is. No one rule is best for every trace, so
// each of [routers] is tried, and the run that reused the most tokens is the oracle.
//
// Concurrency: one goroutine.
type oracle struct {
	shapes []engine.Shape // by worker
	rows   []Row
	due    []time.Duration
	bodies *bodies
	reuse  *endless // that has seen all rows
	most   []int    // prefix reuse, by row, of blocks of one token
	serial bool     // each request once all before it ended
	say    func(done, all int)
}

// router is how an ideal router chooses among places that would reuse some of a prompt,
// of which common tokens are a beginning that no one place can serve all rows of.
type router struct {
	name  string
	score func(reuse, common, waiting int) int // the largest is chosen; of equals the place that was given least
}

// routers are the ideal ones.
var routers = []router{
	// Where most is reused, a beginning aside that more rows share than are a place's part
	// of all: it draws all of them to the one place that has it first.
	{"most reuse beyond common beginnings", func(reuse, common, _ int) int {
		if reuse <= common {
			return 0
		}
		return reuse
	}},
	// Where the fewest tokens are computed before its first.
	{"soonest first token", func(reuse, _, waiting int) int { return reuse - waiting }},
	// Where most of it is reused.
	{"most reuse", func(reuse, _, _ int) int { return reuse }},
}

// foreseen is what the oracle found.
type foreseen struct {
	router  string
	cached  []int // by row
	total   int
	refused int // rows that no worker of the fleet can take
}

// Shape is a fleet of equal workers of one rank. The zero value is none.
type Shape struct {
	Workers, Blocks, BlockSize int // blocks of a worker, tokens of a block
}

// String implements [flag.Value].
func (s *Shape) String() string {
	if s.Workers == 0 {
		return ""
	}
	return fmt.Sprintf("%dx%dx%d", s.Workers, s.Blocks, s.BlockSize)
}

// Set implements [flag.Value].
func (s *Shape) Set(text string) error {
	var n [3]int
	parts := strings.Split(text, "x")
	bad := len(parts) != len(n)
	for i := 0; i < len(n) && !bad; i++ {
		v, err := strconv.ParseUint(parts[i], 10, 31)
		n[i], bad = int(v), err != nil || v == 0
	}
	if bad || n[0] > maxShaped || n[2] > maxTokens || size(slices.Repeat([]engine.Shape{{Blocks: n[1]}}, n[0])) > maxModelled {
		return fmt.Errorf("must be WORKERSxBLOCKSxTOKENS, like 8x32768x16: at most %d workers, %d blocks in all, of at most %d tokens", maxShaped, maxModelled, maxTokens)
	}
	*s = Shape{n[0], n[1], n[2]}
	return nil
}

// shapes returns the fleet's workers'.
func (s *Shape) shapes() []engine.Shape {
	return slices.Repeat([]engine.Shape{usualShape(s.Blocks, s.BlockSize)}, s.Workers)
}

// size returns how many blocks a fleet has; past [maxModelled] the largest number.
func size(shapes []engine.Shape) (blocks int) {
	for i := range shapes {
		s := &shapes[i]
		if max(s.Ranks, s.Blocks, s.HostBlocks) > maxModelled { // their product may be past all numbers
			return math.MaxInt
		}
		blocks += (max(s.Blocks, 1) + max(s.HostBlocks, 0)) * max(s.Ranks, 1)
		if blocks > maxModelled {
			return math.MaxInt
		}
	}
	return blocks
}

// run tries every router.
//
// Errors: a shape that no engine has, ctx's.
func (o *oracle) run(ctx context.Context) (*foreseen, error) {
	if size(o.shapes) > maxModelled {
		return nil, fmt.Errorf("%w: over %d blocks", errTooMany, maxModelled)
	}
	var best *foreseen
	for i := range routers {
		beat := -1
		if best != nil {
			beat = best.total
		}
		got, err := o.try(ctx, i, beat)
		if err != nil {
			return nil, err
		}
		if got != nil {
			best = got
		}
	}
	return best, nil
}

// place is one rank of the fleet.
type place struct {
	model  *engine.Model
	alike  int      // the first place whose prompts are hashed as this one's
	given  int      // tokens to compute of all requests that it was given
	flying []flight // without a first token, oldest first
}

// flight is a request without a first token.
type flight struct {
	out     <-chan engine.Output
	compute int // tokens
}

// waiting returns how many tokens are to be computed before what comes next.
func (p *place) waiting() (tokens int) {
	p.flying = slices.DeleteFunc(p.flying, func(f flight) bool { return len(f.out) > 0 })
	for i := range p.flying {
		tokens += p.flying[i].compute
	}
	return tokens
}

// open makes the fleet, which tells what was cached of each row as that ends.
func (o *oracle) open(ended func(i, cached int)) ([]*place, error) {
	var places []*place
	for i := range o.shapes {
		s := &o.shapes[i]
		alike := slices.IndexFunc(o.shapes, func(t engine.Shape) bool {
			return t.Engine == s.Engine && t.Version == s.Version && t.BlockSize == s.BlockSize
		})
		for range max(s.Ranks, 1) {
			if s.Blocks < 1 || s.BlockSize < 1 {
				return nil, fmt.Errorf("worker %d cannot be modelled: %d blocks of %d tokens", i, s.Blocks, s.BlockSize)
			}
			c := s.Config()
			c.Ended = func(s engine.Stats) {
				if i, err := strconv.Atoi(s.ID); err == nil {
					ended(i, s.Cached)
				}
			}
			m, err := engine.NewModel(c)
			if err != nil {
				return nil, fmt.Errorf("worker %d cannot be modelled: %w", i, err)
			}
			places = append(places, &place{model: m, alike: alike})
		}
	}
	return places, nil
}

// try runs the trace behind the nth router; nil where that reuses no more than so many
// tokens, which is seen as soon as it cannot any more.
func (o *oracle) try(ctx context.Context, nth, beat int) (*foreseen, error) {
	by := &routers[nth]
	out := &foreseen{router: by.name, cached: make([]int, len(o.rows))}
	can := 0 // be reused at most: what nobody can lose any more is counted as it was
	for _, n := range o.most {
		can += n
	}
	places, err := o.open(func(i, cached int) {
		out.cached[i] = cached
		out.total += cached
		can += cached - o.most[i]
	})
	if err != nil {
		return nil, err
	}
	var tokens []uint32
	for i := range o.rows {
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case can <= beat:
			return nil, nil //nolint:nilnil // said above
		}
		for _, p := range places {
			if o.serial {
				p.model.Drain()
			} else {
				p.model.Advance(o.due[i])
			}
		}
		tokens = o.bodies.prompts.appendIDs(tokens[:0], &o.rows[i])
		if !o.submit(places, by, i, tokens) {
			out.refused++
			can -= o.most[i]
		}
		o.say(nth*len(o.rows)+i, len(routers)*len(o.rows))
	}
	for _, p := range places {
		p.model.Drain()
	}
	if out.total <= beat {
		return nil, nil //nolint:nilnil // said above
	}
	return out, nil
}

// submit hands a row to the place that the router chooses, and reports whether that
// took it: what the best one is too small for is taken by none.
func (o *oracle) submit(places []*place, by *router, i int, tokens []uint32) bool {
	row := &o.rows[i]
	common := o.reuse.common(&o.bodies.prompts, row, len(o.rows)/len(places))
	hashed := make(map[int]*engine.Prompt, 1)
	var best *place
	most, bestReuse := 0, 0
	for _, p := range places {
		prompt := hashed[p.alike]
		if prompt == nil {
			prompt = p.model.Prompt(tokens, "", "")
			hashed[p.alike] = prompt
		}
		reuse := p.model.Reuse(prompt).Used * p.model.BlockSize()
		score := by.score(reuse, common, p.waiting())
		if best == nil || score > most || score == most && p.given < best.given {
			best, most, bestReuse = p, score, reuse
		}
	}
	q := engine.Request{ID: strconv.Itoa(i), Tokens: tokens, MaxTokens: o.bodies.output(row), Prompt: hashed[best.alike]}
	out, err := best.model.Submit(q)
	if err != nil {
		return false
	}
	compute := len(tokens) - bestReuse
	best.given += compute
	best.flying = append(best.flying, flight{out, compute})
	return true
}
