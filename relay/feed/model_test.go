// SPDX-License-Identifier: Apache-2.0

package feed

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"kindex/internal/kv"
)

// simLife is one life of a simulated publisher: what it published, and the true
// set of its blocks after each batch.
type simLife struct {
	payloads [][]byte
	broken   map[uint64]bool // batches that the engine itself keeps undecodable
	truth    [][]uint64
	now      map[uint64]bool
	nextHash uint64
}

// sim is a publisher, a network that loses, repeats and corrupts, and a feed.
type sim struct {
	*feedTest
	rng    *rand.Rand
	replay bool
	lives  []*simLife
	stamps map[float64][2]int // engine time: life, sequence

	up      bool
	downs   int      // lost connections that the feed was not told of yet
	wire    []func() // live messages and connection events on their way, in order
	keep    int      // batches in the replay buffer
	held    int      // batches that may wait
	answer  []func() // what is on its way of the answer to a request
	calm    bool     // nothing is lost any more
	actives int      // checks made while active

	hosts *hosts // the feed's own lives; nil: it has one
	born  int    // life of the publisher as this one began
}

func (s *sim) life() *simLife { return s.lives[len(s.lives)-1] }

func (s *sim) chance(percent int) bool {
	return !s.calm && s.rng.IntN(100) < percent && s.hosts.seldom()
}

// publish makes the next batch of the current life and puts it on the wire.
func (s *sim) publish() {
	l := s.life()
	var evs []kv.Event
	for range 1 + s.rng.IntN(3) {
		held := slices.Sorted(maps.Keys(l.now))
		switch r := s.rng.IntN(20); {
		case r == 0 && len(held) > 0 && s.rng.IntN(4) == 0:
			evs = append(evs, clearAll())
			clear(l.now)
		case r < 8 && len(held) > 0:
			b := held[s.rng.IntN(len(held))]
			evs = append(evs, removeOf(b))
			delete(l.now, b)
		default:
			var parent uint64
			if len(held) > 0 && s.rng.IntN(3) > 0 {
				parent = held[s.rng.IntN(len(held))]
			}
			blocks := make([]uint64, 1+s.rng.IntN(3))
			for i := range blocks {
				l.nextHash++
				blocks[i] = l.nextHash
				l.now[l.nextHash] = true
			}
			evs = append(evs, storeOf(parent, blocks...))
		}
	}
	seq := uint64(len(l.payloads))
	p := payload(evs...)
	s.stamps[stampOf] = [2]int{len(s.lives) - 1, int(seq)}
	if s.chance(1) {
		l.broken[seq] = true
		p = p[:len(p)/2]
	}
	l.payloads = append(l.payloads, p)
	l.truth = append(l.truth, slices.Sorted(maps.Keys(l.now)))
	if !s.up || s.chance(8) {
		return
	}
	got := p
	if s.chance(2) && len(p) > 4 {
		got = slices.Clone(p[:len(p)-3]) // damaged under way
	}
	s.send(seq, got)
	if s.chance(8) { // and again, or something older again
		old := uint64(s.rng.IntN(int(seq) + 1))
		s.send(old, l.payloads[old])
	}
}

func (s *sim) send(seq uint64, p []byte) {
	life := len(s.lives) - 1
	s.wire = append(s.wire, func() { s.tracef("live %d of life %d, %d bytes", seq, life, len(p)); s.Live(seq, p, s.now) })
}

func (s *sim) disconnect() {
	if s.up {
		s.up = false
		s.downs++
		s.wire = append(s.wire, func() { s.downs--; s.tracef("down"); s.Disconnected("test", s.now) })
	}
}

func (s *sim) reconnect() {
	if !s.up {
		s.up = true
		s.wire = append(s.wire, func() { s.tracef("up"); s.Connected(s.now) })
	}
}

