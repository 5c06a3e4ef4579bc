// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"kindex/internal/kv"
	"kindex/internal/longtest"
)

// choices is where a run's choices come from: a seed, or a fuzzer's bytes.
type choices interface {
	// IntN returns one of 0 to n-1.
	IntN(n int) int
}

// byteChoices makes choices of bytes; after their end all are 0.
type byteChoices struct{ left []byte }

func (b *byteChoices) IntN(n int) int {
	if len(b.left) < 2 {
		b.left = nil
		return 0
	}
	v := binary.LittleEndian.Uint16(b.left)
	b.left = b.left[2:]
	return int(v) % n
}

// pair is the model and the reference, side by side.
type pair struct {
	t     testing.TB
	from  choices
	model *Model
	ref   *reference
	cfg   Config

	asked map[string]*refRequest
	outs  map[string]<-chan Output
	past  [][]uint32               // what was asked and answered
	names map[kv.EngineHash]string // what a hash stands for
	hash  map[string]kv.EngineHash // and back
	held  map[refPlace]int         // copies, as events tell
	room  int                      // tokens that a request can have
	total struct{ requests, cleared int }
}

// refPlace is where a block can be.
type refPlace struct {
	name  string
	tier  string
	group int
}

// newPair makes a pair of a random config. Half of them have nothing but the pool.
func newPair(t testing.TB, engine string, from choices) *pair {
	t.Helper()
	p := &pair{
		t: t, from: from, asked: map[string]*refRequest{}, outs: map[string]<-chan Output{},
		names: map[kv.EngineHash]string{}, hash: map[string]kv.EngineHash{}, held: map[refPlace]int{},
		cfg: Config{
			Engine: engine, Hash: "xxhash_cbor", BlockSize: 1 + from.IntN(5), Blocks: 6 + from.IntN(40), Budget: 1 + from.IntN(50),
			MaxRunning: 1 + from.IntN(12), AdmitByChunk: from.IntN(3) == 0,
		},
	}
	if from.IntN(2) == 0 {
		p.more()
	}
	for p.cfg.needs(2) > p.cfg.Blocks {
		p.cfg.Blocks++ // a token and its answer fit
	}
	var err error
	if p.model, err = NewModel(p.cfg); err != nil {
		t.Fatal(err)
	}
	p.cfg = *p.model.rank.cfg
	p.ref = newReference(&p.cfg)
	for p.room < p.cfg.Blocks*p.cfg.BlockSize && p.cfg.needs(p.room+1) <= p.cfg.Blocks {
		p.room++
	}
	return p
}

// more adds what a cache can have beyond its pool.
func (p *pair) more() {
	c, n := &p.cfg, p.from.IntN
	if n(2) == 0 {
		c.HostBlocks = 1 + n(90)
	}
	if c.Engine == SGLang {
		c.Bigram = n(2) == 0
		if c.HostBlocks > 0 {
			c.HostPolicy = []string{WriteThrough, WriteSelected, WriteBack}[n(3)]
		}
		return
	}
	c.Offload = []string{OffloadPlaceholder, OffloadDescribed, OffloadSimple}[n(3)]
	c.Lookahead = max(n(7)-3, 0)
	if n(3) == 0 {
		c.DiskBlocks, c.DiskRemote = 1+n(70), n(2) == 0
	}
	for range max(n(5)-1, 0) {
		c.Windows = append(c.Windows, 2+n(4*c.BlockSize))
	}
	if len(c.Windows) > 0 {
		c.WindowOnly = n(4) == 0
		c.Retention = []int{0, -1, c.BlockSize * (1 + n(6))}[n(3)]
		c.Blocks += n(30) * len(c.Windows)
	} else if c.Offload != OffloadPlaceholder && n(2) == 0 && c.HostBlocks+c.DiskBlocks > 0 {
		c.Chunk = 1 + n(4)
		if c.HostBlocks > 0 {
			c.HostBlocks += c.Chunk
		}
		if c.DiskBlocks > 0 {
			c.DiskBlocks += c.Chunk
		}
	}
}

