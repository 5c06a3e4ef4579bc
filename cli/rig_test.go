// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	zmq "github.com/pebbe/zmq4"

	"kindex/indexsrv"
	"kindex/internal/kv"
	"kindex/relay/wire"
)

const testBlock = 4

var quiet = slog.New(slog.DiscardHandler)

// testHost is an index host in this process, as operators meet it.
type testHost struct {
	*indexsrv.Host
	t          *testing.T
	http, grpc string
}

func startHost(t *testing.T, change func(*indexsrv.Config)) *testHost {
	t.Helper()
	cfg := indexsrv.DefaultConfig()
	cfg.Listen, cfg.GRPCListen = "127.0.0.1:0", "127.0.0.1:0"
	cfg.DrainTimeout = 5 * time.Second
	if change != nil {
		change(&cfg)
	}
	h, err := indexsrv.New(cfg, quiet)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Listen(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- h.Serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Errorf("drain: %v", err)
		}
	})
	return &testHost{h, t, "http://" + h.Addr().String(), h.GRPCAddr().String()}
}

// follow registers engine e under an id.
func (h *testHost) follow(id, model string, e *engine) {
	h.t.Helper()
	r := indexsrv.Registration{Instance: indexsrv.ParseID(id), Model: model, Endpoint: e.live, ReplayEndpoint: e.back, BlockSize: testBlock}
	if err := h.Register(h.t.Context(), r); err != nil {
		h.t.Fatal(err)
	}
}