// restart begins another life, sometimes with so much said before anybody hears
// it that its numbers have overtaken the old ones. Without a replay socket such a
// restart cannot be seen by anyone, so there the new life is heard from its first
// batch.
func (s *sim) restart() {
	s.disconnect()
	s.answer = nil
	s.lives = append(s.lives, &simLife{broken: map[uint64]bool{}, now: map[uint64]bool{}, nextHash: uint64(len(s.lives)) * 1_000_000})
	if s.replay {
		for range s.rng.IntN(40) {
			s.publish()
		}
		s.reconnect()
		return
	}
	s.reconnect()
	calm := s.calm
	s.calm = true
	s.publish()
	s.calm = calm
}

// ask begins the answer to a request, as the publisher is now.
func (s *sim) ask(req ReplayRequest) {
	s.answer = nil
	id := req.ID
	if s.downs > 0 {
		// The connection to a publisher that is gone is known to be lost before
		// another one can answer.
		s.answer = append(s.answer, func() {
			for s.downs > 0 {
				f := s.wire[0]
				s.wire = s.wire[1:]
				f()
				s.poll()
			}
		})
	}
	if s.chance(15) {
		s.answer = append(s.answer, func() { s.tracef("replay %d fails", id); s.ReplayFailed(id, fmt.Errorf("no answer"), s.now) })
		return
	}
	l, life := s.life(), len(s.lives)-1
	first := max(0, len(l.payloads)-s.keep)
	for seq := max(uint64(first), req.Start); seq < uint64(len(l.payloads)); seq++ {
		if len(s.answer) > 0 && s.chance(4) {
			continue // the publisher's queue was full
		}
		p := l.payloads[seq]
		s.answer = append(s.answer, func() { s.tracef("replay %d: %d of life %d", id, seq, life); s.ReplayBatch(id, seq, p, s.now) })
	}
	if s.chance(8) && len(s.answer) > 0 {
		s.answer = s.answer[:s.rng.IntN(len(s.answer))]
		s.answer = append(s.answer, func() { s.tracef("replay %d fails", id); s.ReplayFailed(id, fmt.Errorf("cut off"), s.now) })
		return
	}
	s.answer = append(s.answer, func() { s.tracef("replay %d ends", id); s.ReplayEnd(id, s.now) })
}

// poll does what the feed wants, and checks it.
func (s *sim) poll() time.Time {
	req, ask, wake := s.Next(s.now)
	s.tracef("    %s", statusLine(s.Status()))
	if ask {
		s.tracef("asks %d from %d", req.ID, req.Start)
		if !s.replay {
			s.Fatalf("asked without a replay socket")
		}
		s.ask(req)
	}
	s.check()
	return wake
}

// check compares the content with the truth at the cursor, whenever the feed
// says that it is exact.
func (s *sim) check() {
	st := s.Status()
	held := s.sink.held()
	if int(st.HeldBatches) > s.held {
		s.Fatalf("%d batches held, at most %d may be", st.HeldBatches, s.held)
	}
	if st.State != StateActive {
		return
	}
	if !st.HasSeq {
		if len(held) != 0 {
			s.Fatalf("active before any batch, with %v held", held)
		}
		return
	}
	at, ok := s.stamps[s.sink.timestamp]
	if !ok || at[1] != int(st.LastSeq) {
		s.Fatalf("active at %d, but the batch last applied is %v", st.LastSeq, at)
	}
	if at[0] < s.born {
		s.Fatalf("active at batch %d of life %d, but life %d had begun when this feed did", at[1], at[0], s.born)
	}
	if want := s.lives[at[0]].truth[at[1]]; !slices.Equal(held, want) {
		s.Fatalf("active at batch %d of life %d: held %v, truth %v; %s", at[1], at[0], held, want, statusLine(st))
	}
	s.actives++
}

// deliver takes one step of the network.
func (s *sim) deliver() {
	live := len(s.wire) > 0 && (len(s.answer) == 0 || s.rng.IntN(2) == 0)
	switch {
	case live:
		f := s.wire[0]
		s.wire = s.wire[1:]
		f()
	case len(s.answer) > 0:
		f := s.answer[0]
		s.answer = s.answer[1:]
		f()
	}
	s.poll()
}

func (s *sim) drainNetwork() {
	for len(s.wire) > 0 || len(s.answer) > 0 {
		s.deliver()
	}
}