// ask puts one more request to both.
func (p *pair) ask() {
	p.t.Helper()
	room := p.room
	prefix := []uint32{}
	if n := len(p.past); n > 0 && p.from.IntN(3) > 0 {
		prefix = p.past[n-1-p.from.IntN(min(n, 6))]
		prefix = prefix[:p.from.IntN(len(prefix)+1)]
	}
	tail := p.from.IntN(1 + room/3)
	if p.from.IntN(4) == 0 {
		tail = (p.cfg.BlockSize - len(prefix)%p.cfg.BlockSize) % p.cfg.BlockSize
	}
	tokens := slices.Clone(prefix)
	for range tail {
		tokens = append(tokens, uint32(p.from.IntN(2)))
	}
	if len(tokens) == 0 {
		tokens = []uint32{7}
	}
	tokens = tokens[:min(len(tokens), room-1)]
	answer := make([]uint32, 1+p.from.IntN(min(room-len(tokens), 12)))
	for i := range answer {
		answer[i] = uint32(p.from.IntN(2))
	}
	id := fmt.Sprint(p.total.requests)
	p.total.requests++
	salt := ""
	if p.from.IntN(8) == 0 {
		salt = "s"
	}
	out, err := p.model.Submit(Request{ID: id, Tokens: tokens, Salt: salt, MaxTokens: len(answer), Answer: answer})
	if err != nil {
		p.t.Fatal(err)
	}
	q := &refRequest{id: id, salt: salt, tokens: slices.Clone(tokens), prompt: len(tokens), answer: answer}
	p.ref.waiting = append(p.ref.waiting, q)
	p.asked[id], p.outs[id] = q, out
	p.past = append(p.past, slices.Concat(tokens, answer))
}

// abort ends a request that is somewhere, in both.
func (p *pair) abort() {
	p.t.Helper()
	all := slices.Concat(p.ref.running, p.ref.waiting)
	if len(all) == 0 {
		return
	}
	q := all[p.from.IntN(len(all))]
	if !p.model.Abort(q.id) {
		p.t.Fatalf("request %s is not in the model", q.id)
	}
	p.ref.end(q)
	var last Output
	for last = range p.outs[q.id] {
		continue
	}
	if last.Finish != aborted || last.Generated != len(q.tokens)-q.prompt {
		p.t.Fatalf("request %s: aborted with %+v", q.id, last)
	}
}

// step makes one pass of both, and compares all that can be seen of it.
func (p *pair) step() {
	p.t.Helper()
	_, ok := p.model.rank.begin()
	if want := p.ref.schedule(); ok != want {
		p.t.Fatalf("a pass: %v, the reference %v", ok, want)
	}
	if !ok {
		p.model.rank.idle()
		if p.cfg.Engine == SGLang {
			p.publish()
		}
		p.compareState()
		return
	}
	if p.from.IntN(30) == 0 {
		p.abort()
	}
	p.model.rank.finish()
	for _, q := range p.ref.settle() {
		o := <-p.outs[q.id]
		n := len(q.tokens) - q.prompt
		if o.Token != q.tokens[len(q.tokens)-1] || o.Generated != n || o.Cached != q.hit || (o.Finish != "") != q.gone {
			p.t.Fatalf("request %s: %+v, the reference: token %d of %d, %d cached, ended %v", q.id, o, n, len(q.answer), q.hit, q.gone)
		}
	}
	p.publish()
	p.compareState()
}

// publish has the reference publish, and holds both's events against each other.
func (p *pair) publish() {
	p.t.Helper()
	p.ref.publish()
	p.ref.offload()
	p.ref.publish()
	p.compareEvents(p.model.sink.take())
}

// compareEvents holds a pass's events against the reference's.
func (p *pair) compareEvents(events []kv.Event) {
	p.t.Helper()
	want := p.ref.told
	p.ref.told, p.ref.fence = nil, 0
	if len(events) != len(want) {
		p.t.Fatalf("%d events, the reference has %d: %+v, want %+v", len(events), len(want), events, want)
	}
	for i := range events {
		p.compareEvent(&events[i], &want[i])
	}
}