// settled waits until each stream of the ids stands as is wanted.
func (h *testHost) settled(want func(indexsrv.Worker, indexsrv.Listener) bool) {
	h.t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for {
		ok := true
		for _, w := range h.Instances("", "") {
			for _, l := range w.Listeners {
				ok = ok && want(w, l)
			}
		}
		if ok {
			return
		}
		if time.Now().After(deadline) {
			h.t.Fatalf("never so: %+v", h.Instances("", ""))
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// at waits until all streams are active behind batch seq.
func (h *testHost) at(seq uint64) {
	h.t.Helper()
	h.settled(func(_ indexsrv.Worker, l indexsrv.Listener) bool {
		return l.Status == "active" && l.LastSeq != nil && *l.LastSeq == seq
	})
}

// engine is a publisher: a PUB socket, and a replay buffer behind a ROUTER socket.
type engine struct {
	live, back string
	keep       int // batches kept for replay
	cmds       chan func(*engineThread)
}

type engineThread struct {
	pub, router *zmq.Socket
	seq         uint64
	buffer      [][2]any
}

func startEngine(t *testing.T, keep int) *engine {
	t.Helper()
	ctx, err := zmq.NewContext()
	if err != nil {
		t.Fatal(err)
	}
	_ = ctx.SetBlocky(false)
	open := func(kind zmq.Type) (*zmq.Socket, string) {
		s, err := ctx.NewSocket(kind)
		if err != nil {
			t.Fatal(err)
		}
		_ = s.SetLinger(0)
		if err := s.Bind("tcp://127.0.0.1:*"); err != nil {
			t.Fatal(err)
		}
		at, _ := s.GetLastEndpoint()
		return s, at
	}
	e := &engine{keep: keep, cmds: make(chan func(*engineThread))}
	th := &engineThread{}
	th.pub, e.live = open(zmq.PUB)
	th.router, e.back = open(zmq.ROUTER)
	done := make(chan struct{})
	go func() {
		defer close(done)
		e.run(th)
		_ = th.pub.Close()
		_ = th.router.Close()
		_ = ctx.Term()
	}()
	t.Cleanup(func() { e.cmds <- nil; <-done })
	return e
}

func (e *engine) run(th *engineThread) {
	p := zmq.NewPoller()
	p.Add(th.router, zmq.POLLIN)
	for {
		select {
		case f := <-e.cmds:
			if f == nil {
				return
			}
			f(th)
		default:
			if got, err := p.Poll(time.Millisecond); err == nil && len(got) > 0 {
				th.answer()
			}
		}
	}
}

func (th *engineThread) answer() {
	frames, err := th.router.RecvMessageBytes(0)
	if err != nil || len(frames) < 2 {
		return
	}
	start, err := wire.ParseReplayRequest(frames[1:])
	if err != nil {
		return
	}
	for _, m := range th.buffer {
		if seq, ok := m[0].(uint64); ok && seq >= start {
			_, _ = th.router.SendMessage(frames[0], wire.MakeReplay(wire.ReplayTopic, "kv", seq, m[1].([]byte)))
		}
	}
	_, _ = th.router.SendMessage(frames[0], wire.MakeReplayEnd(wire.ReplayTopic))
}

var stamp = 1_800_000_000.0

var testLayout = func() *wire.Layout {
	l, err := wire.LayoutFor("vllm", "0.32.0")
	if err != nil {
		panic(err)
	}
	return l
}()

// publish sends one batch.
func (e *engine) publish(events ...kv.Event) {
	stamp += 0.25
	payload := wire.AppendBatch(nil, &kv.Batch{Timestamp: stamp, HasRank: true, Events: events}, testLayout)
	done := make(chan struct{})
	e.cmds <- func(th *engineThread) {
		defer close(done)
		_, _ = th.pub.SendMessage(wire.MakeMessage("kv", th.seq, payload))
		if th.buffer = append(th.buffer, [2]any{th.seq, payload}); len(th.buffer) > e.keep {
			th.buffer = th.buffer[1:]
		}
		th.seq++
	}
	<-done
}

// secretToken begins the token ids of tests: no other number looks like one.
const secretToken = 3_141_592_000

// tokensOf are the tokens of the block that tests call n.
func tokensOf(blocks ...int) []uint32 {
	ts := []uint32{}
	for _, n := range blocks {
		for i := range testBlock {
			ts = append(ts, secretToken+uint32(n*testBlock+i))
		}
	}
	return ts
}

// stored announces blocks by their numbers, which are their engine hashes, too.
func stored(medium string, parent int, blocks ...int) kv.Event {
	ev := kv.Event{Kind: kv.KindStored, BlockSize: testBlock, Medium: medium, Spec: kv.SpecFull, SpecName: "full_attention", HasGroup: true, Tokens: tokensOf(blocks...)}
	if parent != 0 {
		ev.Parent, ev.HasParent = kv.EngineHash(parent), true
	}
	for _, b := range blocks {
		ev.Hashes = append(ev.Hashes, kv.EngineHash(b))
	}
	return ev
}

func removed(blocks ...int) kv.Event {
	ev := kv.Event{Kind: kv.KindRemoved, Medium: "GPU", HasGroup: true}
	for _, b := range blocks {
		ev.Hashes = append(ev.Hashes, kv.EngineHash(b))
	}
	return ev
}

// result is what a run of the tool said.
type result struct {
	code     int
	out, err string
}

// safeBuffer is written by several goroutines.
type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// kindex runs the tool.
func kindex(t *testing.T, stdin string, args ...string) result {
	t.Helper()
	var out, errs safeBuffer
	code := run(t.Context(), args, &Env{In: strings.NewReader(stdin), Out: &out, Err: &errs})
	return result{code, out.String(), errs.String()}
}

// want fails unless the tool said so, places and times aside.
func (r result) want(t *testing.T, code int, out string) {
	t.Helper()
	if got := plain(r.out); r.code != code || got != strings.TrimPrefix(out, "\n") {
		t.Errorf("status %d, want %d; said:\n%s\nwant:\n%s\nand %s", r.code, code, got, out, r.err)
	}
}

var (
	addresses = regexp.MustCompile(`(127\.0\.0\.1|\[::1\]):\d+`)
	spans     = regexp.MustCompile(` {2,}`)
	times     = regexp.MustCompile(`\d\d:\d\d:\d\d(\.\d+)?`)
)

// plain is text without what another run says otherwise.
func plain(s string) string {
	s = addresses.ReplaceAllString(s, "ADDR")
	s = times.ReplaceAllString(s, "TIME")
	return s
}

func numbers[N any](ns []N) string { return strings.Trim(fmt.Sprint(ns), "[]") }

var _ io.Writer = (*safeBuffer)(nil)
