// SPDX-License-Identifier: Apache-2.0

// Before: cache.go, or any other source of events. After: sockets.go.

package publish

import (
	"context"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/zeebo/xxh3"

	"kindex/internal/kv"
	"kindex/relay/wire"
)

// Options shape a publisher.
type Options struct {
	Ranks    int    // data-parallel ranks
	Block    int    // tokens of a block
	PerBatch int    // blocks that each batch stores
	Capacity int    // blocks that a rank's cache holds on the device
	Buffer   int    // batches that a replay can go back
	Rate     int    // batches a second, of all ranks together
	Seed     uint64 // of tokens and of what is evicted
	Host     string // address that the sockets are bound to; "": the loopback
}

// DefaultOptions are two ranks of an engine under steady load.
func DefaultOptions() Options {
	return Options{Ranks: 2, Block: 16, PerBatch: 8, Capacity: 3_000, Buffer: 10_000, Rate: 200, Seed: 1}
}

// Record is what one number of one life was.
type Record struct {
	Truth uint64    // the rank's [Content.Sum] behind this batch
	Check uint64    // XXH3-64 of its payload
	At    time.Time // when it was due on the wire, sent or dropped
}

// rankState is one rank's cache, numbers and truth.
type rankState struct {
	cache *cache
	truth Content
	lives [][]Record // by life, by number
}

// held is a batch that waits to be sent.
type held struct {
	due     time.Time
	rank    int
	seq     uint64
	payload []byte
	drop    bool // off the wire, for replays only
}

// Publisher is one engine's event sockets, all ranks, with faults on command.
//
// Concurrency: any goroutine.
type Publisher struct {
	o           Options
	layout      *wire.Layout
	pub, replay int // ports of rank 0

	mu      sync.Mutex
	sockets *sockets // nil while the publisher is down
	ranks   []*rankState
	life    int
	next    int // rank of the next batch
	rate    int // 0: silent
	drop    int // batches to keep off the wire
	dropped int
	delay   time.Duration
	waiting []held
	err     error

	cancel context.CancelFunc
	done   chan struct{}
}

// vLLM's wire as its releases since 0.32 write it.
const layoutEngine, layoutVersion = "vllm", "0.32.0"

// Open binds the sockets and begins to publish, at once, at the rate asked for.
func Open(o Options) (*Publisher, error) {
	layout, err := wire.LayoutFor(layoutEngine, layoutVersion)
	if err != nil {
		return nil, err
	}
	if o.Host == "" {
		o.Host = "127.0.0.1"
	}
	p := &Publisher{o: o, layout: layout, rate: o.Rate, done: make(chan struct{})}
	first, err := FreePorts(2 * o.Ranks)
	if err != nil {
		return nil, err
	}
	p.pub, p.replay = first, first+o.Ranks
	if p.sockets, err = bind(o.Host, p.pub, p.replay, o.Ranks, o.Buffer, layout.Replay); err != nil {
		return nil, err
	}
	for r := range o.Ranks {
		p.ranks = append(p.ranks, &rankState{cache: newCache(o.Seed, r, o.Block, o.PerBatch, o.Capacity), lives: make([][]Record, 1)})
	}
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel = cancel
	go p.pump(ctx)
	return p, nil
}

// Pub returns rank 0's event endpoint; rank r is at port + r.
func (p *Publisher) Pub() string { return fmt.Sprintf("tcp://%s:%d", p.o.Host, p.pub) }

// Replay returns rank 0's replay endpoint; rank r is at port + r.
func (p *Publisher) Replay() string { return fmt.Sprintf("tcp://%s:%d", p.o.Host, p.replay) }

// Ranks returns how many ranks publish.
func (p *Publisher) Ranks() int { return p.o.Ranks }

// Block returns the tokens of a block.
func (p *Publisher) Block() int { return p.o.Block }

// Close ends the publisher.
func (p *Publisher) Close() error {
	p.cancel()
	<-p.done
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.sockets != nil {
		p.sockets.close()
		p.sockets = nil
	}
	return p.err
}

// SetRate sets the batches a second, 0 for silence.
func (p *Publisher) SetRate(rate int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rate = rate
}

// Drop keeps the next n batches off the wire; replays have them.
func (p *Publisher) Drop(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drop = n
}

// Dropped returns how many batches were kept off the wire so far.
func (p *Publisher) Dropped() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dropped
}

