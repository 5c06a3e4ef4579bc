// SPDX-License-Identifier: Apache-2.0

package indexsrv

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"kindex/internal/kv"
	"kindex/internal/longtest"
	"kindex/relay"
	"kindex/relay/feed"
)

// talker is an engine that never stops talking, and remembers what it said in each of
// its lives: the truth.
type talker struct {
	t    testing.TB
	dice *rand.Rand // the test's
	keep int        // batches of its replay buffer

	mu    sync.Mutex // guards what follows
	rng   *rand.Rand
	e     *engine
	lives [][][]byte
	held  []uint64
	next  uint64

	quit chan struct{}
	done sync.WaitGroup
}

func startTalker(t testing.TB, seed uint64, keep int) *talker {
	k := &talker{t: t, rng: rand.New(rand.NewPCG(seed, 5)), dice: rand.New(rand.NewPCG(seed, 6)), keep: keep, quit: make(chan struct{})}
	k.begin(nil)
	k.done.Go(func() {
		for {
			select {
			case <-k.quit:
				return
			case <-time.After(500 * time.Microsecond):
				k.say(true, 1)
			}
		}
	})
	return k
}

// stop ends the talk; the engine is there until the test ends.
func (k *talker) stop() {
	close(k.quit)
	k.done.Wait()
}

// begin begins a life at the addresses of the one before. Its first batches are not
// heard by anybody.
func (k *talker) begin(old *engine) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if old != nil {
		old.kill()
	}
	k.e = startEngine(k.t, old, func(e *engine) { e.keep = k.keep })
	k.lives, k.held = append(k.lives, nil), nil
}

// restart ends the engine's life and begins another, with so many batches said before
// anybody can hear them.
func (k *talker) restart(unheard int) {
	k.begin(k.e)
	k.say(false, unheard)
}

// say says n batches.
func (k *talker) say(live bool, n int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for range n {
		var ev kv.Event
		if len(k.held) > 20 && k.rng.IntN(2) == 0 || len(k.held) > 200 {
			i := k.rng.IntN(len(k.held))
			ev = removeOf(k.held[i])
			k.held = append(k.held[:i], k.held[i+1:]...)
		} else {
			var parent uint64
			if len(k.held) > 0 && k.rng.IntN(3) > 0 {
				parent = k.held[k.rng.IntN(len(k.held))]
			}
			k.next++
			ev = storeOf(parent, k.next)
			k.held = append(k.held, k.next)
		}
		p := payload(ev)
		last := len(k.lives) - 1
		k.lives[last] = append(k.lives[last], p)
		k.e.send(live, p)
	}
}

// said returns what the engine said in its life of that number, -1 for this one, up to
// and including seq.
func (k *talker) said(life int, seq uint64) [][]byte {
	k.mu.Lock()
	defer k.mu.Unlock()
	if life < 0 {
		life = len(k.lives) - 1
	}
	if n := uint64(len(k.lives[life])); seq >= n {
		k.t.Fatalf("batch %d of life %d: it said %d", seq, life, n)
	}
	return k.lives[life][:seq+1]
}

func (k *talker) life() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.lives) - 1
}

// tell puts batches into a holder of w, as a feed of their own does.
func tell(t testing.TB, w *Writer, batches [][]byte) *Feed {
	t.Helper()
	h, err := w.AddHolder(testModel)
	if err != nil {
		t.Fatal(err)
	}
	f := NewFeed(StreamConfig{Model: testModel, BlockSize: testBlock}, w, h)
	f.Connected(epochTime)
	for seq, p := range batches {
		f.Live(uint64(seq), p, epochTime)
	}
	return f
}

func digestOf(t testing.TB, w *Writer, f *Feed) uint64 {
	t.Helper()
	c, err := w.Content(f.sink.h)
	if err != nil {
		t.Fatal(err)
	}
	return c.Digest()
}

