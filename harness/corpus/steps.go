// SPDX-License-Identifier: Apache-2.0

package corpus

import "kindex/internal/kv"

// Step is one operation ready to be applied: its hashes lie side by side in arrays
// that were filled before any timing starts.
//
//   - Lookup: Contents are the prompt's.
//   - Store: Engines and Contents are the blocks', HasParent and Parent what they
//     follow.
//   - Remove: Engines are the blocks'.
type Step struct {
	Kind      Kind
	HasParent bool
	Worker    uint16
	Due       uint32 // deadline, of Window
	Parent    kv.EngineHash
	Engines   []kv.EngineHash
	Contents  []kv.ContentHash
}

// Blocks returns the block operations that s counts as.
func (s *Step) Blocks() int { return max(len(s.Engines), len(s.Contents)) }

// Steps returns operations from lo up to hi, ready. rename, if not nil, gives the
// engine hash that a worker uses for a block instead of the corpus's own, as engines
// with private hash seeds do.
//
// Cost: 16 bytes a node while it runs; 8 bytes a block looked up or removed and 16 a
// block stored.
func (c *Corpus) Steps(lo, hi int, rename func(worker uint16, e kv.EngineHash) kv.EngineHash) []Step {
	return c.steps(lo, hi, rename, func(Kind) bool { return true })
}

// Lookups returns the lookups of operations from lo up to hi, ready.
func (c *Corpus) Lookups(lo, hi int) []Step {
	return c.steps(lo, hi, nil, func(k Kind) bool { return k == Lookup })
}

func (c *Corpus) steps(lo, hi int, rename func(worker uint16, e kv.EngineHash) kv.EngineHash, keep func(Kind) bool) []Step {
	local, seq := c.Hashes()
	var n, engines, contents int
	for i := range c.Ops[lo:hi] {
		op := &c.Ops[lo+i]
		if !keep(op.Kind) {
			continue
		}
		n++
		switch op.Kind {
		case Lookup:
			contents += int(op.N)
		case Store:
			engines += int(op.N)
			contents += int(op.N)
		default:
			engines += int(op.N)
		}
	}
	f := flat{local: local, seq: seq, engines: make([]kv.EngineHash, 0, engines), contents: make([]kv.ContentHash, 0, contents), rename: rename}
	steps := make([]Step, 0, n)
	var path []uint32
	for i := range c.Ops[lo:hi] {
		op := &c.Ops[lo+i]
		if !keep(op.Kind) {
			continue
		}
		s := Step{Kind: op.Kind, Worker: op.Worker, Due: op.Due}
		var above uint32
		switch op.Kind {
		case Lookup:
			path, _ = c.Path(op.At, op.N, path)
			s.Contents = f.content(path)
		case Store:
			path, above = c.Path(op.At, op.N, path)
			s.Engines, s.Contents = f.engine(op.Worker, path), f.content(path)
			if above != NoNode {
				s.HasParent, s.Parent = true, f.name(op.Worker, above)
			}
		case Remove:
			s.Engines = f.engine(op.Worker, c.Gone(op))
		case Clear:
		}
		steps = append(steps, s)
	}
	return steps
}

// flat fills the arrays that steps are cut from.
type flat struct {
	local    []kv.ContentHash
	seq      []kv.EngineHash
	engines  []kv.EngineHash
	contents []kv.ContentHash
	rename   func(uint16, kv.EngineHash) kv.EngineHash
}

func (f *flat) name(worker uint16, node uint32) kv.EngineHash {
	if f.rename != nil {
		return f.rename(worker, f.seq[node])
	}
	return f.seq[node]
}

func (f *flat) engine(worker uint16, nodes []uint32) []kv.EngineHash {
	begin := len(f.engines)
	for _, x := range nodes {
		f.engines = append(f.engines, f.name(worker, x))
	}
	return f.engines[begin:len(f.engines):len(f.engines)]
}

func (f *flat) content(nodes []uint32) []kv.ContentHash {
	begin := len(f.contents)
	for _, x := range nodes {
		f.contents = append(f.contents, f.local[x])
	}
	return f.contents[begin:len(f.contents):len(f.contents)]
}
