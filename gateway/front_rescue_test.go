// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"kindex/gateway/fleet"
	"kindex/gateway/route"
	mock "kindex/harness/mockworker/engine"
	"kindex/internal/longtest"
)

// engineEnv has this program be an engine, which a test can stop as a whole.
const engineEnv = "KINDEX_TEST_ENGINE"

func TestMain(m *testing.M) {
	if os.Getenv(engineEnv) != "" {
		f, err := mock.OpenFleet(mockConfig(time.Millisecond), 1)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Println(f.Workers()[0].HTTP())
		_, _ = io.Copy(io.Discard, os.Stdin) // ends with the test
		f.Close()
		return
	}
	// The HTTP server's keeper of idle goroutines sleeps for some seconds before it sees
	// that its server has gone; its clock runs for ever.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.(*workerPool).Start.func2"),
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.updateServerDate.func1"))
}

func mockConfig(pass time.Duration) mock.Config {
	return mock.Config{Engine: mock.VLLM, Model: "m", HTTP: "127.0.0.1:0", Pub: "tcp://127.0.0.1:0", Replay: "tcp://127.0.0.1:0", PassTime: pass}
}

// quiet is an engine that takes requests and waits; tell has each answer with s.
func quiet(t *testing.T) (e *engine, tell func(s string)) {
	answer := make(chan string)
	over := make(chan struct{})
	e = newEngine(t, func(_ int64, c net.Conn, br *bufio.Reader) {
		for readRequest(br) != nil {
			gone := make(chan struct{})
			go func() { br.Peek(1); close(gone) }()
			select {
			case s := <-answer:
				io.WriteString(c, s)
			case <-gone:
				e.ends.Add(1)
				return
			case <-over:
				c.Close()
			}
			<-gone
		}
	})
	t.Cleanup(func() { close(over) })
	return e, func(s string) { answer <- s }
}

// asks sends n requests at once, and returns their answers once all are there.
func (tf *testFront) asks(t *testing.T, n int, body string) func() []string {
	var all sync.WaitGroup
	got := make([]string, n)
	for i := range n {
		all.Go(func() {
			resp, text := ask(t, tf.url+"/v1/completions", body)
			got[i] = fmt.Sprint(resp.StatusCode, " ", resp.Header.Get("X-Kindex-Worker"), " ", text)
		})
	}
	return func() []string { all.Wait(); return got }
}

// waiting waits until n requests are at a worker.
func (tf *testFront) waiting(t *testing.T, w int, n int64) {
	t.Helper()
	eventually(t, func() string {
		if is := tf.pool.Workers[w].InFlight(); is != n {
			return fmt.Sprint(is, " requests wait at the worker, want ", n)
		}
		return ""
	})
}

// Who waits at a worker that will not answer is answered by another one.
func TestRescue(t *testing.T) {
	mute := func(*fleet.Worker) bool { return true }
	for name, c := range map[string]struct {
		body  string
		stand func(*fleet.Worker) bool
		lose  func(w *fleet.Worker)
	}{
		"wedged":             {streamPrompt, nil, func(w *fleet.Worker) { w.Steer(fleet.Wedged, true) }},
		"unreachable":        {idPrompt, nil, func(w *fleet.Worker) { w.Steer(fleet.Unreachable, true) }},
		"failed":             {idPrompt, nil, func(w *fleet.Worker) { w.SetState(fleet.Failed) }},
		"removed":            {streamPrompt, nil, func(w *fleet.Worker) { w.SetState(fleet.Removed) }},
		"wedged by its word": {idPrompt, mute, func(w *fleet.Worker) { w.Steer(fleet.Wedged, true) }},
	} {
		t.Run(name, func(t *testing.T) {
			silent, _ := quiet(t)
			tf := newTestFront(t, func(o *frontOptions) { o.StandsStill = c.stand }, silent.url, newEngine(t, good).url)
			lost := tf.pool.Workers[0]
			got := tf.asks(t, 32, c.body)
			tf.waiting(t, 0, 16)
			c.lose(lost)
			for _, g := range got() {
				if g != "200 w1 "+okBody {
					t.Errorf("got %s", g)
				}
			}
			if n := tf.stats.rescued.Load(); n != 16 || tf.stats.retries[route.Stalled].Load() != 16 {
				t.Errorf("%d were rescued, want 16", n)
			}
			eventually(t, func() string {
				if n := silent.ends.Load(); n != 16 {
					return fmt.Sprint(n, " requests were aborted, want 16")
				}
				return ""
			})
		})
	}
}

