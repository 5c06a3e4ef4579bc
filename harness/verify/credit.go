// SPDX-License-Identifier: Apache-2.0

// Before: claims.go. After: the report.

package verify

import (
	"fmt"
	"slices"

	"kindex/harness/record"
	"kindex/internal/kv"
)

// The rules of cached tokens. A prediction is made from what had arrived when
// the request was sent, by main groups and first tokens, for the rank it is for.
const (
	// ruleRankChoice: the engine chose the rank; its own store shows which, and
	// that rank's prediction is the engine's number.
	ruleRankChoice = "rank_choice"
	// ruleRestart: the engine was another one by then, with nothing cached.
	ruleRestart = "restart"
	// ruleDeferredClear: a reset had emptied the cache, and its event came with
	// the request's own step.
	ruleDeferredClear = "deferred_clear"
	// ruleMessageRace: the engine had published before the request was sent what
	// arrived after.
	ruleMessageRace = "message_race"
	// ruleInFlight: other requests ran at once and stored or evicted blocks
	// between sending and scheduling.
	ruleInFlight = "in_flight"
	// ruleEmbeddings: the prompt has no tokens; its blocks are known by the
	// engine hashes that the answer names.
	ruleEmbeddings = "prompt_embeddings"
	// ruleWindowOnly: a model without full attention, whose events tie no tokens
	// to hashes; the hashes are computed.
	ruleWindowOnly = "window_only"
	// ruleWindowGroups: a hybrid model's window groups lack the prefix's end.
	ruleWindowGroups = "window_groups"
	// ruleBigram: blocks are of token pairs, so that the pair across the end
	// must agree too.
	ruleBigram = "bigram"
	// ruleLookahead: hashes cover tokens after their block.
	ruleLookahead = "lookahead"
	// ruleHiddenNamespace: the request's namespace is not in its events; where
	// its own store begins tells what it hit.
	ruleHiddenNamespace = "hidden_namespace"
	// ruleNotLoaded: what lay in host memory was not loaded back.
	ruleNotLoaded = "not_loaded"
)

// claim ties stores to requests.
func (r *run) claim() {
	h := newHasher(&r.f.Header)
	byRequest := map[*request][]kv.EngineHash{}
	c := &claims{
		forest: r.forest, shape: r.shape, reqs: r.reqs, paths: map[*request][]posID{}, told: r.told, by: map[posID]map[string]bool{},
		hashes: func(q *request) []kv.EngineHash {
			if h == nil {
				return nil
			}
			out, ok := byRequest[q]
			if !ok {
				out = h.hashes(q, q.tokens(), r.size)
				byRequest[q] = out
			}
			return out
		},
	}
	var reps []*replica
	for i := range r.tls {
		reps = append(reps, newReplica(r.forest, r.groups[i]))
	}
	c.run(r.tls, reps)
	r.claims = c
}

// credits judges every request that the engine gave a number for.
func (r *run) credits() {
	r.tables()
	c := &r.report.Credit
	var open []*verdictOf
	for _, q := range r.reqs {
		cached, ok := q.cached()
		if !ok {
			continue
		}
		c.Requests++
		if p := r.predicted(q); p == cached && !r.contradicted(q, cached) {
			c.Exact++
			r.report.Judged = append(r.report.Judged, Judged{q.req.ID, p, cached, "", true})
			continue
		}
		open = append(open, r.explain(q))
	}
	r.swap(open)
	for _, v := range open {
		cached, _ := v.q.cached()
		ok := v.why == "" && v.rule != "" && v.tokens == cached
		r.report.Judged = append(r.report.Judged, Judged{v.q.req.ID, r.predicted(v.q), cached, v.rule, ok})
		if ok {
			c.Explained++
			c.Rules[v.rule]++
			continue
		}
		c.Wrong++
		got := fmt.Sprintf("%d predicted", r.predicted(v.q))
		switch {
		case v.why != "":
			got += "; no rule applies: " + v.why
		case v.rule == "":
			got += fmt.Sprintf("; by the events it is %d", v.tokens)
		default:
			got += fmt.Sprintf("; rule %s gives %d", v.rule, v.tokens)
		}
		r.fault(v.q.last, "cached tokens of request "+v.q.req.ID, fmt.Sprint(cached), got)
	}
}

// contradicted reports that cached, although predicted, cannot have been: alone in
// flight, or of a model that the index knows nothing of, the engine held and
// stored what a rule turns into another number.
func (r *run) contradicted(q *request, cached int) bool {
	windowOnly := len(r.groups) > 0 && (&replica{groups: r.groups[0]}).windowOnly()
	if q.overlap && !windowOnly {
		return false
	}
	v := r.explain(q)
	return v.why == "" && v.rule != "" && v.tokens != cached
}

