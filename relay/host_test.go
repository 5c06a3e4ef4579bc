// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	zmq "github.com/pebbe/zmq4"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"

	"kindex/internal/kv"
	"kindex/proto/peer/common"
	"kindex/proto/peer/vllm"
	"kindex/relay/wire"
)

// freePort returns a port that nobody has at the moment.
func freePort(t *testing.T) int {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	a, ok := ln.Addr().(*net.TCPAddr)
	if !ok {
		t.Fatalf("address %v", ln.Addr())
	}
	return a.Port
}

// startHost serves cfg until the test ends.
func startHost(t *testing.T, cfg Config) *Host {
	t.Helper()
	h, err := New(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Listen(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- h.Serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("Serve: %v", err)
			}
		case <-time.After(testTime):
			t.Error("Serve did not end")
		}
	})
	return h
}

func loopbackConfig(engines ...EngineSpec) Config {
	cfg := DefaultConfig()
	cfg.Listen, cfg.HTTP, cfg.Engines = "127.0.0.1:0", "127.0.0.1:0", engines
	return cfg
}

// httpGet returns the status and body of a request.
func httpGet(t *testing.T, h *Host, path string, header ...string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(testContext(t), http.MethodGet, "http://"+h.HTTPAddr()+path, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// engineSockets are an engine's event socket of one rank, with its replay.
type engineSockets struct {
	t       *testing.T
	pub     *zmq.Socket
	replay  *zmq.Socket
	layout  *wire.Layout
	mu      sync.Mutex
	history [][]byte // payloads by number
}

func startSockets(t *testing.T, pubPort, replayPort int) *engineSockets {
	t.Helper()
	p := &engineSockets{t: t}
	ctx, err := zmq.NewContext()
	if err != nil {
		t.Fatal(err)
	}
	if p.layout, err = wire.LayoutFor("vllm", "99"); err != nil {
		t.Fatal(err)
	}
	open := func(kind zmq.Type, port int) *zmq.Socket {
		s, err := ctx.NewSocket(kind)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.SetLinger(0); err != nil {
			t.Fatal(err)
		}
		if err := s.Bind(fmt.Sprintf("tcp://127.0.0.1:%d", port)); err != nil {
			t.Fatal(err)
		}
		return s
	}
	p.pub, p.replay = open(zmq.PUB, pubPort), open(zmq.ROUTER, replayPort)
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		p.answer()
	}()
	t.Cleanup(func() {
		_ = p.pub.Close()
		_ = ctx.Term() // ends the replay socket's wait
		<-answered
	})
	return p
}

// answer serves replay requests until the context ends.
func (p *engineSockets) answer() {
	defer func() { _ = p.replay.Close() }()
	for {
		m, err := p.replay.RecvMessageBytes(0)
		if err != nil {
			return
		}
		p.mu.Lock()
		for seq := binary.BigEndian.Uint64(m[len(m)-1]); seq < uint64(len(p.history)); seq++ {
			_, _ = p.replay.SendMessage(m[0], "", []byte{}, binary.BigEndian.AppendUint64(nil, seq), p.history[seq])
		}
		p.mu.Unlock()
		_, _ = p.replay.SendMessage(m[0], "", []byte{}, bytes.Repeat([]byte{0xff}, 8), []byte{})
	}
}

// publish sends the next batch, of one new block, unless it is lost on the way.
func (p *engineSockets) publish(lost bool) {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	seq := uint64(len(p.history))
	ev := kv.Event{Kind: kv.KindStored, BlockSize: 16, Hashes: []kv.EngineHash{kv.EngineHash(seq + 1)}, Tokens: make([]uint32, 16)}
	ev.Tokens[0] = uint32(seq)
	payload := wire.AppendBatch(nil, &kv.Batch{Timestamp: float64(time.Now().UnixNano()) / 1e9, Events: []kv.Event{ev}}, p.layout)
	p.history = append(p.history, payload)
	if lost {
		return
	}
	if _, err := p.pub.SendMessage("kv", binary.BigEndian.AppendUint64(nil, seq), payload); err != nil {
		p.t.Error(err)
	}
}

// TestHost: a relay that is up before its engine, primes itself, repairs a gap and
// serves what it has, over real sockets.
func TestHost(t *testing.T) {
	pub, replay := freePort(t), freePort(t)
	h := startHost(t, loopbackConfig(EngineSpec{
		Kind: "vllm", Endpoint: fmt.Sprintf("tcp://127.0.0.1:%d", pub), Replay: fmt.Sprintf("tcp://127.0.0.1:%d", replay), Name: "w0",
	}))
	conn, err := grpc.NewClient(h.Addr(0), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	s, err := vllm.NewVllmEngineClient(conn).SubscribeKvEvents(testContext(t), &common.SubscribeKvEventsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Header(); err != nil {
		t.Fatal(err)
	}
	code, body := httpGet(t, h, "/readyz")
	if code != http.StatusServiceUnavailable || !strings.Contains(body, `"why":"engine w0 is not primed"`) {
		t.Errorf("/readyz without an engine: %d %s", code, body)
	}
	if code, _ := httpGet(t, h, "/livez"); code != http.StatusOK {
		t.Errorf("/livez: %d", code)
	}

	p := startSockets(t, pub, replay)
	for range 5 {
		p.publish(true) // before anybody listened
	}
	wantBatches(t, s, 0, 4, 1)
	for code != http.StatusOK {
		time.Sleep(10 * time.Millisecond)
		code, body = httpGet(t, h, "/readyz")
	}
	var re readyReply
	if err := json.Unmarshal([]byte(body), &re); err != nil {
		t.Fatal(err)
	}
	if e := re.Engines[0]; !re.Ready || e.Name != "w0" || e.Kind != "vllm" || e.Listen != h.Addr(0) || !e.Ranks[0].Primed || !e.Ranks[0].Exact || e.Ranks[0].Sequence == nil || *e.Ranks[0].Sequence != 4 {
		t.Errorf("/readyz: %s", body)
	}
	p.publish(false)
	p.publish(true)
	p.publish(true)
	p.publish(false)
	wantBatches(t, s, 5, 8, 1)

	_, body = httpGet(t, h, "/metrics")
	for _, line := range []string{
		`kindex_relay_ready 1`,
		`kindex_relay_last_sequence{dp_rank="0",engine="w0"} 8`,
		`kindex_relay_gaps_total{dp_rank="0",engine="w0"} 1`,
		`kindex_relay_lost_batches_total{dp_rank="0",engine="w0"} 0`,
		`kindex_relay_live_blocks{dp_rank="0",engine="w0"} 9`,
		`kindex_relay_history_batches{dp_rank="0",engine="w0"} 9`,
		`kindex_relay_readers{dp_rank="0",engine="w0"} 1`,
		`kindex_relay_subscribers{contract="smg",engine="w0"} 1`,
		`kindex_relay_sent_messages_total{contract="smg",engine="w0"} 9`,
		`kindex_relay_dropped_events_total{dp_rank="0",engine="w0",reason="malformed"} 0`,
		`kindex_relay_http_requests_total{route="/livez"} 1`,
	} {
		if !strings.Contains(body, "\n"+line+"\n") {
			t.Errorf("/metrics has no line %s", line)
		}
	}
	code, body = httpGet(t, h, "/status")
	var st statusReply
	if err := json.Unmarshal([]byte(body), &st); err != nil || code != http.StatusOK {
		t.Fatalf("/status: %d, %v", code, err)
	}
	if r := st.Engines[0].Ranks[0]; r.State != "active" || r.LiveBlocks != 9 || r.Sequence == nil || *r.Sequence != 8 || r.Gaps != 1 || r.AgeSeconds == nil || *r.HistoryOldest != 0 || st.Engines[0].Subscribers["smg"] != 1 {
		t.Errorf("/status: %s", body)
	}
}

// TestHTTPRefusals: paths, methods and tokens.
func TestHTTPRefusals(t *testing.T) {
	cfg := loopbackConfig(EngineSpec{Kind: "vllm", Endpoint: "tcp://127.0.0.1:9"})
	cfg.TokenFile = writeFile(t, filepath.Join(t.TempDir(), "tokens"), []byte("the-only-token"))
	h := startHost(t, cfg)
	for _, c := range []struct {
		path, header string
		code         int
		words        string
	}{
		{"/", "", 404, "/livez, /readyz, /metrics, /status"},
		{"/metrics/", "", 404, "unknown path"},
		{"/livez", "", 200, "ok"},
		{"/readyz", "", 503, "not primed"},
		{"/readyz", "Bearer the-only-token", 503, "not primed"},
		{"/readyz", "Bearer another-token", 503, "not primed"},
		{"/status", "Bearer another-token", 401, "not one of this relay's"},
		{"/metrics", "", 401, "Bearer TOKEN"},
		{"/status", "Basic eDp5", 401, "Bearer TOKEN"},
		{"/status", "Bearer the-only-token", 200, "hash_tokens"},
		{"/metrics", "Bearer the-only-token", 200, "kindex_relay_build_info"},
	} {
		var header []string
		if c.header != "" {
			header = []string{"Authorization", c.header}
		}
		if code, body := httpGet(t, h, c.path, header...); code != c.code || !strings.Contains(body, c.words) {
			t.Errorf("%s with %q: %d %.200s, want %d with %q", c.path, c.header, code, body, c.code, c.words)
		}
	}
	resp, err := http.Post("http://"+h.HTTPAddr()+"/livez", "text/plain", strings.NewReader("x")) //nolint:noctx // a test's one request
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("POST /livez: %d", resp.StatusCode)
	}
	c, err := net.Dial("tcp", h.HTTPAddr())
	if err != nil {
		t.Fatal(err)
	}
	_, _ = c.Write(append([]byte("\x16\x03\x01"), bytes.Repeat([]byte{0xff}, 4096)...))
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.CloseWrite()
	}
	_ = c.SetReadDeadline(time.Now().Add(testTime))
	_, _ = io.Copy(io.Discard, c)
	_ = c.Close()
	if code, _ := httpGet(t, h, "/livez"); code != http.StatusOK {
		t.Errorf("after garbage: %d", code)
	}
}

// TestTwoEngines: each has an address of its own, the relay's own contract names
// either on both.
func TestTwoEngines(t *testing.T) {
	h := startHost(t, loopbackConfig(
		EngineSpec{Kind: "vllm", Endpoint: "tcp://127.0.0.1:9"},
		EngineSpec{Kind: "sglang", Endpoint: "tcp://127.0.0.1:17", Ranks: 3},
	))
	for i, method := range []string{"/vllm.grpc.engine.VllmEngine/SubscribeKvEvents", "/sglang.grpc.scheduler.SglangScheduler/SubscribeKvEvents"} {
		for j := range 2 {
			conn, err := grpc.NewClient(h.Addr(j), grpc.WithTransportCredentials(insecure.NewCredentials()))
			if err != nil {
				t.Fatal(err)
			}
			s, err := conn.NewStream(testContext(t), &grpc.StreamDesc{ServerStreams: true}, method)
			if err == nil {
				_ = s.SendMsg(&common.SubscribeKvEventsRequest{StartSequenceNumber: 1})
				err = s.RecvMsg(&common.KvEventBatch{})
			}
			want := codes.Unimplemented
			if i == j {
				want = codes.OutOfRange
			}
			wantCode(t, method+" at the other's address", err, want)
			if err := describe1(testContext(t), conn); err != nil {
				t.Error(err)
			}
			_ = conn.Close()
		}
	}
}

// TestRunSignals: the program drains on a signal, and says when an address is
// taken.
func TestRunSignals(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	var out, bad bytes.Buffer
	if code := Run([]string{"--engine", "vllm=tcp://127.0.0.1:9", "--listen", ln.Addr().String(), "--http", "off"}, &out, &bad, nil); code != 1 || !strings.Contains(bad.String(), "address already in use") || strings.Count(bad.String(), "\n") != 1 {
		t.Errorf("a taken address: exit %d, %q", code, bad.String())
	}
	signals := make(chan os.Signal, 2)
	signals <- syscall.SIGTERM
	bad.Reset()
	if code := Run([]string{"--engine", "vllm=tcp://127.0.0.1:9", "--listen", "127.0.0.1:0", "--http", "off"}, &out, &bad, signals); code != 0 || !strings.Contains(bad.String(), "stopped") {
		t.Errorf("SIGTERM: exit %d, %q", code, bad.String())
	}
}
