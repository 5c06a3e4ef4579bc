// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"kindex/gateway/fleet"
	"kindex/gateway/policy"
	"kindex/gateway/route"
	"kindex/gateway/upstream"
)

// oneModel is a fleet of workers that all serve one model.
type oneModel struct{ pool *fleet.Pool }

func (m oneModel) Pool(model string) *fleet.Pool {
	if model == m.pool.Model || model == "" {
		return m.pool
	}
	return nil
}

func (m oneModel) Models() map[string]*fleet.Pool {
	return map[string]*fleet.Pool{m.pool.Model: m.pool}
}

// testFront is a front before workers, with what its tests look at.
type testFront struct {
	*front
	url     string
	addr    string
	pool    *fleet.Pool
	ups     *upstream.Client
	told    chan answered
	entered atomic.Int64 // requests that the gate let in and that have not left
}

// newTestFront serves the model "m" by the engines at urls. It checks at the end that
// nothing is left of any request.
func newTestFront(t testing.TB, edit func(*frontOptions), urls ...string) *testFront {
	t.Helper()
	return newTestFrontOf(t, edit, testWorkers(urls...))
}

// testWorkers returns ready workers.
func testWorkers(urls ...string) []*fleet.Worker {
	var workers []*fleet.Worker
	for i, url := range urls {
		w := &fleet.Worker{ID: fmt.Sprint("w", i), Spec: &fleet.Spec{URL: url, Models: []string{"m"}, Instance: fmt.Sprint("i", i)}}
		w.Holders = []*fleet.Holder{{Worker: w, Seat: i}}
		w.SetTerms(&fleet.Terms{})
		w.SetState(fleet.Ready)
		workers = append(workers, w)
	}
	return workers
}

// newTestFrontOf is newTestFront of workers that somebody made.
func newTestFrontOf(t testing.TB, edit func(*frontOptions), workers []*fleet.Worker) *testFront {
	t.Helper()
	pol, err := policy.New("round_robin", policy.DefaultOptions())
	if err != nil {
		t.Fatal(err)
	}
	tf := &testFront{pool: fleet.NewPool("m", 1, workers), ups: upstream.New(upstream.Options{}), told: make(chan answered, 1<<16)}
	m := oneModel{tf.pool}
	o := frontOptions{
		Upstream: tf.ups,
		Router:   route.New(route.Options{Fleet: m, Policy: pol}),
		Models:   func() []string { return []string{"m"} },
		Enter: func(context.Context) (func(), error) {
			tf.entered.Add(1)
			return func() { tf.entered.Add(-1) }, nil
		},
		Answered: func(a *answered) {
			select {
			case tf.told <- *a:
			default:
			}
		},
		Retries: 3, FirstByte: 20 * time.Second, Stall: 20 * time.Second,
		WriteStall: 20 * time.Second, ReadTimeout: 20 * time.Second, IdleTimeout: 20 * time.Second,
		MaxBody: 1 << 20, MaxHead: 8 << 10,
	}
	if edit != nil {
		edit(&o)
	}
	tf.front = newFront(o)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	tf.addr = ln.Addr().String()
	tf.url = "http://" + tf.addr
	served := make(chan error, 1)
	go func() { served <- tf.serve(ln, nil) }()
	t.Cleanup(func() {
		tf.settled(t)
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		http.DefaultClient.CloseIdleConnections()
		if err := tf.shutdown(ctx); err != nil {
			t.Error("shutdown:", err)
		}
		if err := <-served; err != nil {
			t.Error("serve:", err)
		}
		tf.ups.Close()
	})
	return tf
}

// settled waits until nothing is left of any request.
func (tf *testFront) settled(t testing.TB) {
	t.Helper()
	eventually(t, func() string {
		if n := tf.stats.active.Load(); n != 0 {
			return fmt.Sprint(n, " requests are active")
		}
		if n := tf.entered.Load(); n != 0 {
			return fmt.Sprint(n, " requests have not left the gate")
		}
		for _, h := range tf.pool.Holders {
			if h.InFlight() != 0 || h.PrefillInFlight() != 0 {
				return fmt.Sprint(h.InFlight(), " leases, ", h.PrefillInFlight(), " tokens in flight")
			}
		}
		return ""
	})
}

