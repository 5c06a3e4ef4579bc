// SPDX-License-Identifier: Apache-2.0

package indexsrv

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	zmq "github.com/pebbe/zmq4"

	"kindex/internal/kv"
	"kindex/relay/feed"
	"kindex/relay/wire"
	"kindex/shard"
)

// engine is a publisher as engines are: a PUB socket, a replay buffer behind a
// ROUTER socket, one thread for both.
type engine struct {
	t    testing.TB
	live string // endpoints, as a subscriber names them
	back string

	cmds chan func(*engineThread)
	done chan struct{}
	stop sync.Once

	framing   wire.ReplayFrames
	keep      int           // batches kept for replay
	slow      time.Duration // before an answer
	deaf      bool          // no answer at all
	truncated bool          // answers lack their end mark
	noReplay  bool
	connectTo string // the live socket connects there instead of binding
}

// engineThread is what the engine's own goroutine owns.
type engineThread struct {
	ctx         *zmq.Context
	pub, router *zmq.Socket
	seq         uint64
	buffer      []feed.Message
}

// startEngine begins one life of a publisher. ports, when not nil, are those of
// an earlier life.
func startEngine(t testing.TB, old *engine, edit func(*engine)) *engine {
	t.Helper()
	e := &engine{t: t, cmds: make(chan func(*engineThread)), done: make(chan struct{}), keep: 10_000, framing: wire.ReplayTopic}
	if edit != nil {
		edit(e)
	}
	ctx, err := zmq.NewContext()
	if err != nil {
		t.Fatal(err)
	}
	_ = ctx.SetBlocky(false)
	th := &engineThread{ctx: ctx}
	at := [2]string{"tcp://127.0.0.1:*", "tcp://127.0.0.1:*"}
	if old != nil {
		at = [2]string{old.live, old.back}
	}
	if e.connectTo != "" {
		th.pub = engineSocket(t, ctx, zmq.PUB, "")
		if err := th.pub.Connect(e.connectTo); err != nil {
			t.Fatal(err)
		}
	} else {
		th.pub = engineSocket(t, ctx, zmq.PUB, at[0])
		e.live, _ = th.pub.GetLastEndpoint()
	}
	if !e.noReplay {
		th.router = engineSocket(t, ctx, zmq.ROUTER, at[1])
		e.back, _ = th.router.GetLastEndpoint()
	}
	go e.run(th)
	t.Cleanup(e.kill)
	return e
}

