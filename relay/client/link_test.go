// SPDX-License-Identifier: Apache-2.0

package client

import (
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"kindex/proto/peer/common"

	relayv1 "kindex/proto/kindex/relay/v1"
)

// link is a TCP proxy that can be cut: it goes on to accept and to read, and
// passes nothing on, as a network does that drops packets.
type link struct {
	to  string
	ln  net.Listener
	cut atomic.Bool

	mu    sync.Mutex
	conns []net.Conn
}

func startLink(t *testing.T, to string) *link {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &link{to: to, ln: ln}
	go l.accept()
	t.Cleanup(func() {
		_ = ln.Close()
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, c := range l.conns {
			_ = c.Close()
		}
	})
	return l
}

func (l *link) accept() {
	for {
		near, err := l.ln.Accept()
		if err != nil {
			return
		}
		far, err := net.Dial("tcp", l.to)
		if err != nil {
			_ = near.Close()
			continue
		}
		l.mu.Lock()
		l.conns = append(l.conns, near, far)
		l.mu.Unlock()
		go l.pass(near, far)
		go l.pass(far, near)
	}
}

func (l *link) pass(from, to net.Conn) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 && !l.cut.Load() {
			_, _ = to.Write(buf[:n])
		}
		if err != nil {
			if !l.cut.Load() {
				_ = to.Close()
			}
			return
		}
	}
}

// feeder is an own script that sends batches as they are published, from a
// cursor on.
type feeder struct {
	mu    sync.Mutex
	all   []*relayv1.SubscribeResponse
	more  chan struct{}
	quiet bool // no standing first
}

func (p *feeder) publish(ms ...*relayv1.SubscribeResponse) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all = append(p.all, ms...)
	if p.more != nil {
		close(p.more)
		p.more = nil
	}
}

func (p *feeder) serve(_ int, req *relayv1.SubscribeRequest, s grpc.ServerStream) error {
	next := 0
	if len(req.GetCursors()) > 0 {
		next = int(req.GetCursors()[0].GetSequence()) + 1
	}
	if !p.quiet {
		if err := s.SendMsg(ownStanding(true, true, "")); err != nil {
			return err
		}
	}
	for {
		p.mu.Lock()
		if p.more == nil {
			p.more = make(chan struct{})
		}
		all, more := p.all, p.more
		p.mu.Unlock()
		for ; next < len(all); next++ {
			if err := s.SendMsg(all[next]); err != nil {
				return err
			}
		}
		select {
		case <-more:
		case <-s.Context().Done():
			return s.Context().Err()
		}
	}
}

// TestLinkCut: a link that drops everything is noticed without a message, and the
// first attempt that can succeed after it does is not held up by those before it.
func TestLinkCut(t *testing.T) {
	p := &feeder{}
	p.publish(ownBatch(5, 0, ownStore(1, 1, 0)))
	f := startFake(t, &fake{own: p.serve})
	l := startLink(t, f.addr)
	_, recs := subscribe(t, &fake{addr: l.ln.Addr().String()}, Config{SilenceTimeout: time.Second, DialPeriod: 200 * time.Millisecond})
	r := recs[0]
	r.until(t, "exact", func(lines []string) bool { return told(lines, "batch 0") == 1 && endsExact(lines) })
	for round, cut := range []time.Duration{500 * time.Millisecond, 1500 * time.Millisecond, 2500 * time.Millisecond} {
		l.cut.Store(true)
		r.until(t, "the cut is noticed", func(lines []string) bool { return told(lines, "disconnected: no sign of life") > round })
		seq := uint64(round + 1)
		p.publish(ownBatch(5, seq, ownStore(seq+1, 1, seq)))
		time.Sleep(cut)
		l.cut.Store(false)
		healed := time.Now()
		r.until(t, "exact again", func(lines []string) bool {
			return told(lines, "batch") == round+2 && endsExact(lines)
		})
		t.Logf("cut for %v, exact %v after the heal", cut, time.Since(healed).Round(time.Millisecond))
	}
	lines, _, _, _ := r.snapshot()
	if told(lines, "reset")+told(lines, "begin") > 0 {
		t.Errorf("not resumed by cursor:\n%s", strings.Join(lines, "\n"))
	}
}