func (p *pair) compareEvent(got *kv.Event, want *refEvent) {
	p.t.Helper()
	if want.cleared || got.Kind == kv.KindCleared {
		if !want.cleared || got.Kind != kv.KindCleared {
			p.t.Fatalf("event %+v, the reference's %+v", got, want)
		}
		clear(p.held)
		p.total.cleared++
		return
	}
	tokens := want.tokens
	hasParent := want.parent != ""
	if want.bare {
		tokens, hasParent = nil, false
		want.ahead, want.second = nil, nil
	}
	at := placeOf(got, 0)
	switch {
	case want.removed != (got.Kind == kv.KindRemoved), len(got.Hashes) != len(want.names), got.HasParent != hasParent,
		at.tier != want.tier, at.group != want.group:
		p.t.Fatalf("event %+v, the reference's %+v", got, want)
	case got.HasParent && p.hash[want.parent] != 0 && got.Parent != p.hash[want.parent], !slices.Equal(got.Tokens, tokens), !slices.Equal(got.Second, want.second),
		!slices.EqualFunc(got.Lookahead, want.ahead, slices.Equal[[]uint32]):
		p.t.Fatalf("event %+v, the reference's %+v, whose parent is %d", got, want, p.hash[want.parent])
	case !want.removed && !want.bare && got.BlockSize != p.cfg.BlockSize, (got.Locality == kv.LocalityRemote) != (want.tier == TierRemote):
		p.t.Fatalf("event %+v, the reference's %+v", got, want)
	}
	for i, h := range got.Hashes {
		name := want.names[i]
		if known, ok := p.hash[name]; ok && known != h || p.names[h] != "" && p.names[h] != name {
			p.t.Fatalf("hash %d for %q, it was %d before", h, name, known)
		}
		p.hash[name], p.names[h] = h, name
		at := refPlace{name, want.tier, want.group}
		if want.removed {
			p.held[at]--
		} else {
			p.held[at]++
		}
		if p.held[at] == 0 {
			delete(p.held, at)
		}
	}
}

// compareState holds the lists, the free queue and the content against the
// reference's.
func (p *pair) compareState() {
	p.t.Helper()
	s := &p.model.rank.sched
	if err := s.check(); err != nil {
		p.t.Fatal(err)
	}
	for _, lists := range []struct {
		got  []*job
		want []*refRequest
	}{{s.running, p.ref.running}, {s.waiting, p.ref.waiting}} {
		same := func(j *job, q *refRequest) bool { return j.ID == q.id && j.computed == q.done }
		if !slices.EqualFunc(lists.got, lists.want, same) {
			p.t.Fatalf("%d requests in a list, the reference has %d, or others", len(lists.got), len(lists.want))
		}
	}
	free := []int{}
	for i := s.cache.pool.first; i != none; i = s.cache.pool.blocks[i].after {
		free = append(free, int(i))
	}
	if !slices.Equal(free, p.ref.free) {
		p.t.Fatalf("free: %v, the reference %v", free, p.ref.free)
	}
	if len(s.cache.events) > 0 {
		return // the content is ahead of what was told
	}
	want := p.ref.content()
	if !maps.Equal(want, p.held) {
		p.t.Fatalf("the events tell of %d blocks, the reference has %d: %v, want %v", len(p.held), len(want), p.held, want)
	}
	content := s.cache.content()
	if len(content) != len(want) {
		p.t.Fatalf("%d blocks cached, the reference %d", len(content), len(want))
	}
	for _, b := range content {
		if n := want[refPlace{p.names[b.Engine], b.Tier, b.Group}]; b.Copies != n {
			p.t.Fatalf("block %d: %d copies, the reference %d", b.Engine, b.Copies, n)
		}
	}
}

// run makes n requests, and passes until all are answered.
func (p *pair) run(n int) {
	p.t.Helper()
	for p.total.requests < n {
		switch k := p.from.IntN(16); {
		case k < 7 && len(p.ref.waiting) < 8:
			for range 1 + p.from.IntN(3) {
				p.ask()
			}
		case k == 7:
			p.abort()
		case k == 8 && p.from.IntN(4) == 0:
			p.reset()
		}
		p.step()
	}
	for len(p.ref.running)+len(p.ref.waiting) > 0 {
		p.step()
	}
}

