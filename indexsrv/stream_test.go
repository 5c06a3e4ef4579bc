// SPDX-License-Identifier: Apache-2.0

package indexsrv

import (
	"fmt"
	"net"
	"runtime"
	"testing"
	"time"

	"go.uber.org/goleak"

	"kindex/relay/feed"
	"kindex/relay/wire"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// fasthttp's own: a worker pool looks every 10 s whether it was stopped,
		// and the clock of the Date header never ends.
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.(*workerPool).Start.func2"),
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.updateServerDate.func1"))
}

// A late joiner learns the history from the replay socket, in both framings.
func TestStreamLateJoin(t *testing.T) {
	for _, framing := range []wire.ReplayFrames{wire.ReplayBare, wire.ReplayTopic} {
		e := startEngine(t, nil, func(e *engine) { e.framing = framing })
		e.publish(storeOf(0, 1, 2))
		e.publish(storeOf(2, 3))
		s := subscribe(t, StreamConfig{Endpoint: e.live, ReplayEndpoint: e.back})
		st := s.at(1, 1)
		s.want(1, 2, 3)
		if st.Recovered != 2 || st.Lost != 0 {
			t.Errorf("got %s; want 2 recovered, 0 lost", statusLine(st))
		}
		e.publish(storeOf(3, 4))
		s.at(1, 2)
		s.want(1, 2, 3, 4)
	}
}

// Names, ipc, and an engine that connects to us.
func TestStreamEndpoints(t *testing.T) {
	t.Run("name", func(t *testing.T) {
		e := startEngine(t, nil, nil)
		e.publish(storeOf(0, 1))
		_, live, _ := net.SplitHostPort(e.live[len("tcp://"):])
		_, back, _ := net.SplitHostPort(e.back[len("tcp://"):])
		s := subscribe(t, StreamConfig{Endpoint: "tcp://localhost:" + live, ReplayEndpoint: "tcp://localhost:" + back})
		s.at(1, 0)
	})
	t.Run("unknown name", func(t *testing.T) {
		s := subscribe(t, StreamConfig{Endpoint: "tcp://no-such-host.invalid:5557"})
		st := s.eventually("saying why", func(st StreamStatus) bool { return st.LastError != "" })
		if st.State != feed.StatePending || !contains(st.LastError, "no-such-host.invalid") {
			t.Errorf("got %s; want pending, and the name", statusLine(st))
		}
	})
	t.Run("bound", func(t *testing.T) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		_, port, _ := net.SplitHostPort(l.Addr().String())
		l.Close()
		s := subscribe(t, StreamConfig{Endpoint: "tcp://*:" + port})
		s.state(feed.StatePending)
		e := startEngine(t, nil, func(e *engine) { e.connectTo, e.noReplay = "tcp://127.0.0.1:"+port, true })
		s.state(feed.StateActive)
		e.publish(storeOf(0, 1))
		s.at(1, 0)
		e.kill()
		s.eventually("disconnected", func(st StreamStatus) bool { return !st.Connected })
		s.stop()
		// The same address again at once: the old socket is still being closed.
		s = subscribeTo(t, s.src, newIndex(t), StreamConfig{Endpoint: "tcp://*:" + port})
		e = startEngine(t, nil, func(e *engine) { e.connectTo, e.noReplay = "tcp://127.0.0.1:"+port, true })
		s.state(feed.StateActive)
		e.publish(storeOf(0, 2))
		s.at(1, 0)
	})
}