func engineSocket(t testing.TB, ctx *zmq.Context, kind zmq.Type, at string) *zmq.Socket {
	t.Helper()
	s, err := ctx.NewSocket(kind)
	if err != nil {
		t.Fatal(err)
	}
	_ = s.SetLinger(0)
	_ = s.SetSndhwm(100_000)
	if at != "" {
		deadline := time.Now().Add(5 * time.Second)
		for err = s.Bind(at); err != nil; err = s.Bind(at) {
			if time.Now().After(deadline) {
				t.Fatalf("binding %s: %v", at, err)
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
	return s
}

func (e *engine) run(th *engineThread) {
	defer close(e.done)
	defer func() {
		_ = th.pub.Close()
		if th.router != nil {
			_ = th.router.Close()
		}
		_ = th.ctx.Term()
	}()
	for {
		select {
		case f := <-e.cmds:
			if f == nil {
				return
			}
			f(th)
		default:
			if th.router == nil {
				f := <-e.cmds
				if f == nil {
					return
				}
				f(th)
				continue
			}
			p := zmq.NewPoller()
			p.Add(th.router, zmq.POLLIN)
			got, err := p.Poll(time.Millisecond)
			if err == nil && len(got) > 0 {
				e.answer(th)
			}
		}
	}
}

func (e *engine) answer(th *engineThread) {
	frames, err := th.router.RecvMessageBytes(0)
	if err != nil || len(frames) < 2 {
		return
	}
	start, err := wire.ParseReplayRequest(frames[1:])
	if err != nil || e.deaf {
		return
	}
	if e.slow > 0 {
		deadline := time.After(e.slow)
		for wait := true; wait; {
			select {
			case f := <-e.cmds:
				if f == nil {
					go func() { e.cmds <- nil }()
					return
				}
				f(th)
			case <-deadline:
				wait = false
			}
		}
	}
	for _, m := range th.buffer {
		if m.Seq >= start {
			_, _ = th.router.SendMessage(frames[0], wire.MakeReplay(e.framing, "kv", m.Seq, m.Payload))
		}
	}
	if !e.truncated {
		_, _ = th.router.SendMessage(frames[0], wire.MakeReplayEnd(e.framing))
	}
}

// do runs f in the engine's goroutine and waits for it.
func (e *engine) do(f func(*engineThread)) {
	done := make(chan struct{})
	select {
	case e.cmds <- func(th *engineThread) { f(th); close(done) }:
		<-done
	case <-e.done:
		e.t.Error("the engine is gone")
	}
}

// publish sends the next batch; unheard batches go into the replay buffer only.
func (e *engine) publish(events ...kv.Event) { e.send(true, payload(events...)) }
func (e *engine) unheard(events ...kv.Event) { e.send(false, payload(events...)) }

func (e *engine) send(live bool, p []byte) {
	e.do(func(th *engineThread) {
		if live {
			_, _ = th.pub.SendMessage(wire.MakeMessage("kv", th.seq, p))
		}
		th.buffer = append(th.buffer, feed.Message{Seq: th.seq, Payload: p})
		if len(th.buffer) > e.keep {
			th.buffer = th.buffer[1:]
		}
		th.seq++
	})
}

// raw sends frames as they are.
func (e *engine) raw(frames ...[]byte) {
	e.do(func(th *engineThread) { _, _ = th.pub.SendMessage(frames) })
}

// kill ends this life.
func (e *engine) kill() {
	e.stop.Do(func() {
		select {
		case e.cmds <- nil:
			<-e.done
		case <-e.done:
		}
	})
}

// streamTest is one running stream over ZMQ into an index.
type streamTest struct {
	testing.TB
	src *feed.ZMQ
	w   *Writer
	h   shard.Holder
	s   *stream
}

var quiet = slog.New(slog.DiscardHandler)

func newSource(t testing.TB, opts feed.ZMQOptions) *feed.ZMQ {
	t.Helper()
	src, err := feed.NewZMQ(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := src.Close(); err != nil {
			t.Errorf("closing the source: %v", err)
		}
	})
	return src
}

func subscribe(t testing.TB, cfg StreamConfig) *streamTest {
	t.Helper()
	return subscribeTo(t, newSource(t, feed.ZMQOptions{ReplayIdle: time.Second}), newIndex(t), cfg)
}

func subscribeTo(t testing.TB, src *feed.ZMQ, w *Writer, cfg StreamConfig) *streamTest {
	t.Helper()
	h, err := w.AddHolder(testModel)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Model = testModel
	if cfg.BlockSize == 0 {
		cfg.BlockSize = testBlock
	}
	s, err := startStream(src, cfg, w, h, streamHooks{}, quiet)
	if err != nil {
		t.Fatal(err)
	}
	st := &streamTest{TB: t, src: src, w: w, h: h, s: s}
	t.Cleanup(st.stop)
	return st
}

func (s *streamTest) stop() {
	if s.s != nil {
		s.s.stop()
		s.s = nil
	}
}

// eventually waits for ok, and fails with what it says otherwise.
func (s *streamTest) eventually(what string, ok func(StreamStatus) bool) StreamStatus {
	s.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for {
		st := s.s.status()
		if ok(st) {
			return st
		}
		if time.Now().After(deadline) {
			s.Fatalf("never %s: %s", what, statusLine(st))
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func statusLine(st StreamStatus) string {
	return fmt.Sprintf("state %v (%s), repairing %v, last %d (%v), epoch %d, gaps %d, recovered %d, lost %d, restarts %d, duplicates %d, held %d, dropped %v",
		st.State, st.LastError, st.Repairing, st.LastSeq, st.HasSeq, st.Epoch, st.Gaps, st.Recovered, st.Lost, st.Restarts, st.Duplicates, st.HeldBatches, nonzero(st.Dropped))
}

// subscribed waits for a connection, and until the publisher must know of it.
func (s *streamTest) subscribed() {
	s.Helper()
	s.eventually("connected", func(st StreamStatus) bool { return st.Connected })
	time.Sleep(300 * time.Millisecond)
}

func (s *streamTest) state(want feed.State) StreamStatus {
	s.Helper()
	return s.eventually(want.String(), func(st StreamStatus) bool { return st.State == want })
}

// at waits until batch seq of epoch is the last one and the stream is active.
func (s *streamTest) at(epoch, seq uint64) StreamStatus {
	s.Helper()
	return s.eventually(fmt.Sprintf("active at %d of epoch %d", seq, epoch), func(st StreamStatus) bool {
		return st.State == feed.StateActive && st.HasSeq && st.LastSeq == seq && st.Epoch == epoch
	})
}

func (s *streamTest) want(blocks ...uint64) {
	s.Helper()
	got := heldBy(s, s.w, s.h)
	if fmt.Sprint(got) != fmt.Sprint(blocks) {
		s.Fatalf("held blocks: got %v, want %v; %s", got, blocks, statusLine(s.s.status()))
	}
}

func contains(s, part string) bool { return strings.Contains(s, part) }

// proxy passes one TCP address on to another until it is cut.
type proxy struct {
	t      testing.TB
	target string
	at     string

	mu    sync.Mutex
	l     net.Listener
	conns []net.Conn
	wg    sync.WaitGroup
}

func newProxy(t testing.TB, endpoint string) *proxy {
	p := &proxy{t: t, target: strings.TrimPrefix(endpoint, "tcp://"), at: "127.0.0.1:0"}
	p.restore()
	t.Cleanup(p.cut)
	return p
}

func (p *proxy) addr() string { return "tcp://" + p.at }

// cut ends every connection and takes no more.
func (p *proxy) cut() {
	p.mu.Lock()
	if p.l != nil {
		p.l.Close()
		p.l = nil
	}
	for _, c := range p.conns {
		c.Close()
	}
	p.conns = nil
	p.mu.Unlock()
	p.wg.Wait()
}

func (p *proxy) restore() {
	l, err := net.Listen("tcp", p.at)
	if err != nil {
		p.t.Fatal(err)
	}
	p.l, p.at = l, l.Addr().String()
	p.wg.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", p.target)
			if err != nil {
				in.Close()
				continue
			}
			p.mu.Lock()
			p.conns = append(p.conns, in, out)
			p.mu.Unlock()
			for _, pair := range [][2]net.Conn{{in, out}, {out, in}} {
				p.wg.Go(func() {
					_, _ = io.Copy(pair[0], pair[1])
					pair[0].Close()
				})
			}
		}
	})
}

// residentBytes is this process's resident memory.
func residentBytes(t testing.TB) int {
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Skip(err)
	}
	var size, resident int
	if _, err := fmt.Sscan(string(b), &size, &resident); err != nil {
		t.Fatal(err)
	}
	return resident * os.Getpagesize()
}