// truth is the digest of what batches make.
func truth(t testing.TB, batches [][]byte) uint64 {
	t.Helper()
	w := newIndex(t)
	return digestOf(t, w, tell(t, w, batches))
}

// tookAway is what a host leaves behind.
type tookAway struct {
	at   *Resume
	life int // of the talker
	seen uint64
}

// resumer is a host's stream that ends and begins again.
type resumer struct {
	t   *testing.T
	k   *talker
	src *feed.ZMQ
	cfg func() StreamConfig

	s    *streamTest
	life int // of the talker when the stream began
}

// begin starts a stream; with one that a host took away its holder has the content
// before.
func (r *resumer) begin(from *tookAway) {
	r.t.Helper()
	w := newIndex(r.t)
	cfg := r.cfg()
	cfg.Model, cfg.BlockSize = testModel, testBlock
	var batches [][]byte
	if from != nil {
		batches = r.k.said(from.life, from.at.LastSeq)
		cfg.Resume = from.at
	}
	h := tell(r.t, w, batches).sink.h
	r.life = r.k.life()
	s, err := startStream(r.src, cfg, w, h, streamHooks{}, quiet)
	if err != nil {
		r.t.Fatal(err)
	}
	r.s = &streamTest{TB: r.t, src: r.src, w: w, h: h, s: s}
	r.t.Cleanup(r.s.stop)
}

// look freezes the stream and holds its content against what the engine said, if it
// is active or else must be right by its position. It returns what a host would keep;
// nil where there is nothing.
func (r *resumer) look() (kept *tookAway, st StreamStatus) {
	r.t.Helper()
	r.s.s.freeze(func(now StreamStatus, at *Resume) {
		st = now
		c, err := r.s.w.Content(r.s.h)
		if err != nil {
			r.t.Fatal(err)
		}
		if at == nil {
			return
		}
		kept = &tookAway{at: at, life: r.k.life(), seen: c.Digest()}
	})
	if kept == nil || st.State != feed.StateActive {
		return nil, st
	}
	// The engine's life at the cursor is the newest whose batch has these bytes, for
	// content that nobody has contradicted.
	if want := truth(r.t, r.k.said(-1, kept.at.LastSeq)); want != kept.seen {
		r.t.Fatalf("active at %d: digest %x, truth %x; %s", kept.at.LastSeq, kept.seen, want, statusLine(st))
	}
	return kept, st
}

// settle waits until the stream has all that the engine has said by now, or has given
// up on what is gone, and holds it against the truth.
func (r *resumer) settle(state feed.State) StreamStatus {
	r.t.Helper()
	r.k.mu.Lock()
	end := uint64(len(r.k.lives[len(r.k.lives)-1]))
	r.k.mu.Unlock()
	st := r.s.eventually("caught up", func(st StreamStatus) bool {
		return st.HasSeq && st.LastSeq+1 >= end && st.State == state && !st.Repairing
	})
	r.look()
	return st
}

// zmqResumer has an engine's own sockets.
func zmqResumer(t *testing.T, k *talker) *resumer {
	return &resumer{t: t, k: k, src: newSource(t, feed.ZMQOptions{ReplayIdle: 2 * time.Second}), cfg: func() StreamConfig {
		return StreamConfig{Endpoint: k.e.live, ReplayEndpoint: k.e.back, Limits: feed.Limits{ConfirmDelay: 50 * time.Millisecond}}
	}}
}

// endings are what happens between a host's end and the next one's beginning.
var endings = []struct {
	name string
	do   func(k *talker, at uint64)
	cold string
}{
	{"it goes on", func(k *talker, _ uint64) { k.say(true, 1+k.dice.IntN(30)) }, ""},
	{"a younger life", func(k *talker, _ uint64) { k.restart(1 + k.dice.IntN(3)) }, "another life"},
	{"a life that used the same numbers", func(k *talker, at uint64) { k.restart(int(at) + 1 + k.dice.IntN(50)) }, "another life"},
}