// Batches lost on the way come from a slow replay, in order, while newer ones
// wait; each is applied once.
func TestStreamGapSlowReplay(t *testing.T) {
	e := startEngine(t, nil, func(e *engine) { e.slow = 200 * time.Millisecond })
	s := subscribe(t, StreamConfig{Endpoint: e.live, ReplayEndpoint: e.back})
	s.state(feed.StateActive)
	e.publish(storeOf(0, 1))
	e.unheard(storeOf(0, 2))
	e.unheard(removeOf(1))
	e.publish(storeOf(0, 3))
	s.eventually("held", func(st StreamStatus) bool { return st.HeldBatches > 0 })
	s.want(1)
	s.state(feed.StateDegraded)
	e.publish(removeOf(3))
	st := s.at(1, 4)
	s.want(2)
	if st.Gaps != 1 || st.Recovered != 2 || st.Lost != 0 || st.Batches != 5 {
		t.Errorf("got %s, %d batches; want 1 gap, 2 recovered, 0 lost, 5 batches", statusLine(st), st.Batches)
	}
}

// A restarted publisher is noticed with and without a replay socket, whether it
// kept nothing, says nothing, or has overtaken the old numbers.
func TestStreamRestart(t *testing.T) {
	old := func(t *testing.T, replay bool) (*engine, *streamTest) {
		e := startEngine(t, nil, func(e *engine) { e.noReplay = !replay })
		s := subscribe(t, StreamConfig{Endpoint: e.live, ReplayEndpoint: e.back})
		s.state(feed.StateActive)
		for b := range uint64(100) {
			e.publish(storeOf(b, b+1))
		}
		s.at(1, 99)
		e.kill()
		s.eventually("disconnected", func(st StreamStatus) bool { return !st.Connected })
		return e, s
	}
	t.Run("no replay", func(t *testing.T) {
		e, s := old(t, false)
		e = startEngine(t, e, func(e *engine) { e.noReplay = true })
		s.subscribed()
		e.publish(storeOf(0, 500))
		st := s.at(2, 0)
		s.want(500)
		if st.Restarts != 1 || st.Lost != 0 {
			t.Errorf("got %s; want 1 restart, 0 lost", statusLine(st))
		}
	})
	t.Run("replay holding three", func(t *testing.T) {
		e, s := old(t, true)
		e = startEngine(t, e, nil)
		e.unheard(storeOf(0, 501))
		e.unheard(storeOf(501, 502))
		e.unheard(storeOf(502, 503))
		st := s.at(2, 2)
		s.want(501, 502, 503)
		if st.Restarts != 1 || st.Lost != 0 || st.Recovered != 3 {
			t.Errorf("got %s; want 1 restart, 0 lost, 3 recovered", statusLine(st))
		}
	})
	t.Run("silent", func(t *testing.T) {
		e, s := old(t, true)
		startEngine(t, e, nil)
		s.eventually("empty", func(st StreamStatus) bool { return st.State == feed.StateActive && st.Epoch == 2 })
		s.want()
	})
	t.Run("overtaken", func(t *testing.T) {
		e, s := old(t, true)
		e = startEngine(t, e, nil)
		for b := range uint64(150) {
			e.unheard(storeOf(0, 1000+b))
		}
		e.publish(storeOf(0, 2000))
		st := s.at(2, 150)
		if st.Restarts != 1 || st.Memberships != 151 {
			t.Errorf("got %s, %d memberships; want 1 restart, 151", statusLine(st), st.Memberships)
		}
	})
	t.Run("connection lost, the same publisher", func(t *testing.T) {
		e := startEngine(t, nil, nil)
		p := newProxy(t, e.live)
		s := subscribe(t, StreamConfig{Endpoint: p.addr(), ReplayEndpoint: e.back})
		s.state(feed.StateActive)
		e.publish(storeOf(0, 1))
		s.at(1, 0)
		p.cut()
		s.eventually("disconnected", func(st StreamStatus) bool { return !st.Connected })
		e.publish(storeOf(0, 2))
		e.publish(removeOf(1))
		p.restore()
		st := s.at(1, 2)
		s.want(2)
		if st.Restarts != 0 || st.Lost != 0 {
			t.Errorf("got %s; want no restart, nothing lost", statusLine(st))
		}
	})
}

