// SPDX-License-Identifier: Apache-2.0

// Before: the clients' request rings of one shard. After: the handler; then back,
// through the reply rings.

package shm

import (
	"sync"
	"sync/atomic"
	"time"

	"kindex/internal/kv"
)

const (
	// batchMax is how many requests are answered together.
	batchMax = 32
	// gatherMax bounds the records that are looked at for one batch, so that pieces of
	// long requests keep nobody from an answer.
	gatherMax = 4 * batchMax
	// batchBlocks bounds the chains of one batch, but for one request, which may be as
	// long as a request can be.
	batchBlocks = 1 << 15

	// beatEvery is how often a side says that it lives, nap how long it sleeps at most.
	beatEvery = 20 * time.Millisecond

	// keepBlocks is how much of a long request's memory stays.
	keepBlocks = batchBlocks
)

// Request is one question of a batch. What it points to is a copy, the thread's, and
// valid during the call.
type Request struct {
	Model    uint64 // by the number that the table gives it
	Seed     uint64
	Hashes   []kv.ContentHash
	Filtered bool     // only Holders are wanted
	Holders  []uint32 // in the client's order
	Limit    int      // the deepest so many; 0: all

	// The answer, written by the handler. Matches is empty and has the memory of an
	// answer before; [DegradedBit] may be set in a match's Any.
	Status  Status
	Version uint64
	Matches []kv.Match

	id, deadline uint64
	client       *ends
	hashes, only span // in the thread's buffers while they grow
}

type span struct{ from, to int }

// thread answers the requests of all clients in one shard.
//
// Concurrency: run is one goroutine; do may be called from any other.
type thread struct {
	shard int
	opts  *ServerOptions
	count *Counters

	changed atomic.Uint32 // counted up with each command; the thread sleeps on it, too
	mu      sync.Mutex
	cmds    []command

	clients []*ends
	turn    int // whom to ask first
	sleeper sleeper

	reqs    [batchMax]Request
	hashes  []kv.ContentHash
	holders []uint32
	beat    uint64 // when it was last said that the thread lives
}

// command adds a client to a thread, or takes it out, or ends the thread.
type command struct {
	add, remove *ends
	stop        bool
	done        chan struct{}
}

// do hands the thread a command and waits until it is done.
func (t *thread) do(c command) {
	c.done = make(chan struct{})
	t.mu.Lock()
	t.cmds = append(t.cmds, c)
	t.mu.Unlock()
	t.changed.Add(1)
	wake(&t.changed)
	<-c.done
}

// obey carries out what was ordered; false: the thread ends.
func (t *thread) obey() bool {
	t.mu.Lock()
	cmds := t.cmds
	t.cmds = nil
	t.mu.Unlock()
	alive := true
	for _, c := range cmds {
		switch {
		case c.add != nil:
			t.clients = append(t.clients, c.add)
		case c.remove != nil:
			for i, e := range t.clients {
				if e == c.remove {
					t.clients = append(t.clients[:i], t.clients[i+1:]...)
					break
				}
			}
		case c.stop:
			alive = false
		}
		close(c.done)
	}
	clear(t.clients[len(t.clients):cap(t.clients)])
	return alive
}

// run answers until it is told to stop.
func (t *thread) run() {
	if t.opts.Thread != nil {
		defer t.opts.Thread(t.shard)()
	}
	seen := uint32(0)
	var quiet time.Time // since when there has been nothing to do; zero: there is
	for {
		if now := t.changed.Load(); now != seen {
			seen = now
			if !t.obey() {
				return
			}
		}
		n, worked := t.gather()
		if n > 0 {
			t.answer(t.reqs[:n])
			t.sleeper.busy()
		}
		if worked {
			quiet = time.Time{}
			continue
		}
		if t.opts.Spin > 0 && len(t.clients) > 0 {
			at := time.Now()
			if quiet.IsZero() {
				quiet = at
			}
			if at.Sub(quiet) < t.opts.Spin {
				for range 16 {
					pause(2)
					if t.work() {
						break
					}
				}
				continue
			}
		}
		t.sleep(seen)
	}
}

// work reports whether a client has published something. It may be nothing right.
func (t *thread) work() bool {
	for _, e := range t.clients {
		if !e.stuck() && !e.broken.Load() && e.in.ready() {
			return true
		}
	}
	return false
}