// predicted returns the tokens a router would have counted on: those of the rank
// it asked for, else the greatest of all.
func (r *run) predicted(q *request) int {
	by := q.device
	if r.f.Header.Engine == "sglang" {
		by = q.naive // what lies in host memory is loaded back
	}
	if q.asked {
		return by[q.rank] * r.size
	}
	best := 0
	for _, n := range by {
		best = max(best, n)
	}
	return best * r.size
}

// verdictOf is what the rules say of one request.
type verdictOf struct {
	q      *request
	tokens int
	rule   string
	why    string // no rule yields a number, because
}

// explain finds the rule that applies to q and the number it yields.
func (r *run) explain(q *request) *verdictOf {
	v := &verdictOf{q: q}
	at := slices.IndexFunc(r.tls, func(tl *timeline) bool { return tl.rank == q.rank })
	if at < 0 {
		v.why = "nothing tells which rank served it"
		return v
	}
	m := r.moment(q, at)
	if m.why != "" {
		v.why = m.why
		return v
	}
	v.tokens = m.blocks * r.size
	v.rule = r.rule(q, at, m)
	return v
}

// moment is the state that a request was scheduled in.
type moment struct {
	item   int // items applied by then
	blocks int // of its hit
	why    string
	hidden bool  // blocks of another namespace that the events do not show were not its
	left   bool  // what lay in host memory was not loaded back
	trace  []int // the hit after each item from received on
	from   int
}

// moment finds out when q was scheduled and what it hit.
func (r *run) moment(q *request, at int) moment {
	tl := r.tls[at]
	received, sent := tl.at(q.line), tl.published(q.t)
	sent = max(sent, received)
	end := max(tl.published(q.end), sent)
	if q.first >= 0 {
		end = stepStart(tl, q.first)
		sent = min(sent, end)
	}
	m := moment{from: min(received, end)}
	m.trace = r.trace(q, at, m.from, end, r.f.Header.Engine == "sglang")
	hit := func(i int) int { return m.trace[i-m.from] }
	if !q.overlap {
		m.item = end
		if q.first < 0 {
			m.item = r.anchor(tl, sent, end)
		}
		if r.f.Header.Engine == "sglang" {
			m.item = sent
		}
		m.blocks = hit(m.item)
		if r.f.Header.HostTokens > 0 {
			r.loadBack(q, at, &m, max(tl.published(q.end), m.item))
		}
		begun := min(q.start, r.shape.limit(len(q.req.Prompt)))
		switch {
		case q.first < 0 || begun == m.blocks || r.f.Header.HostTokens > 0:
		case begun < m.blocks && r.othersToo(q, begun):
			m.blocks, m.hidden = begun, true
		default:
			m.why = fmt.Sprintf("%d blocks held when it was scheduled, yet its own store begins at block %d", m.blocks, q.start)
		}
		return m
	}
	// Among others, its own store says what it hit: that must have been so at
	// some moment between sending and storing.
	m.blocks = r.shape.limit(len(q.req.Prompt))
	if q.first >= 0 {
		m.blocks = min(q.start, m.blocks)
	} else if r.shape.blocks(len(q.req.Prompt)) > m.blocks {
		m.why = "no store of its last block is among the events"
		return m
	}
	for i := end; i >= sent; i-- {
		if hit(i) == m.blocks {
			m.item = i
			return m
		}
	}
	m.why = fmt.Sprintf("its own store begins at block %d, which never was its hit", m.blocks)
	return m
}

// anchor returns the first store of the device within [from, to): of a request
// alone in flight that is its own.
func (r *run) anchor(tl *timeline, from, to int) int {
	for i := from; i < to; i++ {
		if ev := tl.items[i].ev; ev != nil && ev.Kind == kv.KindStored && ev.Tier == kv.TierDevice && !r.told[ev] {
			return i
		}
	}
	return to
}

// othersToo reports whether a request of another namespace, which the events do
// not show, stored block i of q's prompt.
func (r *run) othersToo(q *request, i int) bool {
	path := r.claims.path(q)
	if i >= len(path) {
		return false
	}
	for ns := range r.claims.by[path[i]] {
		if ns != q.namespace() {
			return true
		}
	}
	return false
}

// loadBack takes from q's hit what lay in host memory only and did not come back
// to the device before the answer, as the device's stores up to item end show.
func (r *run) loadBack(q *request, at int, m *moment, end int) {
	device := r.trace(q, at, m.item, m.item, false)[0]
	path := r.claims.path(q)
	if device >= m.blocks || device >= len(path) {
		return
	}
	rep := r.replay(at, m.item, false)
	for _, it := range r.tls[at].items[m.item:end] {
		if it.ev == nil || it.ev.Kind != kv.KindStored || it.ev.Tier != kv.TierDevice {
			continue
		}
		for _, h := range it.ev.Hashes {
			if slices.Contains(rep.hashes[path[device]], h) {
				return
			}
		}
	}
	m.blocks, m.left = device, true
}