// TestStreamResumes: hosts end at random moments of a stream that never stops, and
// begin again with what they had at the position they had it at: each batch counts
// once, and nothing of another life.
func TestStreamResumes(t *testing.T) {
	k := startTalker(t, 1, 10_000)
	defer k.stop()
	r := zmqResumer(t, k)
	r.begin(nil)
	r.settle(feed.StateActive)
	for round := range longtest.N(9, 90) {
		end := endings[round%len(endings)]
		var kept *tookAway
		for kept == nil {
			time.Sleep(time.Duration(k.dice.IntN(20)) * time.Millisecond)
			kept, _ = r.look()
		}
		r.s.stop()
		end.do(k, kept.at.LastSeq)
		r.begin(kept)
		st := r.settle(feed.StateActive)
		for st.Resumed == 0 && st.Cold == "" {
			st = r.s.s.status()
		}
		wantEpoch := kept.at.Epoch
		if end.cold != "" {
			wantEpoch++
		}
		// What was said while the host was away is no gap; what is said between the
		// answer and the first live message is one, on a busy machine.
		if (st.Resumed == 1) != (end.cold == "") || !contains(st.Cold, end.cold) || st.Lost != 0 || st.Epoch < wantEpoch || end.cold == "" && (st.Gaps > 1 || st.Restarts != 0 || st.Epoch != wantEpoch) {
			t.Errorf("round %d, %s: resumed %d, cold %q, epoch %d of %d; %s", round, end.name, st.Resumed, st.Cold, st.Epoch, wantEpoch, statusLine(st))
		}
	}
}

// TestStreamResumesRolled: where the replay buffer has rolled past the position the
// content goes: it may hold what was removed meanwhile.
func TestStreamResumesRolled(t *testing.T) {
	k := startTalker(t, 2, 50)
	defer k.stop()
	r := zmqResumer(t, k)
	r.begin(nil)
	r.s.eventually("heard", func(st StreamStatus) bool { return st.HasSeq && st.LastSeq > 20 })
	var kept *tookAway
	r.s.s.freeze(func(_ StreamStatus, at *Resume) { kept = &tookAway{at: at} })
	r.s.stop()
	k.say(false, 200)
	r.begin(kept)
	st := r.s.eventually("given up", func(st StreamStatus) bool { return st.Lost > 0 && !st.Repairing })
	if st.State != feed.StateDegraded || st.Resumed != 0 || !contains(st.Cold, "begins at") || st.Epoch != kept.at.Epoch+1 {
		t.Errorf("resumed %d, cold %q; %s; want it cold and degraded", st.Resumed, st.Cold, statusLine(st))
	}
	// What is held is what the batches make that could be had: nothing of before.
	r.s.s.freeze(func(now StreamStatus, at *Resume) {
		c, err := r.s.w.Content(r.s.h)
		if err != nil {
			t.Fatal(err)
		}
		all := k.said(-1, at.LastSeq)
		w := newIndex(t)
		f := tell(t, w, nil)
		for seq := now.Lost; seq <= at.LastSeq; seq++ {
			f.Live(seq, all[seq], epochTime)
		}
		if got, want := c.Digest(), digestOf(t, w, f); got != want {
			t.Errorf("held after %d lost: digest %x, want %x", now.Lost, got, want)
		}
	})
}

// relayOf starts a relay of the talker's engine.
func relayOf(t *testing.T, k *talker, address string, change func(*relay.Config)) (addr string, stop func()) {
	t.Helper()
	cfg := relay.DefaultConfig()
	cfg.Listen, cfg.HTTP = address, "off"
	cfg.DrainTimeout = time.Second
	cfg.Engines = []relay.EngineSpec{{Kind: "vllm", Endpoint: k.e.live, Replay: k.e.back, Ranks: 1}}
	if change != nil {
		change(&cfg)
	}
	h, err := relay.New(cfg, quiet)
	if err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(10 * time.Second)
	for err = h.Listen(); err != nil; err = h.Listen() {
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Millisecond)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- h.Serve(ctx) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			if err := <-served; err != nil {
				t.Errorf("relay: %v", err)
			}
		})
	}
	t.Cleanup(stop)
	return h.Addr(0), stop
}

