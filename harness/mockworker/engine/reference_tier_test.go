// SPDX-License-Identifier: Apache-2.0

package engine

import "slices"

// refTier is a tier below the device: a list of chunks, the next to go in front.
type refTier struct {
	tier  string
	most  int // chunks
	chunk int // blocks
	bare  bool
	there []refUnit
}

// refUnit is the blocks of one chunk, of a group.
type refUnit struct {
	group int
	names []string
	// of the first block, and of all
	parent         string
	tokens, second []uint32
	ahead          [][]uint32
}

// lower makes the tiers of a config.
func (r *reference) lower(c *Config) {
	for _, t := range []struct {
		name   string
		blocks int
	}{{TierHost, c.HostBlocks}, {map[bool]string{true: TierRemote, false: TierDisk}[c.DiskRemote], c.DiskBlocks}} {
		if t.blocks > 0 {
			r.tiers = append(r.tiers, &refTier{tier: t.name, most: t.blocks / c.Chunk, chunk: c.Chunk, bare: c.Offload == OffloadPlaceholder && !r.late})
		}
	}
	if r.late {
		r.policy = map[string]int{WriteThrough: 1, WriteSelected: 2, WriteBack: -1}[c.HostPolicy]
	}
}

// at returns where a tier has the chunk that ends in a block; below 0: nowhere.
func (t *refTier) at(group int, name string) int {
	return slices.IndexFunc(t.there, func(u refUnit) bool { return u.group == group && u.names[len(u.names)-1] == name })
}

// holds returns how many copies of a block a tier has.
func (t *refTier) holds(group int, name string) (n int) {
	for _, u := range t.there {
		if u.group == group && slices.Contains(u.names, name) {
			n++
		}
	}
	return n
}

// freshen makes a chunk the last to go.
func (t *refTier) freshen(i int) {
	u := t.there[i]
	t.there = append(slices.Delete(t.there, i, i+1), u)
}

// below reports whether some tier has a chunk.
func (r *reference) below(group int, name string) bool {
	return slices.ContainsFunc(r.tiers, func(t *refTier) bool { return t.at(group, name) >= 0 })
}

// foundBelow returns how many leading blocks q can begin with, of n, of which it has
// here on the device.
func (r *reference) foundBelow(q *refRequest, here, n int) int {
	if len(r.tiers) == 0 {
		return here
	}
	chunk, main := r.tiers[0].chunk, len(r.windows)-1
	all := here
	for past := (here/chunk + 1) * chunk; past <= n && (r.windows[main] > 0 || r.below(main, r.name(q, past-1))); past += chunk {
		all = past
	}
	for ; all > here; all-- {
		ok := true
		for g, window := range r.windows {
			for i := max(all-r.must(g), here); window > 0 && i < all; i++ {
				ok = ok && r.below(g, r.name(q, i))
			}
		}
		if ok {
			break
		}
	}
	return all
}

// askBelow notes that q's blocks from here to all are loaded.
func (r *reference) askBelow(q *refRequest, here, all int) {
	r.loaded += all - here
	if all == here {
		return
	}
	for _, t := range r.tiers {
		for g := range r.windows {
			for k := all / t.chunk; k > here/t.chunk; k-- {
				if i := t.at(g, r.name(q, k*t.chunk-1)); i >= 0 {
					t.freshen(i)
				}
			}
		}
	}
}

// unit returns the chunk of q's blocks from first to past.
func (r *reference) unit(q *refRequest, g, first, past int) refUnit {
	u := refUnit{group: g, parent: r.name(q, first-1), tokens: slices.Clone(q.tokens[first*r.size : past*r.size])}
	for i := first; i < past; i++ {
		u.names = append(u.names, r.name(q, i))
		if r.ahead > 0 && !r.pairs {
			u.ahead = append(u.ahead, q.tokens[(i+1)*r.size:(i+1)*r.size+r.ahead])
		}
	}
	if r.pairs {
		u.second = slices.Clone(q.tokens[first*r.size+1 : past*r.size+1])
	}
	return u
}

// due notes what is to be copied of q's blocks that were just stored.
func (r *reference) due(q *refRequest, g int, stored []int) {
	if len(r.tiers) == 0 {
		return
	}
	var run []refUnit
	chunk := r.tiers[0].chunk
	for _, i := range stored {
		if (i+1)%chunk == 0 {
			run = append(run, r.unit(q, g, i+1-chunk, i+1))
		}
	}
	r.copied = append(r.copied, run)
}

// ask counts that q's cached blocks were asked for, or put in.
func (r *reference) ask(q *refRequest) {
	if len(r.tiers) == 0 || r.policy < 1 {
		return
	}
	var run []refUnit
	for i := range q.cachedTo[0] {
		name := r.name(q, i)
		if r.asks[name]++; r.asks[name] >= r.policy && !r.below(0, name) {
			run = append(run, r.unit(q, 0, i, i+1))
			continue
		}
		r.copied = append(r.copied, run)
		run = nil
	}
	r.copied = append(r.copied, run)
}