// A subscriber that joins while the engine keeps storing ends with the engine's
// own set.
func TestStreamJoinUnderLoad(t *testing.T) {
	e := startEngine(t, nil, nil)
	for b := range uint64(500) {
		e.publish(storeOf(0, b+1))
	}
	s := subscribe(t, StreamConfig{Endpoint: e.live, ReplayEndpoint: e.back})
	for b := range uint64(400) {
		e.publish(storeOf(0, b+1001), removeOf(b+1))
	}
	st := s.at(1, 899)
	if st.Lost != 0 || st.Memberships != 500 || st.Batches != 900 {
		t.Errorf("got %s, %d memberships of %d batches; want 500 of 900", statusLine(st), st.Memberships, st.Batches)
	}
}

// A stream that is stopped in the middle of its batches applies nothing more, and
// its successor under the same address starts from nothing.
func TestStreamFence(t *testing.T) {
	e := startEngine(t, nil, func(e *engine) { e.noReplay = true })
	s := subscribe(t, StreamConfig{Endpoint: e.live})
	s.state(feed.StateActive)
	go func() {
		for b := range uint64(1000) {
			e.publish(storeOf(b, b+1))
		}
	}()
	s.eventually("at 500", func(st StreamStatus) bool { return st.HasSeq && st.LastSeq >= 500 })
	s.stop()
	before := len(heldBy(t, s.w, s.h))
	time.Sleep(20 * time.Millisecond)
	if after := len(heldBy(t, s.w, s.h)); after != before {
		t.Errorf("stopped with %d blocks, now %d", before, after)
	}
	if err := s.w.Drop(s.h); err != nil {
		t.Fatal(err)
	}
	e.kill()
	e = startEngine(t, e, func(e *engine) { e.noReplay = true })
	again := subscribeTo(t, s.src, s.w, StreamConfig{Endpoint: e.live})
	again.state(feed.StateActive)
	for b := range uint64(10) {
		e.publish(storeOf(0, 5001+b))
	}
	again.at(1, 9)
	again.want(5001, 5002, 5003, 5004, 5005, 5006, 5007, 5008, 5009, 5010)
}

// Stopping does not wait for whatever is under way.
func TestStopWhilePending(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts and says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	dumb := "tcp://" + silent.Addr().String()
	src := newSource(t, feed.ZMQOptions{})
	deaf := startEngine(t, nil, func(e *engine) { e.deaf = true })
	slow := startEngine(t, nil, func(e *engine) { e.slow = time.Second })
	slow.publish(storeOf(0, 1))
	for name, cfg := range map[string]StreamConfig{
		"connect":   {Endpoint: "tcp://127.0.0.1:9", ReplayEndpoint: "tcp://127.0.0.1:9"},
		"nowhere":   {Endpoint: "tcp://192.0.2.1:5557", ReplayEndpoint: "tcp://192.0.2.1:5558"},
		"name":      {Endpoint: "tcp://no-such-host.invalid:5557"},
		"handshake": {Endpoint: dumb, ReplayEndpoint: dumb},
		"replay":    {Endpoint: deaf.live, ReplayEndpoint: deaf.back},
		"slow":      {Endpoint: slow.live, ReplayEndpoint: slow.back},
		"dumb":      {Endpoint: deaf.live, ReplayEndpoint: dumb},
	} {
		for _, after := range []time.Duration{0, 50 * time.Millisecond} {
			s := subscribeTo(t, src, newIndex(t), cfg)
			time.Sleep(after)
			begun := time.Now()
			s.stop()
			if d := time.Since(begun); d > 200*time.Millisecond {
				t.Errorf("%s after %v: stopping took %v, want at most 200 ms", name, after, d)
			}
		}
	}
}