// Who cannot be answered better elsewhere waits on.
func TestNoRescue(t *testing.T) {
	for name, c := range map[string]struct {
		body  string
		alone bool
		lose  func(ws []*fleet.Worker)
		edit  func(o *frontOptions)
	}{
		"the only worker": {streamPrompt, true, func(ws []*fleet.Worker) { ws[0].Steer(fleet.Wedged, true) }, nil},
		"all are wedged":  {streamPrompt, false, func(ws []*fleet.Worker) { ws[1].Steer(fleet.Wedged, true); ws[0].Steer(fleet.Wedged, true) }, nil},
		"a whole answer":  {idPrompt, false, func(ws []*fleet.Worker) { ws[0].Steer(fleet.Wedged, true) }, nil},
		"overloaded":      {streamPrompt, false, func(ws []*fleet.Worker) { ws[0].Steer(fleet.Overloaded|fleet.Stale|fleet.BreakerOpen, true) }, nil},
		"no retries":      {streamPrompt, false, func(ws []*fleet.Worker) { ws[0].Steer(fleet.Wedged, true) }, func(o *frontOptions) { o.Retries = 0 }},
	} {
		t.Run(name, func(t *testing.T) {
			silent, tell := quiet(t)
			urls := []string{silent.url, newEngine(t, good).url}
			if c.alone {
				urls = urls[:1]
			}
			tf := newTestFront(t, c.edit, urls...)
			got := tf.asks(t, len(urls), c.body)
			tf.waiting(t, 0, 1)
			if !c.alone {
				<-tf.told // the other one is answered, and not yet to be placed
			}
			c.lose(tf.pool.Workers)
			for range 3 {
				tf.conns.sweep(sinceEpoch(), tf.look)
			}
			tell(okAnswer)
			for _, g := range got() {
				if !strings.HasSuffix(g, okBody) {
					t.Errorf("got %s", g)
				}
			}
			if n := tf.stats.rescued.Load(); n != 0 {
				t.Errorf("%d were rescued", n)
			}
		})
	}
}

// A stream that has begun ends with an event once its worker was out of reach for long.
func TestStreamOfLostWorker(t *testing.T) {
	e := newEngine(t, func(_ int64, c net.Conn, br *bufio.Reader) {
		readRequest(br)
		io.WriteString(c, sseHead)
		chunk(c, ": a comment\n\n")
		br.ReadByte()
	})
	tf := newTestFront(t, nil, e.url, newEngine(t, good).url)
	c := tf.dial(t)
	post(c, streamPrompt)
	br := bufio.NewReader(c)
	for line := ""; line != ": a comment\n"; {
		var err error
		if line, err = br.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
	}
	tf.pool.Workers[0].Steer(fleet.Unreachable, true)
	tf.conns.sweep(sinceEpoch(), tf.look)
	if tf.stats.cut.Load() != 0 {
		t.Fatal("it ended at once")
	}
	tf.conns.sweep(sinceEpoch(), func(ctx *requestContext, _ int64) {
		ctx.mu.Lock()
		ctx.at.since -= int64(deadSilence)
		ctx.mu.Unlock()
	})
	rest, err := io.ReadAll(br)
	if err != nil || strings.Count(string(rest), "data:") != 1 || !strings.Contains(string(rest), `"code":"upstream_timeout"`) || !strings.HasSuffix(string(rest), "0\r\n\r\n") {
		t.Errorf("%v after %q", err, rest)
	}
	if a := <-tf.told; a.Outcome != route.Stalled {
		t.Errorf("told %+v", a)
	}
}