// Delay sends each batch so much later than it is stamped; 0 sends what waits at once.
func (p *Publisher) Delay(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = d
	if d == 0 {
		for i := range p.waiting {
			p.waiting[i].due = time.Now()
		}
	}
}

// Restart ends the publisher's life and begins another after down, numbered from 0. keep
// says whether the cache keeps its blocks, which are not told again.
func (p *Publisher) Restart(ctx context.Context, keep bool, down time.Duration) error {
	p.mu.Lock()
	if p.sockets != nil {
		p.sockets.close()
		p.sockets = nil
	}
	p.waiting, p.drop = nil, 0
	p.mu.Unlock()
	if err := pause(ctx, down); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	s, err := bind(p.o.Host, p.pub, p.replay, p.o.Ranks, p.o.Buffer, p.layout.Replay)
	if err != nil {
		return err
	}
	p.sockets = s
	p.life++
	for _, r := range p.ranks {
		if !keep {
			r.cache.empty()
		}
		r.truth = Content{}
		r.lives = append(r.lives, nil)
	}
	return nil
}

// Life returns the number of the present life, from 0.
func (p *Publisher) Life() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.life
}

// Newest returns how many batches rank has published in its present life.
func (p *Publisher) Newest(rank int) uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return uint64(len(p.ranks[rank].lives[p.life]))
}

// Published returns how many batches all ranks have published in all lives.
func (p *Publisher) Published() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	var n uint64
	for _, r := range p.ranks {
		for _, life := range r.lives {
			n += uint64(len(life))
		}
	}
	return n
}

// Record returns what batch seq of one of rank's lives was.
func (p *Publisher) Record(rank, life int, seq uint64) (Record, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	lives := p.ranks[rank].lives
	if life < 0 || life >= len(lives) || seq >= uint64(len(lives[life])) {
		return Record{}, false
	}
	return lives[life][seq], true
}

// Copies returns how many copies rank's truth holds now.
func (p *Publisher) Copies(rank int) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ranks[rank].truth.Copies()
}

// pump publishes until ctx ends.
func (p *Publisher) pump(ctx context.Context) {
	defer close(p.done)
	const tick = time.Millisecond
	t := time.NewTicker(tick)
	defer t.Stop()
	owed, last := 0.0, time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		now := time.Now()
		p.mu.Lock()
		owed += now.Sub(last).Seconds() * float64(p.rate)
		last = now
		// A stalled machine is not answered with a flood.
		owed = min(owed, float64(p.rate)/4+1)
		if p.sockets == nil {
			owed = 0
		}
		for ; owed >= 1; owed-- {
			p.make(now)
		}
		p.flush(now)
		p.mu.Unlock()
	}
}

// make makes the next batch, notes the truth and keeps it for replay.
func (p *Publisher) make(now time.Time) {
	rank := p.next
	p.next = (p.next + 1) % p.o.Ranks
	r := p.ranks[rank]
	events := r.cache.pass()
	for i := range events {
		s := step(&events[i])
		r.truth.Apply(&s)
	}
	b := kv.Batch{Timestamp: seconds(now), Rank: rank, HasRank: true, Events: events}
	payload := wire.AppendBatch(nil, &b, p.layout)
	seq := uint64(len(r.lives[p.life]))
	r.lives[p.life] = append(r.lives[p.life], Record{Truth: r.truth.Sum(), Check: xxh3.Hash(payload), At: now.Add(p.delay)})
	h := held{now.Add(p.delay), rank, seq, payload, p.drop > 0}
	if h.drop {
		p.drop--
		p.dropped++
	}
	p.waiting = append(p.waiting, h)
}

// flush sends what is due, in order.
func (p *Publisher) flush(now time.Time) {
	for len(p.waiting) > 0 && !p.waiting[0].due.After(now) {
		h := p.waiting[0]
		p.waiting = p.waiting[1:]
		p.sockets.keep(h.rank, h.seq, h.payload)
		if h.drop {
			continue
		}
		if err := p.sockets.send(h.rank, "", h.seq, h.payload); err != nil && p.err == nil {
			p.err = fmt.Errorf("publish: %w", err)
		}
	}
}

func seconds(t time.Time) float64 { return float64(t.UnixNano()) / math.Pow10(9) }

// pause waits for d or for ctx's end.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