// TestSilence: a server that has nothing to say is not taken for a dead one, under
// either contract, and stands exact.
func TestSilence(t *testing.T) {
	for name, f := range map[string]*fake{
		"own": {own: func(_ int, _ *relayv1.SubscribeRequest, s grpc.ServerStream) error {
			return hold(s, ownStanding(true, true, ""))
		}},
		"peer": {vllm: func(_ int, _ *common.SubscribeKvEventsRequest, s grpc.ServerStream) error {
			return hold[*common.KvEventBatch](s)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			startFake(t, f)
			_, recs := subscribe(t, f, Config{SilenceTimeout: time.Second})
			recs[0].untilTold(t, "exact")
			time.Sleep(3 * time.Second)
			lines, _, _, s := recs[0].snapshot()
			if told(lines, "disconnected") > 0 || !s.Exact {
				t.Errorf("told:\n%s", strings.Join(lines, "\n"))
			}
		})
	}
}

// TestRestartedServer: the address refuses for a while and comes back.
func TestRestartedServer(t *testing.T) {
	p := &feeder{}
	p.publish(ownBatch(5, 0, ownStore(1, 1, 0)))
	f := startFake(t, &fake{own: p.serve})
	_, recs := subscribe(t, f, Config{DialPeriod: 200 * time.Millisecond})
	recs[0].until(t, "exact", endsExact)
	f.stop()
	p.publish(ownBatch(5, 1))
	recs[0].until(t, "refused", func(lines []string) bool {
		return slices.ContainsFunc(lines, func(l string) bool { return strings.Contains(l, "connection refused") })
	})
	time.Sleep(time.Second)
	f.start()
	up := time.Now()
	recs[0].until(t, "exact", func(lines []string) bool { return told(lines, "batch 1") == 1 && endsExact(lines) })
	t.Logf("exact %v after the server was back", time.Since(up).Round(time.Millisecond))
}

// TestGoAway: a server that ends its connections every moment loses nothing.
func TestGoAway(t *testing.T) {
	p := &feeder{}
	f := startFake(t, &fake{own: p.serve, options: []grpc.ServerOption{
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionAge: 30 * time.Millisecond, MaxConnectionAgeGrace: time.Millisecond}),
	}})
	c, recs := subscribe(t, f, Config{})
	for seq := range uint64(40) {
		p.publish(ownBatch(5, seq, ownStore(seq+1, 1, seq)))
		time.Sleep(5 * time.Millisecond)
	}
	lines := recs[0].untilTold(t, "batch 39")
	if n := told(lines, "batch"); n != 40 {
		t.Errorf("%d batches, want 40", n)
	}
	if n := c.Status().Connections; n < 2 {
		t.Errorf("%d connections: nothing was tested", n)
	}
}

// TestBrokenMessages: a message that is too long or no message at all does not
// hold the client up for ever: the rank is asked for from the beginning.
func TestBrokenMessages(t *testing.T) {
	garbage := &relayv1.SubscribeResponse{}
	garbage.ProtoReflect().SetUnknown([]byte{3<<3 | 2, 5, 0xff}) // a batch of 5 bytes, of which one is there
	for name, bad := range map[string]*relayv1.SubscribeResponse{
		"long":    ownBatch(5, 1, ownRemove(make([]uint64, 1<<17)...)),
		"garbage": garbage,
	} {
		t.Run(name, func(t *testing.T) {
			var resumed atomic.Int32
			f := startFake(t, &fake{own: func(_ int, req *relayv1.SubscribeRequest, s grpc.ServerStream) error {
				if len(req.GetCursors()) == 0 && resumed.Load() > 0 {
					return hold(s, ownBatch(6, 0, ownStore(1, 3, 0)), ownBatch(6, 1))
				}
				if len(req.GetCursors()) == 0 {
					_ = send(s, ownBatch(5, 0, ownStore(1, 1, 0)))
				}
				resumed.Add(1)
				if err := s.SendMsg(bad); err != nil {
					return err
				}
				<-s.Context().Done()
				return s.Context().Err()
			}})
			c, recs := subscribe(t, f, Config{MaxMessageBytes: 1 << 19})
			recs[0].until(t, "the new beginning", func(lines []string) bool { return told(lines, "batch 1") > 0 && endsExact(lines) })
			_, blocks, _, _ := recs[0].snapshot()
			if blocks != 3 {
				t.Errorf("%d blocks, want 3; status is %+v", blocks, c.Status())
			}
		})
	}
}