// TestRelayResumes is [TestStreamResumes] through a relay: it restarts, too, and its
// history may have rolled past the position, where it tells the content anew.
func TestRelayResumes(t *testing.T) {
	k := startTalker(t, 3, 100_000)
	defer k.stop()
	addr, stop := relayOf(t, k, "127.0.0.1:0", nil)
	r := &resumer{t: t, k: k, cfg: func() StreamConfig { return StreamConfig{Endpoint: addr, Relay: newRelayGroup(1)} }}
	r.begin(nil)
	r.settle(feed.StateActive)
	for round := range longtest.N(5, 50) {
		var kept *tookAway
		for kept == nil {
			time.Sleep(time.Duration(k.dice.IntN(20)) * time.Millisecond)
			kept, _ = r.look()
		}
		r.s.stop()
		cold := ""
		// Who is faster decides: the relay that learns of the restart, or reads the past
		// that it has no room for; or the host that asks it.
		either := false
		switch round % 5 {
		case 0:
			k.say(true, 20)
		case 1:
			stop()
			_, stop = relayOf(t, k, addr, nil)
		case 2:
			cold, either = "restarted", true
			k.restart(int(kept.at.LastSeq) + 40)
		case 3:
			cold, either = "history", true
			stop()
			k.say(true, 50)
			_, stop = relayOf(t, k, addr, func(c *relay.Config) { c.HistoryBatches = 10 })
		case 4:
			cold = "another"
			stop()
			k.restart(int(kept.at.LastSeq) + 40)
			_, stop = relayOf(t, k, addr, nil)
		}
		r.begin(kept)
		st := r.settle(feed.StateActive)
		if either && st.Resumed == 1 && st.Cold == "" && st.Resets+uint64(round%5) >= 3 {
			continue // and a restart was seen after
		}
		if (st.Resumed == 1) != (cold == "") || (st.Cold == "") != (cold == "") || st.Lost != 0 {
			t.Errorf("round %d: resumed %d, cold %q, want %q; %s", round, st.Resumed, st.Cold, cold, statusLine(st))
		}
		if cold == "" && (st.Resets != 0 || st.Snapshots != 0 || st.Epoch != kept.at.Epoch) {
			t.Errorf("round %d: %d resets, %d snapshots, epoch %d after %d", round, st.Resets, st.Snapshots, st.Epoch, kept.at.Epoch)
		}
	}
}

// TestRelayResumeRefused: a position that no client can read is none.
func TestRelayResumeRefused(t *testing.T) {
	k := startTalker(t, 4, 10_000)
	defer k.stop()
	addr, _ := relayOf(t, k, "127.0.0.1:0", nil)
	k.say(true, 10)
	for name, at := range map[string]*Resume{
		"no cursor":      {Position: feed.Position{Epoch: 2, HasSeq: true, LastSeq: 5}},
		"another number": {Position: feed.Position{Epoch: 2, HasSeq: true, LastSeq: 5}, Relay: []byte(fmt.Sprintf("\x01\x01%024d\x00\x00", 0))},
	} {
		t.Run(name, func(t *testing.T) {
			r := &resumer{t: t, k: k, cfg: func() StreamConfig { return StreamConfig{Endpoint: addr, Relay: newRelayGroup(1)} }}
			r.begin(&tookAway{at: at})
			if st := r.settle(feed.StateActive); st.Resumed != 0 || !contains(st.Cold, "cursor") {
				t.Errorf("resumed %d, cold %q", st.Resumed, st.Cold)
			}
		})
	}
}
