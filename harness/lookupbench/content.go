// SPDX-License-Identifier: Apache-2.0

// Before: nothing, a seed. After: fill.go, which announces it, and arms.go, which asks.

package lookupbench

import (
	"math/rand/v2"
	"slices"
	"strconv"

	"kindex/internal/kv"
	"kindex/internal/lookup"
)

// Shape of the content: chosen, not measured. A group of prompts begins alike, as behind
// one system prompt, and goes to the same few instances, as a router sends it; two hold
// each prompt whole, the others as far as their eviction left it.
const (
	blockTokens  = 16
	promptBlocks = 64
	groupPrompts = 8
	sharedBlocks = 32
	holdersEach  = 4
	wholeHolders = 2
	vocabulary   = 128_000
	modelName    = "m"
)

// prompt is one chain and who holds how much of it.
type prompt struct {
	tokens  []uint32
	engines []kv.EngineHash
	depth   [holdersEach]int // blocks stored, by the group's holder
}

// group is prompts with a beginning in common.
type group struct {
	holders [holdersEach]int // instances, from 0
	prompts [groupPrompts]prompt
}

// world is the content of all instances.
type world struct {
	groups      []group
	memberships int
}

// newWorld makes content of at least so many memberships, by less than a group more.
func newWorld(o *Options) *world {
	rng := rand.New(rand.NewPCG(o.Seed, 0x776f726c64)) //nolint:gosec // seeded on purpose
	w := &world{}
	for w.memberships < o.Memberships {
		var g group
		copy(g.holders[:], rng.Perm(o.Instances))
		shared := randomTokens(rng, sharedBlocks)
		for i := range g.prompts {
			p := &g.prompts[i]
			p.tokens = append(slices.Clone(shared), randomTokens(rng, promptBlocks-sharedBlocks)...)
			p.engines = enginesOf(p.tokens)
			for h := range p.depth {
				if p.depth[h] = promptBlocks; h >= wholeHolders {
					p.depth[h] = 1 + rng.IntN(promptBlocks)
				}
			}
		}
		for h := range g.holders {
			w.memberships += g.beginning(h)
			for i := range g.prompts {
				w.memberships += max(g.prompts[i].depth[h]-sharedBlocks, 0)
			}
		}
		w.groups = append(w.groups, g)
	}
	return w
}

func randomTokens(rng *rand.Rand, blocks int) []uint32 {
	t := make([]uint32, blocks*blockTokens)
	for i := range t {
		t[i] = rng.Uint32N(vocabulary)
	}
	return t
}

func hashesOf(tokens []uint32) []kv.ContentHash {
	b := kv.Blocks{Tokens: tokens, BlockSize: blockTokens}
	return b.AppendHashes(nil, kv.HashSeed)
}

// enginesOf returns what every engine calls the blocks of tokens: all name them alike, as
// engines with one hash seed do. The peer needs that.
func enginesOf(tokens []uint32) (all []kv.EngineHash) {
	above := uint64(1)
	for _, c := range hashesOf(tokens) {
		above = (above ^ uint64(c)) * 0x9E3779B97F4A7C15
		all = append(all, kv.EngineHash(above))
	}
	return all
}

// beginning returns how much of the common blocks the group's holder h has.
func (g *group) beginning(h int) (n int) {
	for i := range g.prompts {
		n = max(n, min(g.prompts[i].depth[h], sharedBlocks))
	}
	return n
}

// question is one in the form of each way, and what is right.
type question struct {
	query        lookup.Query
	hash, tokens []byte // bodies of /query_by_hash and /query
	want         []lookup.Match
	scores       map[string]map[string]int
}

// questions makes n of them: three of four about a whole prompt, the others leave theirs
// somewhere.
func (w *world) questions(n int, seed uint64) []question {
	rng := rand.New(rand.NewPCG(seed, 0x71756573)) //nolint:gosec // seeded on purpose
	all := make([]question, n)
	for i := range all {
		g := &w.groups[rng.IntN(len(w.groups))]
		p := &g.prompts[rng.IntN(groupPrompts)]
		cut := promptBlocks
		tokens := p.tokens
		if i%4 == 3 {
			cut = rng.IntN(promptBlocks)
			tokens = append(slices.Clone(p.tokens[:cut*blockTokens]), randomTokens(rng, promptBlocks-cut)...)
		}
		all[i] = newQuestion(g, p, cut, tokens)
	}
	return all
}

// newQuestion asks for tokens, whose first cut blocks are p's.
func newQuestion(g *group, p *prompt, cut int, tokens []uint32) question {
	q := question{scores: map[string]map[string]int{}}
	q.query = lookup.Query{Model: modelName, Hashes: hashesOf(tokens)}
	for h, instance := range g.holders {
		d := min(cut, max(p.depth[h], g.beginning(h)))
		// Where a holder's copy of this prompt ends within the common blocks, another's
		// goes on as far as these go.
		if d == 0 {
			continue
		}
		id := strconv.Itoa(instance + 1)
		depth := uint32(d)
		q.want = append(q.want, lookup.Match{Instance: id, Number: true, Device: depth, Host: depth, Any: depth})
		q.scores[id] = map[string]int{"0": d * blockTokens}
	}
	slices.SortFunc(q.want, func(a, b lookup.Match) int {
		if a.Any != b.Any {
			return int(b.Any) - int(a.Any)
		}
		x, _ := strconv.Atoi(a.Instance)
		y, _ := strconv.Atoi(b.Instance)
		return x - y // the order of registration
	})
	q.hash = append(q.hash, `{"model_name":"`+modelName+`","block_hashes":[`...)
	for i, x := range q.query.Hashes {
		if i > 0 {
			q.hash = append(q.hash, ',')
		}
		q.hash = strconv.AppendInt(q.hash, int64(x), 10)
	}
	q.hash = append(q.hash, "]}"...)
	q.tokens = append(q.tokens, `{"model_name":"`+modelName+`","token_ids":[`...)
	for i, x := range tokens {
		if i > 0 {
			q.tokens = append(q.tokens, ',')
		}
		q.tokens = strconv.AppendUint(q.tokens, uint64(x), 10)
	}
	q.tokens = append(q.tokens, "]}"...)
	return q
}

// right tells whether a reply over HTTP says what q's content is.
func (q *question) right(body []byte) bool { return sameScores(body, q.scores) }
