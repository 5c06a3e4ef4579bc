// SPDX-License-Identifier: Apache-2.0

package feed

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/zeebo/xxh3"
)

// handSource has one stream, which a test drives as a tap would.
type handSource struct {
	stream *Stream
	refuse error
	closed int
}

func (h *handSource) Open(_ *Config, s *Stream) (Tap, error) {
	h.stream = s
	return h, h.refuse
}

func (h *handSource) Close() { h.closed++ }

// source makes a Source of a handSource, whose own Close is a tap's.
type source struct{ *handSource }

func (source) Close() error { return nil }

// turnSink is a blockSink whose Commit must run in a turn.
type turnSink struct {
	*blockSink
	in    bool
	taken int
	bad   int // commits outside
}

func (s *turnSink) InTurn(fn func()) {
	s.in = true
	s.taken++
	fn()
	s.in = false
}

func (s *turnSink) Commit(f *Faults) {
	if !s.in {
		s.bad++
	}
	s.blockSink.Commit(f)
}

// A stream hands bursts on in their order, tells where it stands whenever that is
// another place, and commits in its sink's turn: in place, or where its owner runs
// it.
func TestStream(t *testing.T) {
	for _, lanes := range []bool{false, true} {
		t.Run(fmt.Sprintf("lanes=%v", lanes), func(t *testing.T) {
			sink := &turnSink{blockSink: &blockSink{blocks: map[uint64]bool{}}}
			var states []State
			var standings []Standing
			applied, committed, ran := 0, 0, 0
			hooks := Hooks{
				Applied:   func(time.Duration) { applied++ },
				Committed: func(time.Duration) { committed++ },
				Changed: func(before, now State, why string) {
					if len(states) > 0 && states[len(states)-1] != before || (now == StateActive) != (why == "") {
						t.Errorf("from %v to %v: %q, after %v", before, now, why, states)
					}
					states = append(states, now)
				},
				Stands: func(now Standing, _ string) { standings = append(standings, now) },
			}
			if lanes {
				hooks.Run = func(j Job) {
					ran++
					for j.Prepare() {
						sink.InTurn(j.Apply)
					}
				}
			}
			src := &handSource{}
			s, err := Open(source{src}, Config{Endpoint: "tcp://127.0.0.1:1", ReplayEndpoint: "tcp://127.0.0.1:2"}, sink, hooks)
			if err != nil {
				t.Fatal(err)
			}
			now := epochTime
			p := make([][]byte, 5)
			for i := range p {
				p[i] = payload(storeOf(0, uint64(i+1)))
			}
			if s.State() != StatePending {
				t.Errorf("at first: got %v, want pending", s.State())
			}
			s.Connected(now)
			req, ask, _ := s.Next(now)
			if !ask || req.Start != 0 {
				t.Fatalf("got a request %v from %d, want one from 0", ask, req.Start)
			}
			s.Live([]Message{{Seq: 2, Payload: p[2]}, {Bad: true}, {Seq: 3, Payload: p[3]}}, now)
			s.Next(now)
			s.Replayed(req.ID, []Message{{Seq: 0, Payload: p[0]}, {Seq: 1, Payload: p[1]}}, true, nil, now)
			s.Next(now)
			s.Live([]Message{{Seq: 4, Payload: p[4]}}, now)
			s.Next(now)
			s.Between(func(st Status) {
				if got := sink.held(); !slices.Equal(got, []uint64{1, 2, 3, 4, 5}) || st.LastSeq != 4 || st.Malformed != 1 {
					t.Errorf("got blocks %v, %s; want 1 to 5, at 4, 1 malformed", got, statusLine(st))
				}
			})
			came := make(chan struct{})
			s.Freeze(func(st Status, pos Position) {
				want := Position{Epoch: 1, HasSeq: true, LastSeq: 4, LastSum: xxh3.Hash(p[4])}
				if pos != want || st.LastSeq != 4 {
					t.Errorf("stands at %+v, want %+v", pos, want)
				}
				go func() {
					s.Live([]Message{{Seq: 4, Payload: p[4]}}, now) // waits; a duplicate
					close(came)
				}()
				if s.Status().Duplicates != 0 { // which anybody may ask meanwhile
					t.Error("a batch was admitted while the stream was frozen")
				}
			})
			<-came
			s.Disconnected("test", now)
			s.Next(now)
			if want := []State{StateDegraded, StateActive, StateDegraded}; !slices.Equal(states, want) || s.State() != StateDegraded {
				t.Errorf("got the states %v, %v at the end; want %v", states, s.State(), want)
			}
			want := []Standing{{StateDegraded, true, 1}, {StateActive, false, 1}, {StateDegraded, true, 1}}
			if !slices.Equal(standings, want) {
				t.Errorf("stood at %v, want %v", standings, want)
			}
			if applied != 4 || committed != 3 || sink.taken != 5 || sink.bad != 0 || lanes && ran != 4 {
				t.Errorf("told of %d applied, %d committed; %d turns, %d commits outside, %d runs; want 4, 3, 5, 0, 4", applied, committed, sink.taken, sink.bad, ran)
			}
			if s.Close(); src.closed != 1 {
				t.Errorf("tap closed %d times, want once", src.closed)
			}
		})
	}
}

// What can never work is refused at once, by name.
func TestOpenRefuses(t *testing.T) {
	good := Config{Endpoint: "tcp://127.0.0.1:1", ReplayEndpoint: "tcp://127.0.0.1:2"}
	for _, tc := range []struct {
		name   string
		edit   func(*Config)
		source error
		want   string
	}{
		{"no endpoint", func(c *Config) { c.Endpoint = "nowhere" }, nil, "tcp://host:port"},
		{"a replay endpoint of ours", func(c *Config) { c.ReplayEndpoint = "tcp://*:5558" }, nil, "bound by the engine"},
		{"no sockets", func(*Config) {}, ErrNoSockets, "ulimit -n"},
	} {
		cfg := good
		tc.edit(&cfg)
		_, err := Open(source{&handSource{refuse: tc.source}}, cfg, &blockSink{}, Hooks{})
		if err == nil || !contains(err.Error(), tc.want) || tc.source != nil && !errors.Is(err, tc.source) {
			t.Errorf("%s: got %v, want an error with %q", tc.name, err, tc.want)
		}
	}
}
