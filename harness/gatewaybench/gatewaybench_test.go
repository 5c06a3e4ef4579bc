// SPDX-License-Identifier: Apache-2.0

package gatewaybench

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/valyala/fasthttp"

	"kindex/harness/proc"
	"kindex/harness/publish"
	"kindex/harness/trial"
)

// serving runs a server of this package at a free port, and returns its address.
func serving(t *testing.T, run func(ctx context.Context, addr string) error) string {
	t.Helper()
	port, err := publish.FreePorts(1)
	if err != nil {
		t.Fatal(err)
	}
	addr := net.JoinHostPort("127.0.0.1", known(port))
	ended := make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	go func() { ended <- run(ctx, addr) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	err = proc.Until(t.Context(), 10*time.Second, func() bool {
		c, err := net.Dial("tcp", addr)
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return addr
}

func known(n int) string { b, _ := json.Marshal(n); return string(b) }

// order has a client carry out one order.
func order(t *testing.T, o *Order) *Seen {
	t.Helper()
	in, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := ServeClient(t.Context(), bytes.NewReader(in), &out); err != nil {
		t.Fatal(err)
	}
	d := json.NewDecoder(&out)
	var begin, end Seen
	if err := d.Decode(&begin); err != nil || !begin.Counting || begin.Requests != 0 {
		t.Fatalf("the first line: %+v, %v", begin, err)
	}
	if err := d.Decode(&end); err != nil || end.Counting {
		t.Fatalf("the second line: %+v, %v", end, err)
	}
	return &end
}

// TestWay puts every kind of request through the bare proxy to workers: every answer is
// the worker's.
func TestWay(t *testing.T) {
	a, b := serving(t, ServeWorker), serving(t, ServeWorker)
	bare := serving(t, func(ctx context.Context, addr string) error { return ServeBare(ctx, addr, []string{a, b}) })
	for _, kind := range Kinds {
		for name, addr := range map[string]string{"worker": a, "proxy": bare} {
			s := order(t, &Order{Addr: addr, Kind: kind, Conns: 3, For: 50 * time.Millisecond, Seed: 1, First: 100})
			if s.Wrong != 0 || s.Requests == 0 || s.Last < 100+uint64(s.Requests) || s.Total.Samples != s.Requests || s.First.P50 > s.Total.P50 {
				t.Errorf("%s of the %s: %+v", kind, name, s)
			}
		}
	}
}

// TestWrong: what is not the worker's answer is counted, whatever is wrong with it.
func TestWrong(t *testing.T) {
	right := answer(Small)
	for name, handle := range map[string]fasthttp.RequestHandler{
		"a byte less":     func(rc *fasthttp.RequestCtx) { rc.SetBodyString(right[1:]) },
		"another byte":    func(rc *fasthttp.RequestCtx) { rc.SetBodyString("[" + right[1:]) },
		"a byte more":     func(rc *fasthttp.RequestCtx) { rc.SetBodyString(right + "\n") },
		"another status":  func(rc *fasthttp.RequestCtx) { rc.SetStatusCode(503); rc.SetBodyString(right) },
		"a broken answer": func(rc *fasthttp.RequestCtx) { rc.HijackSetNoResponse(true); rc.Hijack(func(net.Conn) {}) },
	} {
		addr := serving(t, func(ctx context.Context, addr string) error { return serve(ctx, addr, handle) })
		s := order(t, &Order{Addr: addr, Kind: Small, Conns: 1, For: 20 * time.Millisecond})
		if s.Wrong == 0 || s.Requests != 0 || s.Why == "" {
			t.Errorf("%s: %+v", name, s)
		}
	}
}

// TestRequests: prompts have their sizes and share their heads, the seed settles them,
// and fresh ones differ by their number.
func TestRequests(t *testing.T) {
	for _, kind := range Kinds {
		all, again := requests(kind, "h:1", 3), requests(kind, "h:1", 3)
		seen := map[string]bool{}
		for i, q := range all {
			if !bytes.Equal(q, again[i]) {
				t.Fatalf("%s: request %d differs the second time", kind, i)
			}
			head, body, _ := strings.Cut(string(q), "\r\n\r\n")
			var asked struct {
				Prompt   string                     `json:"prompt"`
				Messages []struct{ Content string } `json:"messages"`
			}
			if err := json.Unmarshal([]byte(body), &asked); err != nil || !strings.Contains(head, "Content-Length: "+known(len(body))) {
				t.Fatalf("%s: request %d: %v", kind, i, err)
			}
			said := asked.Prompt
			if kind == Chat {
				said = asked.Messages[0].Content
			}
			if n := len(said); n < sizes[kind].whole-8 || n > sizes[kind].whole+1 {
				t.Errorf("%s: a prompt of %d bytes", kind, n)
			}
			seen[said] = true
		}
		if kind != Fresh && len(seen) != prompts {
			t.Errorf("%s: %d different prompts", kind, len(seen))
		}
	}
	q := requests(Fresh, "h:1", 3)[0]
	at := bytes.Index(q, []byte(serial)) + 1
	number(q, at, 987_654)
	if !bytes.Contains(q, []byte("#000000987654")) {
		t.Errorf("numbered: %q", q)
	}
}

func TestTokenize(t *testing.T) {
	addr := serving(t, ServeWorker)
	ask := func(body string) string {
		resp, err := http.Post("http://"+addr+"/tokenize", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	short, long := ask(`{"prompt":"abcdefgh"}`), ask(`{"prompt":"abcdefghij"}`)
	if !strings.HasPrefix(short, `{"count":2,`) || !strings.HasPrefix(long, `{"count":3,`) || !strings.HasPrefix(long[len(`{"count":3`):], strings.TrimSuffix(short[len(`{"count":2`):], "]}")) {
		t.Errorf("%s, %s: one does not begin the other", short, long)
	}
}

func TestReport(t *testing.T) {
	o := DefaultOptions()
	o.Kinds, o.Conns, o.Targets, o.Rounds = []string{Small}, []int{16}, ShortTargets, 3
	r := &Report{Options: o, Machine: trial.ThisMachine()}
	for round := range 3 {
		// The machine is slower in each round; ratios are of one round's.
		slow := float64(1 + round)
		for name, f := range map[string][2]float64{Ours: {40, 230}, SMGCache: {100, 900}, Bare: {25, 200}, Direct: {10, 100}} {
			r.Trials = append(r.Trials, &Trial{Target: name, Kind: Small, Conns: 16, Round: round + 1, CPU: f[0] * slow, P50: f[1] * slow, PerS: 1000})
		}
		r.Starts = append(r.Starts, &Start{Target: Ours, Round: round + 1, ReadyMs: 80, IdleRSS: 26e6})
	}
	r.sum()
	c := r.cell(Ours, Small, 16)
	if *c.OfBare != (trial.Spread{Median: 1.3, Min: 1.3, Max: 1.3}) || c.CPU != (trial.Spread{Median: 80, Min: 40, Max: 120}) {
		t.Errorf("ours: %+v, %+v", *c.OfBare, c.CPU)
	}
	if of := r.cell(SMGCache, Small, 16).OfOurs; *of != (trial.Spread{Median: 0.4, Min: 0.4, Max: 0.4}) {
		t.Errorf("the peer's: %+v", *of)
	}
	var b bytes.Buffer
	if err := r.WriteText(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| small, 16 | smg | 200.0 (100.0 to 300.0) | 0.40 | 1800 (900 to 2700) |",
		"| ours | 80 | 26.0 |",
		"2 of 4 bars hold",
		"missed: resident at idle, MB: 26.00, must be below 25",
		"missed: small, 16 connections: added p50 over the bare proxy's: 1.30, must be below 1.3",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
}

func TestValidate(t *testing.T) {
	for want, spoil := range map[string]func(*Options){
		"--targets":  func(o *Options) { o.Targets = []string{"theirs"} },
		"--kinds":    func(o *Options) { o.Kinds = []string{Small, Small} },
		"--conns":    func(o *Options) { o.Conns = []int{0} },
		"--duration": func(o *Options) { o.For = 0 },
		"--warm-up":  func(o *Options) { o.Warm = -1 },
		"--idle":     func(o *Options) { o.Idle = time.Hour },
		"--rounds":   func(o *Options) { o.Rounds = 0 },
		"--pin":      func(o *Options) { o.Pin = "all" },
	} {
		o := DefaultOptions()
		if err := o.Validate(); err != nil {
			t.Fatal(err)
		}
		spoil(&o)
		if err := o.Validate(); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

func TestCost(t *testing.T) {
	c, err := costOf(os.Getpid())
	if err != nil || c.CPU <= 0 || c.RSS == 0 {
		t.Errorf("%+v, %v", c, err)
	}
}