// TestPushBack: while a handler runs the server's stream fills and nothing is
// queued here.
func TestPushBack(t *testing.T) {
	var sent atomic.Int32
	f := startFake(t, &fake{own: func(_ int, _ *relayv1.SubscribeRequest, s grpc.ServerStream) error {
		wide := make([]uint64, 16<<10) // 128 KiB
		for seq := range uint64(400) {
			if err := s.SendMsg(ownBatch(5, seq, ownRemove(wide...))); err != nil {
				return err
			}
			sent.Add(1)
		}
		return hold[*relayv1.SubscribeResponse](s)
	}})
	gate := make(chan struct{})
	rec := &record{slow: func() { <-gate }}
	c, err := New(Config{Address: f.addr, Ranks: []uint32{0}, SilenceTimeout: 200 * time.Millisecond}, func(uint32) Handler { return rec })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	rec.untilTold(t, "batch 0")
	time.Sleep(700 * time.Millisecond)
	if n := sent.Load(); n > 100 {
		t.Errorf("%d batches of 128 KiB were taken while a handler held the first", n)
	}
	close(gate)
	rec.untilTold(t, "batch 399")
	if lines, _, _, _ := rec.snapshot(); told(lines, "disconnected") > 0 {
		t.Errorf("a slow handler was taken for a dead link:\n%s", strings.Join(lines, "\n"))
	}
}

// TestCloseAnyTime: Close ends a client in whatever state, leaves no goroutine and
// lets no handler be called after it.
func TestCloseAnyTime(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	p := &feeder{}
	for seq := range uint64(200) {
		p.publish(ownBatch(5, seq, ownStore(seq+1, 1, seq)))
	}
	f := &fake{own: p.serve, t: t, addr: "127.0.0.1:0"}
	f.start()
	defer f.stop()
	refused := "127.0.0.1:1"
	for i, addr := range []string{f.addr, f.addr, f.addr, refused} {
		var closed atomic.Bool
		rec := &record{}
		rec.slow = func() {
			if closed.Load() {
				t.Error("a handler was called after Close")
			}
		}
		c, err := New(Config{Address: addr, Ranks: []uint32{0}}, func(uint32) Handler { return rec })
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(i*i) * 3 * time.Millisecond)
		c.Close()
		closed.Store(true)
		c.Close()
	}
}

// TestRefusals: what can never work is refused at once, in one line.
func TestRefusals(t *testing.T) {
	token := func() (string, error) { return "secret", nil }
	for want, cfg := range map[string]Config{
		"must be host:port":         {Address: "tcp://h:1", Ranks: []uint32{0}},
		"the port must be 1":        {Address: "h:0", Ranks: []uint32{0}},
		"there must be 1 to":        {Address: "h:1"},
		"no rank twice":             {Address: "h:1", Ranks: []uint32{1, 1}},
		"a bearer token needs TLS":  {Address: "h:1", Ranks: []uint32{0}, Token: token},
		"block size -1":             {Address: "h:1", Ranks: []uint32{0}, BlockSize: -1},
		"the host must be":          {Address: "*:1", Ranks: []uint32{0}},
		"rank 70000: it must be 0 ": {Address: "h:1", Ranks: []uint32{70_000}},
	} {
		c, err := New(cfg, func(uint32) Handler { return &record{} })
		if err == nil {
			c.Close()
		}
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%+v: error is %v, want one that says %q", cfg, err, want)
		}
	}
}

// TestServerErrors: what a server answers is told, in one line, and retried.
func TestServerErrors(t *testing.T) {
	f := startFake(t, &fake{own: func(n int, _ *relayv1.SubscribeRequest, s grpc.ServerStream) error {
		switch n {
		case 0:
			return status.Error(codes.NotFound, "no engine \"x\" here:\n\x00it is w0")
		case 1:
			return status.Error(codes.PermissionDenied, strings.Repeat("é", 1_000))
		case 2:
			return nil
		case 3:
			return errors.Join(io.ErrUnexpectedEOF)
		}
		return hold(s, ownBatch(5, 0))
	}})
	_, recs := subscribe(t, f, Config{})
	lines := recs[0].untilTold(t, "batch 0")
	for _, want := range []string{`disconnected: NotFound: no engine "x" here:  it is w0`, "disconnected: PermissionDenied: é", "disconnected: the server ended the stream", "disconnected: unexpected EOF"} {
		if told(lines, want) == 0 {
			t.Errorf("nothing begins with %q in\n%s", want, strings.Join(lines, "\n"))
		}
	}
	for _, l := range lines {
		if len(l) > 400 || strings.ContainsAny(l, "\n\x00") {
			t.Errorf("not one short line: %q", l)
		}
	}
}