// What cannot be reached is pending, then failed, with the system's reason, and
// comes to life when it appears.
func TestStreamFailed(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := "tcp://" + l.Addr().String()
	l.Close()
	src := newSource(t, feed.ZMQOptions{ProbeDelay: 20 * time.Millisecond, ProbePeriod: 20 * time.Millisecond})
	s := subscribeTo(t, src, newIndex(t), StreamConfig{Endpoint: addr, Limits: feed.Limits{ConnectPeriod: 300 * time.Millisecond}})
	s.state(feed.StatePending)
	st := s.state(feed.StateFailed)
	if !contains(st.LastError, "refused") || !contains(st.LastError, addr) {
		t.Errorf("last error: got %q, want the address and connection refused", st.LastError)
	}
	e := startEngine(t, &engine{live: addr, back: "tcp://127.0.0.1:*"}, nil)
	s.state(feed.StateActive)
	e.publish(storeOf(0, 1))
	s.at(1, 0)
	s.want(1)
}

// Garbage costs itself: each is counted, no good batch is lost, and the stream
// goes on.
func TestStreamGarbage(t *testing.T) {
	e := startEngine(t, nil, nil)
	s := subscribe(t, StreamConfig{Endpoint: e.live, ReplayEndpoint: e.back})
	s.state(feed.StateActive)
	e.publish(storeOf(0, 1))
	seq := func(n uint64) []byte { return wire.MakeMessage("", n, nil)[1] }
	good := payload(storeOf(0, 9))
	deep := make([]byte, 100_000)
	for i := range deep {
		deep[i] = 0x91
	}
	huge := []byte{0x93, 0xcb, 0, 0, 0, 0, 0, 0, 0, 0, 0xdd, 0xff, 0xff, 0xff, 0xff}
	messages := [][][]byte{
		{[]byte("kv")},
		{[]byte("kv"), seq(1)},
		{[]byte("kv"), seq(1), good, nil},
		{[]byte("kv"), []byte("1234"), good},
		{[]byte("kv"), nil, good},
		{[]byte("kv"), seq(1), nil},
		{[]byte("kv"), seq(1), good[:len(good)/2]},
		{[]byte("kv"), seq(1), deep},
		{[]byte("kv"), seq(1), huge},
		{[]byte("kv"), seq(1), []byte("not msgpack at all")},
		{[]byte("kv"), seq(1 << 50), deep},
		{[]byte("kv"), seq(0), huge},
		{[]byte("kv"), seq(1<<64 - 1), good},
		make([][]byte, 500),
	}
	for _, m := range messages {
		e.raw(m...)
	}
	st := s.eventually("counted", func(st StreamStatus) bool {
		return st.Dropped["malformed"] >= uint64(len(messages)) && st.State == feed.StateActive
	})
	if st.LastSeq != 0 || st.Restarts != 0 || st.Lost != 0 {
		t.Errorf("got %s; want at 0, no restart, nothing lost", statusLine(st))
	}
	e.publish(storeOf(0, 2))
	s.at(1, 1)
	s.want(1, 2)
}