// A client that takes nothing is not one that its worker leaves waiting.
func TestStuckClient(t *testing.T) {
	e := newEngine(t, func(_ int64, c net.Conn, br *bufio.Reader) {
		readRequest(br)
		io.WriteString(c, sseHead)
		for range 1000 {
			chunk(c, event(strings.Repeat("x", 32<<10)))
		}
		io.WriteString(c, "0\r\n\r\n")
	})
	tf := newTestFront(t, nil, e.url)
	c := tf.dial(t)
	post(c, streamPrompt)
	h := tf.pool.Holders[0]
	for _, want := range []int64{1, 0, 1, 0} {
		eventually(t, func() string {
			if p := h.Progress(); p.Streams != want || h.InFlight() != 1 {
				return fmt.Sprintf("%d streams and %d requests, want %d and 1", p.Streams, h.InFlight(), want)
			}
			return ""
		})
		if want == 0 { // takes some
			if _, err := io.CopyN(io.Discard, c, 8<<20); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := io.Copy(io.Discard, io.LimitReader(c, 12<<20)); err != nil {
		t.Fatal(err)
	}
	if h.Progress().Streams < 0 {
		t.Error("streams are negative")
	}
}

// TestStoppedEngine stops an engine with requests waiting at it, all streams that it has
// no token of yet: the others answer them as soon as it counts as wedged.
func TestStoppedEngine(t *testing.T) {
	longtest.Skip(t)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), engineEnv+"=1")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Signal(syscall.SIGCONT)
		_ = in.Close()
		_ = cmd.Wait()
	}()
	addr, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	g := startGateway(t, func(c *Config) { c.DrainTimeout = time.Second }, "http://"+strings.TrimSpace(addr))
	if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	done := g.askAll(t, 32)
	time.Sleep(500 * time.Millisecond)
	for _, u := range mocks(t, 2, "", time.Millisecond) {
		if a := g.ask("POST", g.url+"/workers", "", `{"url":"`+u+`"}`); a.code >= 300 {
			t.Fatalf("a worker is not taken: %d %s", a.code, a.body)
		}
	}
	done()
	t.Logf("all were answered after %v", time.Since(began))
	if n := g.front.stats.rescued.Load(); n != 32 {
		t.Errorf("%d were rescued, want 32", n)
	}
}

// TestStalledEngine is the same of an engine that answers probes and no request, and of
// a bound of its own.
func TestStalledEngine(t *testing.T) {
	f, err := mock.OpenFleet(mockConfig(time.Millisecond), 1)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	f.Workers()[0].Engine.Pause(true)
	g := startGateway(t, func(c *Config) { c.WedgeAfter, c.DrainTimeout = 500*time.Millisecond, time.Second }, "http://"+f.Workers()[0].HTTP())
	done := g.askAll(t, 32)
	eventually(t, func() string {
		if w := g.fleet.Workers()[0]; w.Vetoes()&fleet.Wedged == 0 {
			return "it is not wedged"
		}
		return ""
	})
	if n := g.front.stats.rescued.Load(); n != 0 {
		t.Errorf("%d were given up although nobody else is there", n)
	}
	for _, u := range mocks(t, 2, "", time.Millisecond) {
		if a := g.ask("POST", g.url+"/workers", "", `{"url":"`+u+`"}`); a.code >= 300 {
			t.Fatalf("a worker is not taken: %d %s", a.code, a.body)
		}
	}
	done()
	if n := g.front.stats.rescued.Load(); n != 32 {
		t.Errorf("%d were rescued, want 32", n)
	}
}

// askAll sends n streamed requests at once, and returns what waits until all have been
// answered, and are as they should be.
func (s *served) askAll(t *testing.T, n int) (done func()) {
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			a := s.ask("POST", s.url+"/v1/completions", "", `{"model":"m","prompt":[1,2,3],"max_tokens":4,"stream":true}`)
			if a.code != 200 || !strings.HasSuffix(a.body, "data: [DONE]\n\n") {
				t.Errorf("got %d %s", a.code, a.body)
			}
		})
	}
	eventually(t, func() string {
		if is := s.fleet.Workers()[0].InFlight(); is != int64(n) {
			return fmt.Sprint(is, " requests wait, want ", n)
		}
		return ""
	})
	return all.Wait
}
