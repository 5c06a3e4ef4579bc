// SPDX-License-Identifier: Apache-2.0

package feed

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"kindex/internal/longtest"
)

// hosts are the lives of whoever has the feed: each ends at a random moment, and the
// next one begins with the content that was kept last, at the position it was kept
// with.
type hosts struct {
	rng *rand.Rand
	cfg Config

	// What was kept last; has is false before.
	has     bool
	at      Position
	blocks  map[uint64]bool // of a sim
	stamp   float64
	epochs  [][]entry // of a tape
	colds   map[int]bool
	coldsAt map[int]bool

	why string // the feed's reason for a cold start, seen last

	spoil func(h *hosts) // a planted fault, in what was kept; nil: none

	begun, resumed, restarted, unproven int
}

func newHosts(seed uint64) *hosts {
	return &hosts{rng: rand.New(rand.NewPCG(seed, 9)), colds: map[int]bool{}, coldsAt: map[int]bool{}}
}

// begin notes how the first feed was configured.
func (h *hosts) begin(cfg *Config) {
	if h != nil {
		h.cfg = *cfg
	}
}

// keep keeps a position.
func (h *hosts) keep(f *Feed) {
	h.at = f.Position()
	h.has = h.at.HasSeq
	h.coldsAt = maps.Clone(h.colds)
}

// next counts how the feed that ends now had begun, and returns the configuration of
// the one that follows.
func (h *hosts) next(f *Feed) Config {
	h.end(f)
	h.begun++
	h.colds, h.why = maps.Clone(h.coldsAt), ""
	if h.spoil != nil {
		h.spoil(h)
	}
	cfg, at := h.cfg, h.at
	cfg.Resume = &at
	return cfg
}

func (h *hosts) end(f *Feed) {
	st := f.Status()
	switch {
	case st.Resumed != 0:
		h.resumed++
	case contains(st.Cold, "another life"):
		h.restarted++
	case st.Cold != "":
		h.unproven++
	}
}

// look notes which epoch of the tape began because nothing could be proved.
func (h *hosts) look(f *Feed, epoch int) {
	if h == nil {
		return
	}
	why := f.Status().Cold
	if why != h.why && !contains(why, "another life") {
		h.colds[epoch] = true
	}
	h.why = why
}

// cold reports whether that epoch of the tape began so.
func (h *hosts) cold(epoch int) bool { return h != nil && h.colds[epoch] }

// seldom leaves out most of what goes wrong in a sim whose hosts end, too, so that
// there are active streams to look at.
func (h *hosts) seldom() bool { return h == nil || h.rng.IntN(8) == 0 }

// pace is how much a sim's network delivers in a step: streams must catch up before
// their host ends.
func (h *hosts) pace() int {
	if h == nil {
		return 1
	}
	return 5
}

// maySave keeps the content mostly, and else ends the host.
func (s *sim) maySave() {
	if s.hosts.rng.IntN(5) == 0 {
		s.again()
		return
	}
	s.save()
}

// save keeps what a host would write to its disk.
func (s *sim) save() {
	h := s.hosts
	if h.keep(s.Feed); h.has {
		h.blocks, h.stamp = maps.Clone(s.sink.blocks), s.sink.timestamp
	}
}

// again ends the host and begins another one with what was kept. Meanwhile the
// publisher goes on, or is another one by then.
func (s *sim) again() {
	h := s.hosts
	if !h.has {
		return
	}
	s.up, s.downs, s.wire, s.answer = false, 0, nil, nil
	cfg := h.next(s.Feed)
	s.tracef("another host, at %+v", h.at)
	sink := &blockSink{blocks: maps.Clone(h.blocks), timestamp: h.stamp}
	s.feedTest = &feedTest{TB: s.TB, Feed: New(cfg, sink), sink: sink, now: s.now}
	if h.rng.IntN(4) == 0 {
		s.restart()
	} else {
		for range h.rng.IntN(40) {
			s.publish()
		}
		s.reconnect()
	}
	s.born = len(s.lives) - 1
	s.check()
}

// save and again are as a sim's.
func (l *lossy) save() {
	h := l.hosts
	if h.keep(l.feed); h.has {
		h.epochs = cloneEpochs(l.tape.epochs)
	}
}

func cloneEpochs(epochs [][]entry) (out [][]entry) {
	for _, e := range epochs {
		out = append(out, slices.Clone(e))
	}
	return out
}