// eventually waits until f has nothing to say against it.
func eventually(t testing.TB, f func() string) {
	t.Helper()
	var why string
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if why = f(); why == "" {
			return
		}
	}
	t.Fatal(why)
}

// engine is a worker made of a function of the whole connection, for what no server
// would do.
type engine struct {
	url   string
	conns atomic.Int64 // accepted
	ends  atomic.Int64 // of them, those that the gateway closed while serve ran on them
}

// newEngine serves each connection by serve, which is told which one it is.
func newEngine(t testing.TB, serve func(n int64, c net.Conn, br *bufio.Reader)) *engine {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	e := &engine{url: "http://" + ln.Addr().String()}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			n := e.conns.Add(1)
			all.Go(func() {
				defer c.Close()
				serve(n, c, bufio.NewReader(c))
			})
		}
	})
	t.Cleanup(func() { ln.Close(); all.Wait() })
	return e
}

// waitEnd waits until the gateway closes the connection.
func (e *engine) waitEnd(br *bufio.Reader) {
	if _, err := br.ReadByte(); err != nil {
		e.ends.Add(1)
	}
}

// readRequest reads a request whole; nil: there is none.
func readRequest(br *bufio.Reader) *http.Request {
	q, err := http.ReadRequest(br)
	if err != nil {
		return nil
	}
	b, err := io.ReadAll(q.Body)
	if err != nil {
		return nil
	}
	q.Body = io.NopCloser(strings.NewReader(string(b)))
	return q
}

const okBody = `{"id":"x","choices":[{"index":0,"text":"hi"}],"usage":{"prompt_tokens":7,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":4}}}`

// okAnswer is an answer that nothing is wrong with.
var okAnswer = fmt.Sprintf("HTTP/1.1 200 OK\r\nServer: engine\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(okBody), okBody)

// good answers every request.
func good(_ int64, c net.Conn, br *bufio.Reader) {
	for readRequest(br) != nil {
		if _, err := io.WriteString(c, okAnswer); err != nil {
			return
		}
	}
}

// ask sends a body and returns the answer and its body.
func ask(t testing.TB, url, body string, headers ...string) (*replyHead, string) {
	t.Helper()
	q, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		q.Header.Set(headers[i], headers[i+1])
	}
	resp, err := http.DefaultClient.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("%v after %q", err, b)
	}
	return &replyHead{resp.StatusCode, resp.Header}, string(b)
}

// replyHead is the head of an answer.
type replyHead struct {
	StatusCode int
	Header     http.Header
}

// wantError checks an answer in OpenAI's shape.
func wantError(t testing.TB, resp *replyHead, body string, status int, code string) {
	t.Helper()
	var e struct {
		Error struct{ Message, Type, Code string }
	}
	if err := json.Unmarshal([]byte(body), &e); err != nil {
		t.Errorf("%v: %q", err, body)
		return
	}
	if resp.StatusCode != status || e.Error.Code != code || e.Error.Message == "" || e.Error.Type == "" {
		t.Errorf("got %d %s, want %d and code %s", resp.StatusCode, body, status, code)
	}
	if resp.Header.Get("X-Request-Id") == "" || resp.Header.Get("X-Kindex-Error-Code") != code {
		t.Errorf("headers %v", resp.Header)
	}
}

const idPrompt = `{"model":"m","prompt":[1,2,3]}`