// reset empties both caches, half of the time once everybody has left.
func (p *pair) reset() {
	p.t.Helper()
	if p.from.IntN(2) == 0 {
		for len(p.ref.running)+len(p.ref.waiting) > 0 {
			p.abort()
		}
	}
	ok := p.model.Reset()
	if want := p.ref.empty(); ok != want {
		p.t.Fatalf("a reset: %v, the reference %v", ok, want)
	}
}

// TestSchedulerAgainstReference makes 1,000 random requests and more, both engines'
// rules, configs of all kinds: after each pass the model and an independent
// reference agree on every token, every cached count, every event and its place,
// the lists, and the order of the free queue; and the pool's invariants hold.
func TestSchedulerAgainstReference(t *testing.T) {
	const each = 60
	for _, engine := range []string{VLLM, SGLang} {
		t.Run(engine, func(t *testing.T) {
			var s, least sight
			for seed := range uint64(longtest.N(40, 1_000)) {
				p := newPair(t, engine, rand.New(rand.NewPCG(seed, 11)))
				p.run(each)
				s.add(p)
			}
			t.Logf("%+v", s)
			least = sight{
				requests: 2_000, hits: 400, shares: 200, preempted: 50, evicted: 1_000, shared: 200, twins: 20, cleared: 5,
				loaded: 100, lowered: 500, dropped: 100, ahead: 100, policies: 3, both: 100,
			}
			if engine == VLLM {
				least.slid, least.windowOnly, least.chunked, least.policies = 200, 60, 60, 1
			}
			if !s.atLeast(&least) {
				t.Errorf("the run shows little: want at least %+v", least)
			}
		})
	}
}

// sight is what runs showed.
type sight struct {
	requests, hits, shares, preempted, evicted, shared, twins, cleared int
	slid, loaded, lowered, dropped                                     int // blocks
	ahead, windowOnly, chunked, both                                   int // requests of such configs; both: windows and a lower tier, or pairs and one
	policies                                                           int
	seen                                                               map[string]bool
}

func (s *sight) add(p *pair) {
	r, c, n := p.ref, &p.cfg, p.total.requests
	s.requests += n
	s.cleared += p.total.cleared
	s.shares, s.preempted, s.evicted = s.shares+r.shares, s.preempted+r.preempted, s.evicted+r.evicted
	s.shared, s.twins, s.slid = s.shared+r.shared, s.twins+r.twins, s.slid+r.slid
	s.loaded, s.lowered, s.dropped = s.loaded+r.loaded, s.lowered+r.lowered, s.dropped+r.dropped
	for _, q := range p.asked {
		if q.hit > 0 {
			s.hits++
		}
	}
	for _, is := range []struct {
		what bool
		n    *int
	}{
		{r.ahead > 0, &s.ahead},
		{c.WindowOnly, &s.windowOnly},
		{c.Chunk > 1, &s.chunked},
		{len(r.tiers) > 0 && (len(c.Windows) > 0 || c.Bigram), &s.both},
	} {
		if is.what {
			*is.n += n
		}
	}
	if s.seen == nil {
		s.seen = map[string]bool{}
	}
	if len(r.tiers) > 0 && r.lowered > 0 {
		s.seen[c.HostPolicy] = true
	}
	s.policies = len(s.seen)
}

// atLeast reports whether nothing is less than least says.
func (s *sight) atLeast(least *sight) bool {
	got, want := reflect.ValueOf(*s), reflect.ValueOf(*least)
	for i := range got.NumField() {
		if f := got.Field(i); f.Kind() == reflect.Int && f.Int() < want.Field(i).Int() {
			return false
		}
	}
	return true
}

// maxFuzzed bounds the bytes of a fuzzed run: a fuzzer takes one of ten seconds for hung.
const maxFuzzed = 1_200

// FuzzScheduler is TestSchedulerAgainstReference with a fuzzer's choices.
func FuzzScheduler(f *testing.F) {
	for seed := range uint64(48) {
		rng := rand.New(rand.NewPCG(seed, 13))
		b := make([]byte, 1_200)
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		f.Add(seed%2 == 0, b)
	}
	f.Fuzz(func(t *testing.T, vllm bool, b []byte) {
		engine := SGLang
		if vllm {
			engine = VLLM
		}
		newPair(t, engine, &byteChoices{b[:min(len(b), maxFuzzed)]}).run(1 + min(len(b), maxFuzzed)/20)
	})
}