func (l *lossy) again() {
	h := l.hosts
	if !h.has {
		return
	}
	l.live.clear()
	l.answer.clear()
	h.cfg = l.feed.cfg
	cfg := h.next(l.feed)
	l.tape = &tape{epochs: cloneEpochs(h.epochs), lost: l.tape.lost}
	l.feed = New(cfg, l.tape)
	if h.rng.IntN(4) == 0 {
		l.lives = append(l.lives, nil)
	}
	for range h.rng.IntN(60) {
		l.publish(false)
	}
	l.live.clear() // before anybody listens
	l.feed.Connected(l.now)
	l.hosts.look(l.feed, len(l.tape.epochs)-1)
}

// TestFeedModelHosts is [TestFeedModel] with hosts that end and begin again: what is
// active is exact, and never a life that was over when the host began.
func TestFeedModelHosts(t *testing.T) {
	var total hosts
	for seed := range uint64(longtest.N(100, 2_000)) {
		for _, replay := range []bool{true, false} {
			t.Run(fmt.Sprintf("seed=%d/replay=%v", seed, replay), func(t *testing.T) {
				h := newHosts(seed)
				s := runSim(t, seed, replay, h)
				h.end(s.Feed)
				total.add(h)
				if h.resumed > 0 && !replay {
					t.Errorf("%d hosts went on from what they had kept without a replay socket", h.resumed)
				}
			})
		}
	}
	total.log(t)
}

func (h *hosts) add(o *hosts) {
	h.begun += o.begun
	h.resumed += o.resumed
	h.restarted += o.restarted
	h.unproven += o.unproven
}

func (h *hosts) log(t *testing.T) {
	t.Logf("%d hosts began with a content: %d went on, %d found another life, %d could not prove it", h.begun, h.resumed, h.restarted, h.unproven)
	if h.resumed == 0 || h.restarted == 0 || h.unproven == 0 {
		t.Error("some end was not seen")
	}
}

func runLossy(t testing.TB, seed uint64, h *hosts) *lossy {
	l := newLossy(t, seed)
	l.hosts = h
	l.run(1_500)
	l.check()
	return l
}

// TestLossyHosts is [TestLossy] with hosts that end and begin again: no number comes
// twice or is left out, over all of them.
func TestLossyHosts(t *testing.T) {
	var total hosts
	for seed := range uint64(longtest.N(250, 5_000)) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			h := newHosts(seed)
			l := runLossy(t, seed, h)
			h.end(l.feed)
			total.add(h)
		})
	}
	total.log(t)
}

// caught is a test whose first failure ends it and is kept.
type caught struct {
	testing.TB
	said string
}

func (*caught) Helper() {}

func (c *caught) Fatalf(format string, args ...any) {
	c.said = fmt.Sprintf(format, args...)
	panic(c)
}

// run returns how fn failed; "" where it did not.
func (c *caught) run(fn func()) (said string) {
	defer func() {
		if p := recover(); p != nil && p != any(c) {
			panic(p)
		}
		said = c.said
	}()
	fn()
	return ""
}

// TestHostsFaults: the two models see what is planted in what was kept.
func TestHostsFaults(t *testing.T) {
	for _, tc := range []struct {
		name  string
		tape  bool // a tape shows it, too
		spoil func(h *hosts)
	}{
		{"a batch left out", true, func(h *hosts) {
			for b := range h.blocks {
				delete(h.blocks, b)
				break
			}
			if last := len(h.epochs) - 1; last >= 0 && len(h.epochs[last]) > 0 {
				h.epochs[last] = h.epochs[last][:len(h.epochs[last])-1]
			}
		}},
		{"a batch too many", true, func(h *hosts) {
			if h.blocks != nil {
				h.blocks[1<<40] = true
			}
			if last := len(h.epochs) - 1; last >= 0 {
				h.epochs[last] = append(h.epochs[last], entry{seq: h.at.LastSeq + 1, payload: lossyPayload(0, h.at.LastSeq+1, 0)})
			}
		}},
		{"faults forgotten", false, func(h *hosts) { h.at.Faults, h.at.Why = 0, "" }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for what, model := range map[string]func(t testing.TB, seed uint64, h *hosts){
				"sim":   func(t testing.TB, seed uint64, h *hosts) { runSim(t, seed, true, h) },
				"lossy": func(t testing.TB, seed uint64, h *hosts) { runLossy(t, seed, h) },
			} {
				if what == "lossy" && !tc.tape {
					continue
				}
				seen := ""
				for seed := uint64(0); seed < 1_000 && seen == ""; seed++ {
					h := newHosts(seed)
					h.spoil = tc.spoil
					c := &caught{TB: t}
					seen = c.run(func() { model(c, seed, h) })
				}
				if seen == "" {
					t.Errorf("%s: a planted fault was never seen", what)
				}
			}
		})
	}
}