func TestPassesThrough(t *testing.T) {
	got := make(chan *http.Request, 1)
	e := newEngine(t, func(_ int64, c net.Conn, br *bufio.Reader) {
		for q := readRequest(br); q != nil; q = readRequest(br) {
			got <- q
			io.WriteString(c, strings.Replace(okAnswer, "Server:", "Connection: keep-alive, X-Hop\r\nX-Hop: 1\r\nX-Mine: 2\r\nServer:", 1))
		}
	})
	tf := newTestFront(t, nil, e.url)
	resp, body := ask(t, tf.url+"/v1/completions?a=b", idPrompt,
		"X-Request-Id", "mine-1", "X-Custom", "kept", "Authorization", "Bearer k", "traceparent", "00-1-2-01",
		"X-Kindex-Routing-Key", "r", "Connection", "X-Drop", "X-Drop", "gone", "Cookie", "a=b; c=d")
	if resp.StatusCode != 200 || body != okBody {
		t.Errorf("got %d %q", resp.StatusCode, body)
	}
	for name, want := range map[string]string{
		"Server": "engine", "X-Mine": "2", "X-Hop": "", "Connection": "", "X-Request-Id": "mine-1", "X-Kindex-Worker": "w0", "Content-Type": "application/json",
	} {
		if v := resp.Header.Get(name); v != want {
			t.Errorf("the client got %s: %q, want %q", name, v, want)
		}
	}
	q := <-got
	sent, _ := io.ReadAll(q.Body)
	if string(sent) != idPrompt || q.RequestURI != "/v1/completions?a=b" || q.Host != strings.TrimPrefix(e.url, "http://") {
		t.Errorf("the engine got %q for %s of %s", sent, q.RequestURI, q.Host)
	}
	for name, want := range map[string]string{
		"X-Request-Id": "mine-1", "X-Custom": "kept", "Authorization": "Bearer k", "Traceparent": "00-1-2-01",
		"X-Kindex-Routing-Key": "", "X-Drop": "", "Cookie": "a=b; c=d", "X-Data-Parallel-Rank": "",
	} {
		if v := q.Header.Get(name); v != want {
			t.Errorf("the engine got %s: %q, want %q", name, v, want)
		}
	}
	a := <-tf.told
	if a.Outcome != route.OK || a.Usage.Prompt != 7 || a.Usage.Cached != 4 || a.Tries != 1 || a.Status != 200 || a.Model != "m" {
		t.Errorf("told %+v", a)
	}
}

// What belongs to a worker alone goes to it alone.
func TestKeysAndRanks(t *testing.T) {
	got := make(chan *http.Request, 1)
	e := newEngine(t, func(_ int64, c net.Conn, br *bufio.Reader) {
		for q := readRequest(br); q != nil; q = readRequest(br) {
			got <- q
			io.WriteString(c, okAnswer)
		}
	})
	tf := newTestFront(t, func(o *frontOptions) { o.OwnsAuthorization = true }, e.url)
	w := tf.pool.Workers[0]
	ask(t, tf.url+"/v1/completions", idPrompt, "Authorization", "Bearer gateway")
	if v := (<-got).Header.Values("Authorization"); len(v) != 0 {
		t.Errorf("the gateway's key went to the engine: %q", v)
	}
	w.SetTerms(&fleet.Terms{APIKey: "engine"})
	ask(t, tf.url+"/v1/completions", idPrompt, "Authorization", "Bearer gateway")
	if v := (<-got).Header.Values("Authorization"); len(v) != 1 || v[0] != "Bearer engine" {
		t.Errorf("the engine got %q", v)
	}

	ranked := testWorkers(e.url)
	w = ranked[0]
	w.Holders = append(w.Holders, &fleet.Holder{Worker: w, Rank: 1, Seat: 1})
	w.Spec.Engine = fleet.SGLang
	tf = newTestFrontOf(t, nil, ranked)
	resp, body := ask(t, tf.url+"/generate", `{"text":"a"}`, "X-data-parallel-rank", "x")
	wantError(t, resp, body, 400, "invalid_value")
	ask(t, tf.url+"/generate", ` {"input_ids":[1]}`)
	q := <-got
	sent, _ := io.ReadAll(q.Body)
	if want := ` {"data_parallel_rank":0,"input_ids":[1]}`; string(sent) != want || q.Header.Get("X-data-parallel-rank") != "0" {
		t.Errorf("the engine got %q and rank %q, want %q", sent, q.Header.Get("X-data-parallel-rank"), want)
	}
}

func TestWithRank(t *testing.T) {
	for body, want := range map[string]string{
		`{}`:          `{"data_parallel_rank":3}`,
		` { } `:       ` {"data_parallel_rank":3 } `,
		"{\n\"a\":1}": "{\"data_parallel_rank\":3,\n\"a\":1}",
		`none`:        `none`,
	} {
		if got := string(withRank(nil, []byte(body), 3)); got != want {
			t.Errorf("%q: got %q, want %q", body, got, want)
		}
	}
}