func runSim(t testing.TB, seed uint64, replay bool, h *hosts) *sim {
	rng := rand.New(rand.NewPCG(seed, 1))
	s := &sim{rng: rng, replay: replay, hosts: h, held: 16_384, stamps: map[float64][2]int{}, keep: []int{5, 30, 10_000}[rng.IntN(3)]}
	s.feedTest = newFeedTest(t, replay, func(c *Config) {
		if rng.IntN(3) == 0 {
			c.Limits.HeldBatches, s.held = 5, 5
		}
		if seed%2 == 0 {
			c.Limits = c.Limits.Thorough()
		}
	})
	h.begin(&s.cfg)
	s.lives = []*simLife{{broken: map[uint64]bool{}, now: map[uint64]bool{}}}
	if replay {
		for range rng.IntN(30) {
			s.publish() // before anybody listens
		}
	}
	s.reconnect()
	steps := 150
	if h != nil {
		steps = 500
	}
	for range steps {
		switch r := rng.IntN(100); {
		case r < 40:
			s.publish()
		case r < 41:
			s.restart()
		case r < 43:
			s.disconnect()
		case r < 47:
			s.reconnect()
		case r < 50:
			s.now = s.now.Add(time.Duration(rng.IntN(20_000)) * time.Millisecond)
		case h != nil && r < 53:
			s.maySave()
		default:
			for range s.hosts.pace() {
				s.now = s.now.Add(time.Millisecond)
				s.deliver()
			}
		}
	}
	s.settle()
	return s
}

// settle makes the network reliable and waits. Where what was lost cannot be had
// again (a short buffer, a batch that nobody can read, no room for a whole
// history), the publisher restarts once.
func (s *sim) settle() {
	s.calm = true
	if !s.replay || len(s.life().broken) > 0 || s.keep < 10_000 || s.held < 1_000 {
		s.keep = 10_000
		s.drainNetwork()
		s.restart()
	}
	s.reconnect()
	s.drainNetwork()
	s.publish()
	s.drainNetwork()
	for range 200 {
		s.poll()
		s.drainNetwork()
		wake := s.poll()
		if wake.IsZero() {
			break
		}
		s.now = wake
	}
	s.drainNetwork()
	l := s.life()
	st := s.Status()
	if st.State != StateActive || !st.HasSeq || st.LastSeq != uint64(len(l.payloads)-1) {
		s.Fatalf("calm, but not active at %d: %s", len(l.payloads)-1, statusLine(st))
	}
	if at := s.stamps[s.sink.timestamp]; at[0] != len(s.lives)-1 {
		s.Fatalf("calm, but at batch %d of life %d, not of the last, %d", at[1], at[0], len(s.lives)-1)
	}
}

// TestFeedModel runs random lives of a publisher over a bad network. Whenever the
// feed says active, its content must be the publisher's at the cursor; once the
// network is good it must become active and stay so.
func TestFeedModel(t *testing.T) {
	runs, first := uint64(300), uint64(1)
	if os.Getenv("KINDEX_LONG") == "1" {
		runs = 4_000
	}
	if v := os.Getenv("KINDEX_SEED"); v != "" {
		n, err := strconv.ParseUint(v, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		first, runs = n, 1
	}
	var total Status
	actives := 0
	for seed := first; seed < first+runs; seed++ {
		for _, replay := range []bool{true, false} {
			t.Run(fmt.Sprintf("seed=%d/replay=%v", seed, replay), func(t *testing.T) {
				s := runSim(t, seed, replay, nil)
				st := s.Status()
				total.Batches += st.Batches
				total.Gaps += st.Gaps
				total.Recovered += st.Recovered
				total.Lost += st.Lost
				total.Restarts += st.Restarts
				total.Duplicates += st.Duplicates
				actives += s.actives
			})
		}
	}
	t.Logf("%d lives' ends: %d batches, %d gaps, %d recovered, %d lost, %d duplicates, checked exact %d times",
		total.Restarts, total.Batches, total.Gaps, total.Recovered, total.Lost, total.Duplicates, actives)
}

func (s *sim) tracef(format string, args ...any) {
	if os.Getenv("KINDEX_SEED") != "" {
		s.Logf(format, args...)
	}
}