// sleep waits for work, a command, or until it is time to say that the thread lives.
//
// The words are read before the rings are looked at again, and the clients see that
// the thread sleeps before that: whoever publishes later finds it asleep, and changes
// the word. Each client has a word of its own: what one does with it is no matter to
// the others.
func (t *thread) sleep(seen uint32) {
	t.sayAlive(now())
	t.sleeper.reset()
	t.sleeper.add(&t.changed, seen)
	for _, e := range t.clients {
		e.words.serverSleeps.Store(1)
		if e.stuck() {
			e.words.serverStuck.Store(1)
		}
		t.sleeper.add(e.words.serverBell, e.words.serverBell.Load())
	}
	if !t.work() && !t.unstuck() {
		t.sleeper.sleep(beatEvery)
	}
	for _, e := range t.clients {
		e.words.serverSleeps.Store(0)
		if e.stuck() {
			e.words.serverStuck.Store(0)
		}
	}
}

// unstuck reports whether a client has made room for a reply that waits.
func (t *thread) unstuck() bool {
	for _, e := range t.clients {
		if e.stuck() && e.out.head.Load() != e.out.other {
			return true
		}
	}
	return false
}

// sayAlive counts up the beat in each client's memory, now and then.
func (t *thread) sayAlive(at uint64) {
	if at-t.beat < uint64(beatEvery/2) {
		return
	}
	t.beat = at
	for _, e := range t.clients {
		e.words.serverBeat.Add(1)
	}
}

// gather takes requests, one of each client in turn, until there are as many as are
// answered together or no more; worked is also set where there was a piece of one.
func (t *thread) gather() (n int, worked bool) {
	t.hashes, t.holders = t.hashes[:0], t.holders[:0]
	records := 0
	for again := true; again && n < batchMax && records < gatherMax && len(t.hashes) < batchBlocks; {
		again = false
		for i := range t.clients {
			e := t.clients[(t.turn+i)%len(t.clients)]
			took, whole := t.take(e, &t.reqs[n])
			if took {
				records++
				again = true
			}
			if !whole {
				continue
			}
			if n++; n == batchMax || len(t.hashes) >= batchBlocks {
				t.turn += i + 1
				break
			}
		}
	}
	if len(t.clients) > 0 {
		t.turn %= len(t.clients)
	}
	return n, records > 0
}

// take reads one record of e; whole: it was a request's last.
func (t *thread) take(e *ends, r *Request) (took, whole bool) {
	if e.broken.Load() {
		return false, false
	}
	if e.stuck() {
		had := e.sent
		if err := e.flush(); err != nil {
			e.fail(err)
			return false, false
		}
		if e.stuck() {
			return e.sent > had, false
		}
		return true, false
	}
	if !e.in.ready() {
		return false, false
	}
	whole, err := e.read(t, r)
	if err != nil {
		e.fail(err)
		return false, false
	}
	return true, whole
}

// answer has the handler answer reqs and writes what it says.
func (t *thread) answer(reqs []Request) {
	at := now()
	t.sayAlive(at)
	for i := range reqs {
		r := &reqs[i]
		r.Hashes = t.hashes[r.hashes.from:r.hashes.to:r.hashes.to]
		r.Holders = t.holders[r.only.from:r.only.to:r.only.to]
		r.Matches = r.Matches[:0]
	}
	n := t.inTime(reqs, at)
	t.count.Requests.Add(uint64(n))
	t.count.Late.Add(uint64(len(reqs) - n))
	if n > 0 {
		t.opts.Handler.Answer(t.shard, reqs[:n])
	}
	for i := range reqs {
		r := &reqs[i]
		if err := r.client.reply(r); err != nil {
			r.client.fail(err)
		}
	}
	for i := range reqs {
		e := reqs[i].client
		reqs[i].client = nil
		e.publish()
	}
	if cap(t.hashes) > 2*keepBlocks {
		t.hashes = make([]kv.ContentHash, 0, keepBlocks)
	}
}

// inTime sorts those whose deadline has not passed to the front and returns how many
// they are.
func (t *thread) inTime(reqs []Request, at uint64) int {
	n := 0
	for i := range reqs {
		r := &reqs[i]
		if r.deadline <= at {
			r.Status, r.Version = StatusLate, 0
			continue
		}
		r.Status, r.Version = StatusOK, 0
		if i != n {
			reqs[i], reqs[n] = reqs[n], reqs[i]
		}
		n++
	}
	return n
}
