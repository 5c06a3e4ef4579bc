// SPDX-License-Identifier: Apache-2.0

package openloop

import (
	"context"
	"encoding/csv"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func replayed(t *testing.T, o *Options) *Result {
	t.Helper()
	r, err := Run(t.Context(), o, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestReplay holds what a replay says against what the endpoint saw.
func TestReplay(t *testing.T) {
	for _, kind := range Prompts {
		t.Run(kind, func(t *testing.T) {
			f := newFake(t)
			o := f.options()
			o.Prompt = kind
			o.Out = filepath.Join(t.TempDir(), "a", "b")
			r := replayed(t, o)
			s := r.Summary
			if s.Requests.OK != 40 || s.Requests.Failed != 0 || len(s.Errors) != 0 || s.Finish["length"] != 40 || !s.Valid {
				t.Fatalf("%+v, %v, %v, %v", s.Requests, s.Errors, s.Finish, s.Invalid)
			}
			trace, err := ReadTrace(Generated, o.Rows, o.Seed)
			if err != nil {
				t.Fatal(err)
			}
			wantPrompt, wantOutput := 0, 0
			order, asked := f.came()
			for i := range trace.Rows {
				wantPrompt += trace.Rows[i].Input
				wantOutput += min(trace.Rows[i].Output, 5)
				if got := asked[slices.Index(order, "replay-3-"+known(i))]; got != trace.Rows[i].Input {
					t.Errorf("row %d: %d tokens, want %d", i, got, trace.Rows[i].Input)
				}
			}
			if s.Tokens.Prompt != wantPrompt || s.Tokens.Asked != wantPrompt || s.Tokens.Output != wantOutput || s.Tokens.OutputPieces != wantOutput {
				t.Errorf("%+v, want %d prompt tokens and %d of answers", s.Tokens, wantPrompt, wantOutput)
			}
			// The fake caches at once and for ever, and requests came in order: it is the endless cache.
			if s.Cache.Cached != s.Reuse.Tokens || s.Cache.Cached == 0 || s.Cache.Source != "usage" || s.Cache.Differs != 0 {
				t.Errorf("cached %+v, the trace's reuse %d", s.Cache, s.Reuse.Tokens)
			}
			if s.Best == nil || s.Best.Tokens != s.Cache.Cached+40*16 || s.Best.Requests != 40 || !s.Best.ThisRun || s.Reuse.BlockSize != fakeBlock {
				t.Errorf("best at arrival %+v, prefix reuse %+v", s.Best, s.Reuse)
			}
			// There is room for all, and rows share no more than one router can keep together.
			if o := s.Oracle; o == nil || o.Workers != 2 || o.Places != 2 || o.Blocks != 2*100_000 || o.BlockSize != fakeBlock || o.Rows != 40 || o.Tokens > s.Reuse.Tokens || o.Tokens < s.Reuse.Tokens*9/10 {
				t.Errorf("oracle %+v, prefix reuse %+v", o, s.Reuse)
			}
			if b := s.Balance; b == nil || len(b.Workers) != 2 || b.Workers[0].Requests != 20 || b.Requests != 1 {
				t.Errorf("balance %+v", b)
			}
			if s.TTFT.N != 40 || s.ITL.N != wantOutput-40 || s.TTFT.P50 <= 0 || s.TTFT.P99 < s.TTFT.P50 {
				t.Errorf("TTFT %+v, ITL %+v", s.TTFT, s.ITL)
			}
			if err := r.WriteDir(o.Out); err != nil {
				t.Fatal(err)
			}
			checkFiles(t, o.Out, s)
		})
	}
}

func checkFiles(t *testing.T, dir string, s *Summary) {
	t.Helper()
	read := func(name string) string {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	var again Summary
	if err := json.Unmarshal([]byte(read(fileSummary)), &again); err != nil || again.Cache.Cached != s.Cache.Cached {
		t.Errorf("%s: %v, %+v", fileSummary, err, again.Cache)
	}
	rows, err := csv.NewReader(strings.NewReader(read(fileRequests))).ReadAll()
	if err != nil || len(rows) != 41 || len(rows[0]) != len(rows[1]) || rows[1][slices.Index(rows[0], "worker")] == "" {
		t.Errorf("%s: %v, %d rows", fileRequests, err, len(rows))
	}
	if rows, err = csv.NewReader(strings.NewReader(read(fileFleet))).ReadAll(); err != nil || len(rows) < 4 {
		t.Errorf("%s: %v, %v", fileFleet, err, rows)
	}
	report := read(fileReport)
	for _, want := range []string{"TTFT", "Goodput", "oracle", "prefix reuse", "Balance over 2 workers", "ttft.svg"} {
		if !strings.Contains(report, want) {
			t.Errorf("%s does not tell %q:\n%s", fileReport, want, report)
		}
	}
	if svg := read("ttft.svg"); !strings.Contains(svg, "<svg") {
		t.Errorf("no plot: %.100s", svg)
	}
	if left, err := filepath.Glob(filepath.Join(dir, "*.part")); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// TestTwice: what depends on the trace, the seed and the fleet's size is equal in every
// replay, whatever arrived first and whoever served it.
func TestTwice(t *testing.T) {
	f := newFake(t)
	a, b := replayed(t, f.options()), replayed(t, f.options())
	if diff := cmp.Diff(a.Summary.Oracle, b.Summary.Oracle) + cmp.Diff(a.Summary.Reuse, b.Summary.Reuse); diff != "" || a.Summary.Oracle.Tokens == 0 {
		t.Errorf("another oracle the second time:\n%s", diff)
	}
	for i := range a.Records {
		x, y := &a.Records[i], &b.Records[i]
		if x.Row != y.Row || x.Prompt != y.Prompt || x.Completion != y.Completion || x.PrefixReuse != y.PrefixReuse || x.Oracle != y.Oracle {
			t.Errorf("row %d: %+v, then %+v", i, x, y)
		}
	}
}

// TestOneByOne: never two at once, in the trace's order, and everything equal in two
// replays.
func TestOneByOne(t *testing.T) {
	f := newFake(t)
	o := f.options()
	o.OneByOne, o.Speedup, o.Rows = true, 1e-9, Range{0, 59}
	a := replayed(t, o)
	order, _ := f.came()
	for i, id := range order {
		if want := "replay-3-" + known(i); id != want {
			t.Errorf("%s was the %d-th, want %s", id, i, want)
		}
	}
	b := replayed(t, o)
	for i := range a.Records {
		x, y := &a.Records[i], &b.Records[i]
		if x.Cached != y.Cached || x.Worker != y.Worker || x.BestAtArrival != y.BestAtArrival || x.BestAtArrival == unknown || x.Oracle != y.Oracle {
			t.Errorf("row %d: %+v, then %+v", i, x, y)
		}
	}
	if s := a.Summary; s.Client.Flying != 1 || !s.Valid || s.Cache.Cached != s.Reuse.Tokens {
		t.Errorf("%d at once, valid %v, cached %d of %d", s.Client.Flying, s.Valid, s.Cache.Cached, s.Reuse.Tokens)
	}
}

// TestGatewayIDs joins through the answer's id where the gateway makes its own.
func TestGatewayIDs(t *testing.T) {
	f := newFake(t)
	f.ids = true
	s := replayed(t, f.options()).Summary
	if s.Best == nil || s.Best.Requests != 40 || len(s.Notes) != 0 {
		t.Errorf("joined %+v: %v", s.Best, s.Notes)
	}
}

// TestPredicted compares a gateway's header with what was cached.
func TestPredicted(t *testing.T) {
	f := newFake(t)
	f.header.Set(headerPredicted, "512")
	f.header.Set("X-Kindex-Worker", "here")
	o := f.options()
	o.Oracle, o.Reset = "", false
	r := replayed(t, o)
	over, equal, under, abs := 0, 0, 0, 0
	for i := range r.Records {
		d := 512 - r.Records[i].Cached
		switch {
		case d > 0:
			over++
		case d < 0:
			under++
		default:
			equal++
		}
		abs += max(d, -d)
	}
	p := r.Summary.Predicted
	if p == nil || p.N != 40 || p.Over != over || p.Under != under || p.Equal != equal || p.MeanAbs != float64(abs)/40 {
		t.Errorf("%+v, want %d over, %d equal, %d under, %d in all", p, over, equal, under, abs)
	}
	if b := r.Summary.Balance; b == nil || len(b.Workers) != 1 || b.Workers[0].Name != "here" {
		t.Errorf("balance %+v", b)
	}
}

// TestErrors counts each kind.
func TestErrors(t *testing.T) {
	f := newFake(t)
	begin := "data: {\"id\":\"q\",\"choices\":[{\"index\":0,\"text\":\"x\",\"finish_reason\":null}]}\n\n"
	event := func(w http.ResponseWriter, s string) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, s)
	}
	f.fail = func(n int, w http.ResponseWriter) bool {
		switch n % 10 {
		case 0:
			http.Error(w, "busy", http.StatusServiceUnavailable)
		case 1:
			http.Error(w, "slow", http.StatusTooManyRequests)
		case 2: // the connection breaks within the answer
			event(w, begin)
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		case 3: // the answer ends early
			event(w, begin)
		case 4:
			event(w, begin+"data: {\"error\":{\"message\":\"no\",\"code\":507}}\n\n")
		case 5:
			event(w, begin+"data: {{\n\n")
		case 6:
			_, _ = io.WriteString(w, `{"choices":[]}`)
		case 7:
			panic(http.ErrAbortHandler)
		default:
			return false
		}
		return true
	}
	s := replayed(t, f.options()).Summary
	want := map[string]int{"status 503": 4, "status 429": 4, errCut: 12, "error 507": 4, errProtocol: 8}
	for kind, n := range want {
		if s.Errors[kind] != n {
			t.Errorf("%s: %d, want %d", kind, s.Errors[kind], n)
		}
	}
	if len(s.Errors) != len(want) || s.Requests.Failed != 32 || s.Requests.OK != 8 {
		t.Errorf("%v, %+v", s.Errors, s.Requests)
	}
	if !slices.ContainsFunc(s.Notes, func(n string) bool { return n == "status 429, for example: slow" }) {
		t.Errorf("no example in %q", s.Notes)
	}
	f.fail = nil
	o := f.options()
	o.Model, o.Oracle, o.Reset = "m", "", false
	f.Close()
	if s := replayed(t, o).Summary; s.Errors[errConnect] != 40 {
		t.Errorf("nobody listens: %v", s.Errors)
	}
}

// TestLongAway: a due time that saturated is waited for, and said; what is due later than
// asked for is left out.
func TestLongAway(t *testing.T) {
	f := newFake(t)
	o := f.options()
	o.Trace = filepath.Join(t.TempDir(), "t.jsonl")
	text := `{"timestamp": 18446744073709551615, "input_length": 9, "output_length": 1}` + "\n" + `{"timestamp": 5, "input_length": 600, "output_length": 2}` + "\n"
	if err := os.WriteFile(o.Trace, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	o.Rows, o.Speedup = Range{0, 1}, 1
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	var said strings.Builder
	r, err := Run(ctx, o, &said)
	if err != nil {
		t.Fatal(err)
	}
	if s := r.Summary; s.Requests.OK != 1 || s.Requests.NotSent != 1 || !strings.Contains(said.String(), "is due only in 2562047h") || r.Records[0].Row != 1 {
		t.Errorf("%+v, %q", s.Requests, said.String())
	}
	said.Reset()
	o.For = time.Minute
	if r, err = Run(t.Context(), o, &said); err != nil || r.Summary.Requests.Rows != 1 || r.Summary.Requests.OK != 1 || said.Len() != 0 {
		t.Errorf("%v, %+v, %q", err, r.Summary.Requests, said.String())
	}
}

// TestSilent: servers that take a connection and then say nothing, say nothing more, or
// never end saying something that is no answer. Each request ends, and is counted.
func TestSilent(t *testing.T) {
	for _, test := range []struct {
		name, want string
		answer     func(net.Conn)
	}{
		{"never answers", errTimeout, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }},
		{"never reads", errTimeout, func(c net.Conn) { <-t.Context().Done(); _ = c.Close() }},
		{"hangs up", errCut, func(c net.Conn) { _ = c.Close() }},
		{"says no more", errTimeout, func(c net.Conn) {
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: {\"id\":\"q\",\"choices\":[{\"text\":\"x\"}]}\n\n")
			_, _ = io.Copy(io.Discard, c)
		}},
		{"endless header", errCut, func(c net.Conn) { flood(c, "HTTP/1.1 200 OK\r\n", "X: y\r\n") }},
		{"endless line", errProtocol, func(c net.Conn) {
			flood(c, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: ", "xxxxxxxx")
		}},
		{"endless refusal", "status 500", func(c net.Conn) { flood(c, "HTTP/1.1 500 No\r\n\r\n", "xxxxxxxx") }},
		{"noise", errCut, func(c net.Conn) { flood(c, "", "\x00\xff") }},
	} {
		t.Run(test.name, func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = l.Close() }()
			go func() {
				for {
					c, err := l.Accept()
					if err != nil {
						return
					}
					go test.answer(c)
				}
			}()
			o := (&fake{Server: &httptest.Server{URL: "http://" + l.Addr().String()}}).options()
			o.Oracle, o.Reset, o.Model, o.Rows, o.Timeout = "", false, "m", Range{0, 4}, 2*time.Second
			if s := replayed(t, o).Summary; s.Errors[test.want] != 5 && s.Errors[test.want]+s.Errors[errTimeout] != 5 || s.Requests.Failed != 5 {
				t.Errorf("%v, want 5 of %q; %+v", s.Errors, test.want, s.Requests)
			}
		})
	}
}

// flood says head, and then the same for ever.
func flood(c net.Conn, head, more string) {
	_, err := io.WriteString(c, head)
	for more = strings.Repeat(more, 1<<12); err == nil; {
		_, err = io.WriteString(c, more)
	}
}

// TestOpenLoop: requests go out in time while none is answered; past the bound they
// are dropped and told of; one that takes too long ends.
func TestOpenLoop(t *testing.T) {
	f := newFake(t)
	free := make(chan struct{})
	f.hold = func(int) { <-free }
	o := f.options()
	o.InFlight, o.Timeout = 25, time.Second
	done := make(chan *Result)
	go func() { r, _ := Run(context.Background(), o, nil); done <- r }()
	r := <-done
	close(free)
	s := r.Summary
	if s.Requests.Sent != 25 || s.Requests.Dropped != 15 || s.Errors[errDropped] != 15 || s.Errors[errTimeout] != 25 || s.Valid || s.Client.Flying != 25 {
		t.Errorf("%+v, %v, valid %v, %d in flight", s.Requests, s.Errors, s.Valid, s.Client.Flying)
	}
}

// TestInterrupted ends with what there is.
func TestInterrupted(t *testing.T) {
	f := newFake(t)
	ctx, cancel := context.WithCancel(t.Context())
	free := make(chan struct{})
	f.hold = func(n int) {
		if n == 9 {
			for answered := 0; answered < 6; time.Sleep(20 * time.Millisecond) { // and a moment for the client to read them
				f.mu.Lock()
				answered = len(f.log)
				f.mu.Unlock()
			}
			cancel()
		}
		if n > 5 {
			<-free
		}
	}
	o := f.options()
	o.Speedup = 2 // some seconds for all
	r, err := Run(ctx, o, nil)
	close(free)
	if err != nil {
		t.Fatal(err)
	}
	s := r.Summary
	if !s.Interrupted || s.Requests.OK == 0 || s.Requests.Cut == 0 || s.Requests.NotSent == 0 || s.Requests.OK+s.Requests.Cut+s.Requests.NotSent != 40 || len(s.Errors) != 0 {
		t.Errorf("%+v, %v", s.Requests, s.Errors)
	}
	if err := r.WriteDir(t.TempDir()); err != nil {
		t.Error(err)
	}
}

// TestProxy: requests go to the engines in turn, and answers come back as they come.
func TestProxy(t *testing.T) {
	a, b := newFake(t), newFake(t)
	p, err := OpenProxy("127.0.0.1:0", []string{a.URL, strings.TrimPrefix(b.URL, "http://")})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	o := a.options()
	o.URL, o.Oracle, o.Reset, o.Model = "http://"+p.Addr, "", false, "m"
	s := replayed(t, o).Summary
	first, _ := a.came()
	second, _ := b.came()
	if s.Requests.OK != 40 || len(first) != 20 || len(second) != 20 {
		t.Errorf("%+v, %d and %d, %v", s.Requests, len(first), len(second), s.Errors)
	}
	if _, err := OpenProxy("127.0.0.1:0", nil); err == nil || !strings.Contains(err.Error(), "--upstream") {
		t.Errorf("no upstream: %v", err)
	}
}

// TestProxyBreaks: what breaks behind the proxy breaks before it, and a client that
// goes away ends the engine's work.
func TestProxyBreaks(t *testing.T) {
	f := newFake(t)
	gone := make(chan struct{})
	var once sync.Once
	f.fail = func(n int, w http.ResponseWriter) bool {
		switch n % 4 {
		case 0:
			http.Error(w, "busy", http.StatusServiceUnavailable)
		case 1:
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "data: {\"id\":\"q\",\"choices\":[{\"text\":\"x\",\"finish_reason\":null}]}\n\n")
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		case 2:
			panic(http.ErrAbortHandler)
		default: // an answer without end
			w.Header().Set("Content-Type", "text/event-stream")
			for {
				if _, err := io.WriteString(w, "data: {\"id\":\"q\",\"choices\":[{\"text\":\"x\",\"finish_reason\":null}]}\n\n"); err != nil {
					once.Do(func() { close(gone) })
					return true
				}
				_ = http.NewResponseController(w).Flush()
				time.Sleep(time.Millisecond)
			}
		}
		return true
	}
	p, err := OpenProxy("127.0.0.1:0", []string{f.URL})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	o := f.options()
	o.URL, o.Oracle, o.Reset, o.Model, o.Timeout = "http://"+p.Addr, "", false, "m", 2*time.Second
	s := replayed(t, o).Summary
	for kind, n := range map[string]int{"status 503": 10, errCut: 10, "status 502": 10, errTimeout: 10} {
		if s.Errors[kind] != n {
			t.Errorf("%s: %d, want %d", kind, s.Errors[kind], n)
		}
	}
	<-gone
}