// stepStart goes back from a store to the first that its request made in the
// same step: each cache group tells the same tokens once, window groups first.
func stepStart(tl *timeline, i int) int {
	own := tl.items[i].ev
	for i > 0 && tl.items[i-1].batch == tl.items[i].batch {
		ev := tl.items[i-1].ev
		if ev == nil || ev.Kind != kv.KindStored || ev.Parent != own.Parent || ev.HasParent != own.HasParent || !slices.Equal(ev.Tokens, own.Tokens) {
			break
		}
		i--
	}
	return i
}

// trace returns q's hit in blocks after each number of items from from to to.
func (r *run) trace(q *request, at, from, to int, anyTier bool) []int {
	rep := r.replay(at, from, false)
	limit := r.shape.limit(len(q.req.Prompt))
	var hashes func(i int) []kv.EngineHash
	switch {
	case q.req.Embeds != "":
		hashes = byHashes(answerHashes(q.resp))
	case rep.windowOnly():
		hashes = byHashes(r.claims.hashes(q))
	default:
		path := r.claims.path(q)
		hashes = func(i int) []kv.EngineHash {
			if i >= len(path) {
				return nil
			}
			return rep.hashes[path[i]]
		}
	}
	out := []int{rep.hit(limit, anyTier, hashes)}
	for _, it := range r.tls[at].items[from:to] {
		rep.apply(it, it.ev != nil && r.told[it.ev])
		out = append(out, rep.hit(limit, anyTier, hashes))
	}
	return out
}

func byHashes(hs []kv.EngineHash) func(i int) []kv.EngineHash {
	return func(i int) []kv.EngineHash {
		if i >= len(hs) {
			return nil
		}
		return hs[i : i+1]
	}
}

// answerHashes returns the engine hashes that an answer names.
func answerHashes(resp *record.Resp) []kv.EngineHash {
	var out []kv.EngineHash
	if resp == nil {
		return nil
	}
	for _, s := range resp.BlockHashes {
		h, err := record.HexHash(s)
		if err != nil {
			return out
		}
		out = append(out, h)
	}
	return out
}

// rule names what made the engine's number m another one than predicted.
func (r *run) rule(q *request, at int, m moment) string {
	tl := r.tls[at]
	by := q.device
	if r.f.Header.Engine == "sglang" {
		by = q.naive
	}
	if !q.asked && by[q.rank] == m.blocks {
		return ruleRankChoice
	}
	switch {
	case m.hidden:
		return ruleHiddenNamespace
	case m.left:
		return ruleNotLoaded
	}
	if m.trace[0] == m.blocks {
		return r.contentRule(q, at)
	}
	restarted, cleared := false, false
	for _, it := range tl.items[m.from:m.item] {
		restarted = restarted || it.ev == nil
		cleared = cleared || it.ev != nil && it.ev.Kind == kv.KindCleared
	}
	sent := tl.published(q.t)
	switch {
	case restarted:
		return ruleRestart
	case cleared:
		return ruleDeferredClear
	case sent > m.from && m.trace[min(sent, m.from+len(m.trace)-1)-m.from] == m.blocks:
		return ruleMessageRace
	case q.overlap:
		return ruleInFlight
	}
	return ""
}

// contentRule names what of the engine's blocks the index does not know.
func (r *run) contentRule(q *request, at int) string {
	groups := r.groups[at]
	window := false
	for _, g := range groups {
		window = window || g.spec == kv.SpecWindow
	}
	switch {
	case q.req.Embeds != "":
		return ruleEmbeddings
	case (&replica{groups: groups}).windowOnly():
		return ruleWindowOnly
	case window:
		return ruleWindowGroups
	case r.shape.bigram:
		return ruleBigram
	case r.shape.ahead > 0:
		return ruleLookahead
	case len(r.told) > 0:
		return ruleReannounced
	}
	return ""
}

// swap lets equal requests in flight at once trade their numbers: nothing tells
// them apart, and over HTTP not the order in which the engine got them.
func (r *run) swap(open []*verdictOf) {
	for _, a := range open {
		want, _ := a.q.cached()
		if a.why != "" || a.tokens == want {
			continue
		}
		for _, q := range r.reqs {
			other, ok := q.cached()
			if !ok || q == a.q || a.tokens != other || !twins(a.q, q) {
				continue
			}
			b := r.explain(q)
			if i := slices.IndexFunc(open, func(v *verdictOf) bool { return v.q == q }); i >= 0 {
				b = open[i]
			}
			if b.why == "" && b.tokens == want {
				a.tokens, b.tokens = b.tokens, a.tokens
				a.rule, b.rule = ruleInFlight, ruleInFlight
				break
			}
		}
	}
}

// twins reports requests for the same in flight at the same time.
func twins(a, b *request) bool {
	return a.t < b.end && b.t < a.end && a.rank == b.rank && a.lora() == b.lora() &&
		a.req.Salt == b.req.Salt && a.req.ExtraKey == b.req.ExtraKey &&
		slices.Equal(a.req.MM, b.req.MM) && slices.Equal(a.req.Prompt, b.req.Prompt)
}