// A peer that claims frames of 4 GiB, or speaks no ZMTP, costs no memory, and the
// stream still takes what a good publisher says afterwards.
func TestStreamHostilePeer(t *testing.T) {
	greeting := append([]byte{0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 0, 'N', 'U', 'L', 'L'}, make([]byte, 48)...)
	ready := []byte("\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x03PUB")
	claims := map[string][]byte{
		"4 GiB frame":   append(append(append([]byte{}, greeting...), ready...), 0x02, 0, 0, 0, 1, 0, 0, 0, 0, 'x'),
		"8 EiB frame":   append(append(append([]byte{}, greeting...), ready...), 0x02, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 'x'),
		"4 GiB command": append(append([]byte{}, greeting...), 0x06, 0, 0, 0, 1, 0, 0, 0, 0, 'x'),
		"no ZMTP":       []byte("HTTP/1.1 400 Bad Request\r\n\r\n"),
	}
	for name, bytes := range claims {
		t.Run(name, func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			addr := "tcp://" + l.Addr().String()
			visits := make(chan struct{}, 1000)
			served := make(chan struct{})
			go func() {
				defer close(served)
				for {
					c, err := l.Accept()
					if err != nil {
						return
					}
					_, _ = c.Write(bytes)
					buf := make([]byte, 1024)
					_ = c.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
					for err == nil {
						_, err = c.Read(buf)
					}
					c.Close()
					visits <- struct{}{}
				}
			}()
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			resident := residentBytes(t)
			src := newSource(t, feed.ZMQOptions{ReplayIdle: 200 * time.Millisecond, ProbeDelay: 50 * time.Millisecond})
			s := subscribeTo(t, src, newIndex(t), StreamConfig{Endpoint: addr, ReplayEndpoint: addr})
			for range 5 {
				select {
				case <-visits:
				case <-time.After(10 * time.Second):
					t.Fatal("the stream does not come back")
				}
			}
			runtime.ReadMemStats(&after)
			if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 64<<20 {
				t.Errorf("the heap grew by %d bytes", grown)
			}
			if rss := residentBytes(t); rss > resident+1<<30 {
				t.Errorf("%d bytes resident, %d before", rss, resident)
			}
			l.Close()
			<-served
			e := startEngine(t, &engine{live: addr, back: "tcp://127.0.0.1:*"}, nil)
			s.eventually("connected", func(st StreamStatus) bool { return st.Connected })
			s.eventually("applied", func(st StreamStatus) bool {
				e.publish(storeOf(0, 1)) // the first may be ahead of the subscription
				return st.Batches > 0
			})
			s.want(1)
		})
	}
}

// A replay socket that never ends its answers, or that answers garbage, leaves
// the live stream going, marked.
func TestStreamBadReplay(t *testing.T) {
	impatient := feed.ZMQOptions{ReplayIdle: 200 * time.Millisecond}
	t.Run("no end mark", func(t *testing.T) {
		e := startEngine(t, nil, func(e *engine) { e.truncated = true })
		e.publish(storeOf(0, 1))
		s := subscribeTo(t, newSource(t, impatient), newIndex(t), StreamConfig{Endpoint: e.live, ReplayEndpoint: e.back})
		s.eventually("joined", func(st StreamStatus) bool { return st.HasSeq })
		e.publish(storeOf(0, 2))
		s.eventually("applied", func(st StreamStatus) bool { return st.LastSeq == 1 })
		s.want(1, 2)
		st := s.eventually("given up", func(st StreamStatus) bool { return !st.Repairing })
		if st.State != feed.StateDegraded || !contains(st.LastError, "no answer") {
			t.Errorf("got %s; want degraded, and that nobody answers", statusLine(st))
		}
	})
	t.Run("deaf", func(t *testing.T) {
		e := startEngine(t, nil, func(e *engine) { e.deaf = true })
		s := subscribeTo(t, newSource(t, impatient), newIndex(t), StreamConfig{Endpoint: e.live, ReplayEndpoint: e.back})
		s.subscribed()
		e.publish(storeOf(0, 1)) // the first: nothing came before
		s.at(1, 0)
		e.unheard(storeOf(0, 2))
		e.publish(storeOf(0, 3))
		st := s.eventually("given up", func(st StreamStatus) bool { return st.Lost == 1 })
		if st.State != feed.StateDegraded {
			t.Errorf("got %s; want degraded", statusLine(st))
		}
		s.want(1, 3)
	})
}

// Many streams at one source, connected and not, all end.
func TestStreamMany(t *testing.T) {
	e := startEngine(t, nil, nil)
	e.publish(storeOf(0, 1))
	src, w := newSource(t, feed.ZMQOptions{}), newIndex(t)
	var all []*streamTest
	for i := range 100 {
		cfg := StreamConfig{Endpoint: e.live, ReplayEndpoint: e.back}
		if i%2 == 1 {
			cfg.Endpoint = fmt.Sprintf("tcp://127.0.0.1:%d", 1+i)
		}
		all = append(all, subscribeTo(t, src, w, cfg))
	}
	for i, s := range all {
		if i%2 == 0 {
			s.at(1, 0)
		}
	}
	for _, s := range all {
		s.stop()
	}
}
