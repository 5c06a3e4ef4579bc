// SPDX-License-Identifier: Apache-2.0

// Before: stream.go, dial.go. After: Handler, on this client's goroutine.

package client

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
)

// Client is one subscription to one server, for as long as it is open: it connects
// and subscribes again for ever.
//
// Concurrency: any goroutine.
type Client struct {
	cfg   Config
	now   func() time.Time
	ranks map[uint32]*rank

	stop context.CancelFunc
	done chan struct{}
	kick chan struct{} // again has something

	// work is held while a message, or the end of a stream, is taken, and by Hold. It
	// is taken before anything that a handler takes.
	work sync.Mutex

	// The client's goroutine's, under work.
	contract Contract
	dec      ownDecoder
	series   series // of a peers' stream
	fromZero bool   // the next subscription of a peers' contract begins at 0
	toldAll  bool   // this one did
	failures int    // streams and attempts in a row that brought nothing
	lastWhy  string
	touched  *rank // by the message in work; nil: none
	st       Status

	mu        sync.Mutex // guards what follows
	pub       Status
	again     []uint32 // ranks to be asked for from the beginning
	pubByRank map[uint32]rankSeen
}

// New returns a client that begins to connect at once. handle is called for each
// wanted rank before New returns.
//
// Errors: what can never work. Whatever may still come to work is retried.
func New(cfg Config, handle func(rank uint32) Handler) (*Client, error) {
	cfg.setDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	c := newClient(cfg, handle)
	c.stop = stop
	go c.run(ctx)
	return c, nil
}

// newClient is New without the goroutine.
func newClient(cfg Config, handle func(rank uint32) Handler) *Client {
	c := &Client{
		cfg: cfg, now: time.Now, ranks: make(map[uint32]*rank, len(cfg.Ranks)),
		done:      make(chan struct{}),
		contract:  cfg.Contract,
		kick:      make(chan struct{}, 1),
		pubByRank: make(map[uint32]rankSeen, len(cfg.Ranks)),
	}
	for _, n := range cfg.Ranks {
		r := &rank{number: n, h: handle(n), blockSize: cfg.BlockSize, mostBlocks: cfg.MaxSnapshotBlocks}
		r.load, _ = r.h.(LoadHandler)
		r.resumes, _ = r.h.(ResumeHandler)
		r.anew = c.Again
		r.peer = newPeerRank(&cfg)
		if cur, ok := cfg.Start[n]; ok {
			r.begins(cur)
		}
		c.ranks[n] = r
	}
	return c
}

// Close ends the client and waits until it has: no handler is called any more.
func (c *Client) Close() {
	c.stop()
	<-c.done
}

// Status returns what the client has seen.
func (c *Client) Status() Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.pub
}

// Rank returns what one of the wanted ranks has seen.
func (c *Client) Rank(n uint32) RankStatus {
	c.mu.Lock()
	seen := c.pubByRank[n]
	c.mu.Unlock()
	return seen.status()
}

// Again has a wanted rank asked for from the beginning: its handler could not keep
// what it was told. It returns at once.
func (c *Client) Again(n uint32) {
	c.mu.Lock()
	if c.ranks[n] != nil && !slices.Contains(c.again, n) {
		c.again = append(c.again, n)
	}
	c.mu.Unlock()
	select {
	case c.kick <- struct{}{}:
	default:
	}
}

// forgetAgain gives up the cursors of those who asked for it.
func (c *Client) forgetAgain() {
	select {
	case <-c.kick:
	default:
	}
	c.mu.Lock()
	again := c.again
	c.again = nil
	c.mu.Unlock()
	for _, n := range again {
		c.ranks[n].forget()
		// Only from 0 does a peer tell the rank anew, and then all of them.
		c.fromZero = true
	}
}

// publish makes known what the client's goroutine knows, of one rank (nil: of all).
func (c *Client) publish(one *rank) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pub = c.st
	c.pub.Contract = c.contract
	if one != nil {
		c.pubByRank[one.number] = one.seen(c.st.Connected)
		return
	}
	for n, r := range c.ranks {
		c.pubByRank[n] = r.seen(c.st.Connected)
	}
}

// run connects and subscribes until ctx ends.
func (c *Client) run(ctx context.Context) {
	defer close(c.done)
	var conn *grpc.ClientConn
	drop := func() {
		if conn != nil {
			_ = conn.Close() // nothing of it is wanted any more
			conn = nil
		}
	}
	defer drop()
	for !ended(ctx) {
		if conn == nil {
			var err error
			if conn, err = c.dial(ctx, func(err error) { c.locked(func() { c.disconnected(err.Error()) }) }); err != nil {
				return // closed
			}
			c.st.Connections++
		}
		err := c.subscribe(ctx, conn)
		if ended(ctx) {
			return
		}
		v := judge(err)
		c.locked(func() { c.endOf(&v) })
		if v.redial {
			drop()
		}
		if !c.pause(ctx, &v) {
			return
		}
	}
}

// endOf takes the end of a stream, which means v.
func (c *Client) endOf(v *verdict) {
	c.st.Errors++
	c.follow(v)
	if !v.unimplemented || !v.atOnce || c.st.Connected {
		c.disconnected(v.why)
	}
}

// follow does what v says about contract and cursors.
func (c *Client) follow(v *verdict) {
	if v.unimplemented {
		// Another contract, or, once none is left, all of them again.
		was := c.contract
		c.contract = (c.contract + 1) % numContracts
		v.atOnce, v.refused = c.contract != ContractUnknown, true
		if v.atOnce {
			v.why = fmt.Sprintf("%s is not served", was)
			c.failures = 0
			return
		}
		v.why = fmt.Sprintf("%s serves no event stream: none of %s, %s, %s", c.cfg.Address, ContractOwn, ContractVLLM, ContractSGLang)
		c.st.Unserved = true
	}
	if v.bad != nil {
		v.bad.forget()
	}
	if r := v.gapped; r != nil && c.contract == ContractOwn {
		if r.gapped && r.gapAt == r.seq {
			r.forget() // it does not come
		}
		r.gapped, r.gapAt = true, r.seq
	}
	// Two in a row, nothing between: the message would come again for ever.
	v.forget = v.forget || v.broken && c.failures > 0
	for _, r := range c.ranks {
		switch {
		case v.lost:
			r.st.restarts++
			r.reset(r.epoch+1, v.why)
		case v.forget:
			r.refuse(v.why)
		}
	}
}

// disconnected tells every handler that there is no stream, and why, unless it
// knows.
func (c *Client) disconnected(why string) {
	if !c.st.Connected && c.lastWhy == why {
		return
	}
	c.st.Connected = false
	c.lastWhy, c.st.LastError = why, why
	for _, n := range c.cfg.Ranks {
		r := c.ranks[n]
		if r.snap != nil {
			r.st.torn++
			r.forget()
		}
		r.h.Disconnected(why)
	}
	c.publish(nil)
}

// pause waits before the next stream. It returns false when ctx ends first.
func (c *Client) pause(ctx context.Context, v *verdict) bool {
	first := c.failures == 0
	c.failures = min(c.failures+1, 16)
	if v.atOnce && first {
		return true
	}
	longest := c.cfg.DialPeriod
	if v.refused || v.atOnce {
		longest = c.cfg.RetryMax
	}
	d := min(c.cfg.RetryMin<<(c.failures-1), longest)
	t := time.NewTimer(time.Duration(float64(d) * (0.75 + rand.Float64()/2)))
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
