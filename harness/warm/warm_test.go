// SPDX-License-Identifier: Apache-2.0

package warm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"kindex/harness/proc"
	"kindex/harness/publish"
	"kindex/indexsrv/state"
	"kindex/internal/longtest"
)

var program, relay string // indexsrv, relay

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "warm-*")
	if err == nil {
		program, relay = filepath.Join(dir, "indexsrv"), filepath.Join(dir, "relay")
		var out []byte
		if out, err = exec.Command("go", "build", "-o", dir, "kindex/cmd/indexsrv", "kindex/cmd/relay").CombinedOutput(); err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
	}
	code := 1
	if err != nil {
		_, _ = fmt.Fprintln(os.Stderr, err)
	} else {
		code = m.Run()
	}
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// host is one running indexsrv.
type host struct {
	t    *testing.T
	p    *proc.Process
	url  string
	port int
}

// start starts a host on a port (0: a free one) and waits until it serves.
func start(t *testing.T, port int, args ...string) *host {
	t.Helper()
	if port == 0 {
		var err error
		if port, err = publish.FreePorts(1); err != nil {
			t.Fatal(err)
		}
	}
	at := fmt.Sprintf("127.0.0.1:%d", port)
	p, err := proc.Start(program, nil, append([]string{"--listen", at}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	h := &host{t: t, p: p, url: "http://" + at, port: port}
	t.Cleanup(p.Kill)
	h.until("serving", func() bool { code, _ := h.ask("GET", "/health", ""); return code == 200 })
	return h
}

func (h *host) ask(method, path, body string) (code int, text string) {
	req, err := http.NewRequestWithContext(h.t.Context(), method, h.url+path, strings.NewReader(body))
	if err != nil {
		h.t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error()
	}
	return resp.StatusCode, string(b)
}

func (h *host) must(method, path, body string, want int) string {
	h.t.Helper()
	code, text := h.ask(method, path, body)
	if code != want {
		h.t.Fatalf("%s %s: %d %s, want %d", method, path, code, text, want)
	}
	return text
}

func (h *host) until(what string, ok func() bool) {
	h.t.Helper()
	end := time.Now().Add(60 * time.Second)
	for !ok() {
		if err := h.p.Ended(); err != nil {
			h.t.Fatalf("%s: %v", what, err)
		}
		if time.Now().After(end) {
			_, ready := h.ask("GET", "/readyz", "")
			_, workers := h.ask("GET", "/workers", "")
			h.t.Fatalf("not %s in a minute: %s\n%s", what, ready, workers)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func (h *host) ready() {
	h.t.Helper()
	h.until("ready", func() bool { code, _ := h.ask("GET", "/readyz", ""); return code == 200 })
}

// register registers p's ranks as instance id.
func (h *host) register(id string, p *publish.Publisher) {
	h.t.Helper()
	h.must("POST", "/register", fmt.Sprintf(`{"instance_id":%q,"endpoint":%q,"replay_endpoint":%q,"model_name":"m","block_size":%d,"dp_size":%d}`,
		id, p.Pub(), p.Replay(), p.Block(), p.Ranks()), 201)
}

// listener is what /workers says of a rank.
type listener struct {
	Status   string  `json:"status"`
	LastSeq  *uint64 `json:"last_seq"`
	Epoch    uint64  `json:"epoch"`
	Restarts uint64  `json:"restarts"`
	Lost     uint64  `json:"lost_batches"`
	Resumed  uint64  `json:"resumed"`
	Cold     string  `json:"cold_start"`
	Why      string  `json:"last_error"`
}

func (h *host) listeners() (all []listener) {
	h.t.Helper()
	var ws []struct {
		Listeners map[string]listener `json:"listeners"`
	}
	if err := json.Unmarshal([]byte(h.must("GET", "/workers", "", 200)), &ws); err != nil {
		h.t.Fatal(err)
	}
	for _, w := range ws {
		for _, l := range w.Listeners {
			all = append(all, l)
		}
	}
	return all
}

// wants fails unless every listener has what ok asks for.
func (h *host) wants(what string, ok func(*listener) bool) {
	h.t.Helper()
	ls := h.listeners()
	for i := range ls {
		if !ok(&ls[i]) {
			h.t.Errorf("%s: not so: %+v", what, ls[i])
		}
	}
	if len(ls) == 0 {
		h.t.Errorf("%s: nothing is registered", what)
	}
}

// taken keeps a state's streams.
type taken struct {
	state.Checked
	streams map[string]*state.Stream
	regs    []state.Registration
}

func (k *taken) Registrations(rs []state.Registration) error { k.regs = rs; return nil }

func (k *taken) Stream(st *state.Stream) error {
	k.streams[fmt.Sprint(k.regs[st.Registration].Instance, "/", st.Rank)] = st
	return nil
}

// streams asks for the host's state.
func (h *host) streams() map[string]*state.Stream {
	h.t.Helper()
	k := &taken{streams: map[string]*state.Stream{}}
	if err := state.Read(strings.NewReader(h.must("GET", "/state", "", 200)), k); err != nil {
		h.t.Fatal(err)
	}
	return k.streams
}

// exact holds each stream's content against what the publisher's life held behind the
// batch that it stands at.
func (h *host) exact(when string, p *publish.Publisher) map[string]*state.Stream {
	h.t.Helper()
	all := h.streams()
	if len(all) == 0 {
		h.t.Fatalf("%s: no streams", when)
	}
	for name, st := range all {
		rec, ok := p.Record(st.Rank, p.Life(), st.LastSeq)
		if !ok {
			h.t.Fatalf("%s: %s stands at batch %d, which was never published", when, name, st.LastSeq)
		}
		if got := truth(st); got != rec.Truth {
			h.t.Fatalf("%s: %s at batch %d holds %d positions that sum up to %x, the engine's to %x", when, name, st.LastSeq, len(st.Content.Hashes), got, rec.Truth)
		}
	}
	return all
}

func open(t *testing.T, edit func(*publish.Options)) *publish.Publisher {
	t.Helper()
	o := publish.DefaultOptions()
	if edit != nil {
		edit(&o)
	}
	p, err := publish.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// published waits until n more batches are out.
func published(t *testing.T, p *publish.Publisher, n uint64) {
	t.Helper()
	for until := p.Published() + n; p.Published() < until; {
		time.Sleep(time.Millisecond)
	}
}

// TestWarmRestart: told to stop, and killed between two state files, while the engine
// goes on: the host is back, exact, without having begun anew.
func TestWarmRestart(t *testing.T) {
	p := open(t, nil)
	dir := t.TempDir()
	args := []string{"--state-dir", dir, "--state-interval", "50ms"}
	h := start(t, 0, args...)
	h.register("e", p)
	h.ready()
	published(t, p, 100)
	for round := range longtest.N(6, 40) {
		how := "told to stop"
		if round%2 == 0 {
			if err := h.p.Stop(); err != nil {
				t.Fatal(err)
			}
		} else {
			how = "killed"
			published(t, p, 30)
			h.p.Kill()
		}
		published(t, p, 20)
		h = start(t, h.port, args...)
		h.ready()
		h.wants(how, func(l *listener) bool {
			return l.Status == "active" && l.Resumed == 1 && l.Restarts == 0 && l.Lost == 0 && l.Epoch == 1
		})
		h.exact(how, p)
	}
	// An unregistered one does not come back, however soon the host is killed.
	h.must("POST", "/unregister", `{"instance_id":"e","model_name":"m"}`, 200)
	h.p.Kill()
	h = start(t, h.port, args...)
	h.ready()
	if got := h.must("GET", "/workers", "", 200); got != "[]" {
		t.Errorf("workers after it: %s", got)
	}
}

// TestRestartedMeanwhile: the engine is another one when the host is back, also one
// whose numbers are past the old ones: nothing of the old content is left.
func TestRestartedMeanwhile(t *testing.T) {
	for _, batches := range []uint64{5, 400} {
		p := open(t, func(o *publish.Options) { o.Rate = 1_000 })
		dir := t.TempDir()
		args := []string{"--state-dir", dir}
		h := start(t, 0, args...)
		h.register("e", p)
		h.ready()
		published(t, p, 100)
		if err := h.p.Stop(); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		if err := p.Restart(ctx, false, 10*time.Millisecond); err != nil {
			t.Fatal(err)
		}
		cancel()
		published(t, p, batches)
		h = start(t, h.port, args...)
		h.ready()
		h.exact("after an engine's restart", p)
		h.wants("another life", func(l *listener) bool { return l.Status == "active" && l.Resumed == 0 && l.Cold != "" })
		if err := h.p.Stop(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestRolledPast: the engine keeps fewer batches than were published meanwhile. The
// host says so.
func TestRolledPast(t *testing.T) {
	p := open(t, func(o *publish.Options) { o.Buffer, o.Rate = 40, 1_000 })
	dir := t.TempDir()
	args := []string{"--state-dir", dir}
	h := start(t, 0, args...)
	h.register("e", p)
	h.ready()
	published(t, p, 100)
	if err := h.p.Stop(); err != nil {
		t.Fatal(err)
	}
	published(t, p, 300)
	h = start(t, h.port, args...)
	h.ready() // degraded, and no repair would help
	h.wants("rolled past", func(l *listener) bool {
		return l.Status == "degraded" && (l.Lost > 0 || l.Cold != "") && l.Why != ""
	})
}

// TestPeer: a new host copies another one's state while the engine publishes 200
// batches a second, and goes on exactly: equal digests at equal cursors, every time.
func TestPeer(t *testing.T) {
	p := open(t, func(o *publish.Options) { o.Ranks = 1 })
	a := start(t, 0)
	a.register("e", p)
	a.ready()
	published(t, p, 400)
	for round := range longtest.N(6, 20) {
		b := start(t, 0, "--peers", "http://127.0.0.1:1,"+a.url)
		b.ready()
		b.wants("copied", func(l *listener) bool { return l.Status == "active" && l.Resumed == 1 && l.Cold == "" })
		b.exact("copied", p)
		a.exact("the peer itself", p)
		met := false
		for range 400 {
			of, at := a.streams()["e/0"], b.streams()["e/0"]
			if of == nil || at == nil {
				t.Fatal("no stream")
			}
			if of.LastSeq != at.LastSeq {
				continue
			}
			met = true
			if got, want := at.Content.Digest(), of.Content.Digest(); got != want {
				t.Fatalf("round %d: digest %x at batch %d, of the peer %x", round, got, at.LastSeq, want)
			}
			break
		}
		if !met {
			t.Errorf("round %d: never at the same batch", round)
		}
		if err := b.p.Stop(); err != nil {
			t.Fatal(err)
		}
	}
}

// startRelay starts a relay of p's engine.
func startRelay(t *testing.T, p *publish.Publisher, ports int) *proc.Process {
	t.Helper()
	r, err := proc.Start(relay, nil, "--engine", fmt.Sprintf("vllm=%s,replay=%s,ranks=%d", p.Pub(), p.Replay(), p.Ranks()),
		"--listen", fmt.Sprintf("127.0.0.1:%d", ports), "--http", fmt.Sprintf("127.0.0.1:%d", ports+1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Kill)
	return r
}

// TestRelayRestart: a host that reads a relay goes on from the relay's cursor, also
// where the relay was another process by then.
func TestRelayRestart(t *testing.T) {
	p := open(t, nil)
	ports, err := publish.FreePorts(2)
	if err != nil {
		t.Fatal(err)
	}
	r := startRelay(t, p, ports)
	dir := t.TempDir()
	args := []string{"--state-dir", dir, "--state-interval", "50ms"}
	h := start(t, 0, args...)
	h.must("POST", "/register", fmt.Sprintf(`{"instance_id":"e","endpoint":"127.0.0.1:%d","source":"relay","model_name":"m","block_size":%d,"dp_size":%d}`,
		ports, p.Block(), p.Ranks()), 201)
	h.ready()
	published(t, p, 100)
	for round := range 4 {
		how := "told to stop"
		if round%2 == 0 {
			if err := h.p.Stop(); err != nil {
				t.Fatal(err)
			}
		} else {
			how = "killed"
			published(t, p, 30)
			h.p.Kill()
		}
		if round == 2 {
			how += ", the relay too"
			r.Kill()
			r = startRelay(t, p, ports)
		}
		published(t, p, 20)
		h = start(t, h.port, args...)
		h.ready()
		h.wants(how, func(l *listener) bool { return l.Status == "active" && l.Resumed == 1 && l.Lost == 0 })
		h.exact(how, p)
	}
}

// The states that a host gives are read by this test: one that is cut is not taken.
func TestCutAnswer(t *testing.T) {
	h := start(t, 0)
	whole := h.must("GET", "/state", "", 200)
	if err := state.Read(strings.NewReader(whole), &state.Checked{}); err != nil {
		t.Fatal(err)
	}
	if err := state.Read(strings.NewReader(whole[:len(whole)-1]), &state.Checked{}); !errors.Is(err, state.ErrRefused) {
		t.Errorf("without its last byte: got %v", err)
	}
}