// forget forgets how often a block that is nowhere was asked for.
func (r *reference) forget(name string) {
	for g := range r.windows {
		if len(r.copies[in(g, name)]) > 0 {
			return
		}
		for _, t := range r.tiers {
			if t.holds(g, name) > 0 {
				return
			}
		}
	}
	delete(r.asks, name)
}

// offload copies what waits for it.
func (r *reference) offload() {
	for _, run := range r.copied {
		for _, t := range r.tiers {
			r.copyTo(t, run, true)
		}
	}
	r.copied = nil
}

// copyTo copies chunks to a tier; those that must be on the device and are not are
// left out.
func (r *reference) copyTo(t *refTier, run []refUnit, must bool) {
	run = run[:min(len(run), t.most)]
	var fresh []refUnit
	for _, u := range slices.Backward(run) {
		if i := t.at(u.group, u.names[len(u.names)-1]); i >= 0 {
			t.freshen(i)
			continue
		}
		if !must || !slices.ContainsFunc(u.names, func(name string) bool { return len(r.copies[in(u.group, name)]) == 0 }) {
			fresh = append(fresh, u)
		}
	}
	var gone refEvent
	for len(t.there)+len(fresh) > t.most {
		u := t.there[0]
		t.there = t.there[1:]
		r.dropped++
		if len(gone.names) > 0 && gone.group != u.group {
			r.events = append(r.events, gone)
			gone.names = nil
		}
		gone = refEvent{removed: true, tier: t.tier, group: u.group, names: append(gone.names, u.names...)}
	}
	if len(gone.names) > 0 {
		r.events = append(r.events, gone)
	}
	for name := range r.asks {
		r.forget(name)
	}
	t.there = append(t.there, fresh...)
	for _, u := range slices.Backward(fresh) {
		r.lowered++
		r.events = append(r.events, refEvent{
			tier: t.tier, group: u.group, names: slices.Clone(u.names), parent: u.parent, tokens: slices.Clone(u.tokens), second: slices.Clone(u.second),
			ahead: u.ahead, bare: t.bare,
		})
	}
}

// saveLost copies what the device lost to the tiers that get it only then, the blocks
// of a chain together, and tells of the loss.
func (r *reference) saveLost(lost []string) {
	for len(lost) > 0 {
		n := 1
		for n < len(lost) && r.up[lost[n-1]] == lost[n] {
			n++
		}
		var run []refUnit
		for _, name := range slices.Backward(lost[:n]) {
			run = append(run, r.units[name])
		}
		for _, t := range r.tiers {
			r.copyTo(t, run, false)
		}
		for _, name := range lost[:n] {
			r.events = append(r.events, refEvent{removed: true, tier: TierDevice, names: []string{name}})
		}
		lost = lost[n:]
	}
}

// publish hands on what was told since the last time, of SGLang's with neighbours
// made one.
func (r *reference) publish() {
	for _, e := range r.events {
		n := len(r.told)
		if !r.late || n == r.fence || e.cleared || r.told[n-1].cleared || r.told[n-1].removed != e.removed || r.told[n-1].tier != e.tier {
			r.told = append(r.told, e)
			continue
		}
		last := &r.told[n-1]
		switch {
		case e.removed: // below
			last.names = append(last.names, e.names...)
		case e.parent != "" && e.parent == last.names[len(last.names)-1]:
			last.names, last.tokens, last.second = append(last.names, e.names...), append(last.tokens, e.tokens...), append(last.second, e.second...)
		default:
			r.told = append(r.told, e)
		}
	}
	if r.late { // of removals those of a chain in its order
		for k := r.fence; k < len(r.told); k++ {
			if e := &r.told[k]; e.removed {
				e.names = r.upright(e.names)
			}
		}
	}
	r.events, r.fence = nil, len(r.told)
}

// upright turns each run of names round in which each is above the one before it.
func (r *reference) upright(names []string) (out []string) {
	for len(names) > 0 {
		n := 1
		for n < len(names) && r.up[names[n-1]] == names[n] {
			n++
		}
		run := slices.Clone(names[:n])
		slices.Reverse(run)
		out, names = append(out, run...), names[n:]
	}
	return out
}

// content returns how many copies of each block are where.
func (r *reference) content() map[refPlace]int {
	out := map[refPlace]int{}
	for _, full := range r.called {
		if full != "" {
			group, name := cutName(full)
			out[refPlace{name, TierDevice, group}]++
		}
	}
	for _, t := range r.tiers {
		for _, u := range t.there {
			for _, name := range u.names {
				out[refPlace{name, t.tier, u.group}]++
			}
		}
	}
	return out
}
