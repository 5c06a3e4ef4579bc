// SPDX-License-Identifier: Apache-2.0

package indexsrv

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"kindex/internal/kv"
	"kindex/relay/feed"
)

// TestRoutes: wrong methods, unknown paths, and what is not built.
func TestRoutes(t *testing.T) {
	h := startTestHost(t, nil)
	for _, r := range routes {
		wrong := "POST"
		if r.method == "POST" {
			wrong = "GET"
		}
		for _, method := range []string{wrong, "PUT", "DELETE", "PATCH", "OPTIONS"} {
			if got := h.error(method, r.path, "", 405); !strings.Contains(got, r.method) {
				t.Errorf("%s %s: got %q, want the right method named", method, r.path, got)
			}
		}
		if r.method == "GET" {
			if code, body := h.do("HEAD", r.path, ""); code >= 500 || body != "" {
				t.Errorf("HEAD %s: got %d %q", r.path, code, body)
			}
		}
		if !r.below && routeOf([]byte(r.path+"/")) == len(routes) {
			h.error("GET", r.path+"/", "", 404)
		}
	}
	for _, path := range []string{"/", "/nope", "/queryx", "//", "/query%20", "/QUERY"} {
		h.error("GET", path, "", 404)
		h.error("POST", path, "{}", 404)
	}
	h.want("GET", "/health", "", 200, `{"status":"ok"}`)
	h.want("GET", "/livez", "", 200, `{"status":"ok"}`)
	h.want("GET", "/readyz", "", 200, `{"status":"ready"}`)
	for _, arg := range []string{"format=xml", "format=JSON"} {
		h.error("GET", "/dump?"+arg, "", 400)
	}
	for _, path := range []string{"/dump", "/digest"} {
		h.error("GET", path+"?model_name=zz", "", 404)
	}
	h.error("GET", "/dump?instance_id=zz", "", 404)
}

// TestUnknownModel is 404 on both query routes, and names the field.
func TestUnknownModel(t *testing.T) {
	h := startTestHost(t, nil)
	h.register(reg("1", "m", ""))
	for _, more := range []string{`"model_name":"zz"`, `"model_name":"m","routing_group":"zz"`, `"model_name":"m","tenant_id":"zz"`} {
		for path, list := range map[string]string{"/query": "token_ids", "/query_by_hash": "block_hashes"} {
			if got := h.error("POST", path, `{"`+list+`":[1],`+more+`}`, 404); !strings.HasPrefix(got, "model_name: ") {
				t.Errorf("%s %s: got %q", path, more, got)
			}
		}
	}
}

// TestBadBodies: what no route can read is 400 on each, and the host lives on.
func TestBadBodies(t *testing.T) {
	h := startTestHost(t, nil)
	h.register(reg("1", "m", ""))
	for _, body := range []string{
		"", " ", "\x00", "\xff\xfe", "null", "true", "[]", "[1]", "7", `"a"`, "{", "{]", `{"a"}`, `{"a":}`, `{"a":1,}`, `{"model_name":"m"`, `{'a':1}`, "{}{}", `{"model_name":"m",` + "\x00}",
		strings.Repeat("[", 1_000_000), strings.Repeat(`{"a":`, 1_000_000), `{"x":` + strings.Repeat("[", 65) + strings.Repeat("]", 65) + "}", `{"x":"` + strings.Repeat("a", 1_000_000), "{" + strings.Repeat(`"a":1,`, 100_000),
	} {
		for _, r := range routes {
			if !r.body {
				continue
			}
			h.error("POST", r.path, body, 400)
		}
	}
	for _, array := range []string{`[-1]`, `[1.5]`, `[1e400]`, `[4294967296]`, `["1"]`, `[null]`, `[[1]]`, `{}`, `"1"`, `7`, `true`, `[1,]`, `[18446744073709551616]`} {
		if got := h.error("POST", "/query", `{"model_name":"m","token_ids":`+array+`}`, 400); !strings.Contains(got, "token_ids") && !strings.Contains(got, "body: not JSON") {
			t.Errorf("%s: got %q, want the field named", array, got)
		}
	}
	for _, array := range []string{`[1.5]`, `[1e400]`, `[18446744073709551616]`, `[-9223372036854775809]`, `["1"]`, `[null]`, `{}`, `null`} {
		if got := h.error("POST", "/query_by_hash", `{"model_name":"m","block_hashes":`+array+`}`, 400); !strings.HasPrefix(got, "block_hashes") {
			t.Errorf("%s: got %q, want the field named", array, got)
		}
	}
	h.want("POST", "/query", `{"model_name":"m","token_ids":[1,2,3,4]}`, 200, nobody)
}

// TestBodyLimit: a body at the limit is read, one byte more is 413, however it
// is sent, and a client that sends it all gets to read the answer.
func TestBodyLimit(t *testing.T) {
	h := startTestHost(t, nil)
	h.register(reg("1", "m", ""))
	const limit = 8 << 20
	body := func(n int) []byte {
		head := `{"model_name":"m","token_ids":[1],"x":"`
		return []byte(head + strings.Repeat("y", n-len(head)-2) + `"}`)
	}
	send := func(b []byte, chunked bool, header ...string) int {
		t.Helper()
		var r io.Reader = bytes.NewReader(b)
		if chunked {
			r = io.MultiReader(r) // hides the length
		}
		req, err := http.NewRequestWithContext(t.Context(), "POST", h.url+"/query", r)
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(header); i += 2 {
			req.Header.Set(header[i], header[i+1])
		}
		client := http.Client{Transport: &http.Transport{ExpectContinueTimeout: 5 * time.Second, DisableKeepAlives: true}}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatalf("%d bytes, chunked %v: %v", len(b), chunked, err)
		}
		defer resp.Body.Close()
		reply, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != 200 && !bytes.HasPrefix(reply, []byte(`{"error":"`)) {
			t.Errorf("%d bytes, chunked %v: got %d %.100q (%v)", len(b), chunked, resp.StatusCode, reply, err)
		}
		return resp.StatusCode
	}
	for _, chunked := range []bool{false, true} {
		if got := send(body(limit), chunked); got != 200 {
			t.Errorf("at the limit, chunked %v: got %d, want 200", chunked, got)
		}
		if got := send(body(limit+1), chunked); got != 413 {
			t.Errorf("over the limit, chunked %v: got %d, want 413", chunked, got)
		}
		if got := send(body(40<<20), chunked); got != 413 {
			t.Errorf("far over the limit, chunked %v: got %d, want 413", chunked, got)
		}
		if got := send(body(limit+1), chunked, "Expect", "100-continue"); got != 413 {
			t.Errorf("asked first, chunked %v: got %d, want 413", chunked, got)
		}
	}
	if got := send(body(100), false, "Content-Encoding", "gzip"); got != 415 {
		t.Errorf("a coded body: got %d, want 415", got)
	}
	h.must(200, "GET", "/health", "")
}

// raw sends bytes and returns the first line of the reply and its body.
func (h *testHost) raw(text string) (status, body string) {
	h.t.Helper()
	c, err := net.Dial("tcp", h.Addr().String())
	if err != nil {
		h.t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		h.t.Fatal(err)
	}
	if _, err := io.WriteString(c, text); err != nil {
		h.t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return "none", err.Error()
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		h.t.Fatal(err)
	}
	return resp.Status[:3], string(b)
}

// TestBadHTTP: what is no HTTP gets a refusal, and nobody waits for ever.
func TestBadHTTP(t *testing.T) {
	h := startTestHost(t, func(c *Config) { c.ReadTimeout = 300 * time.Millisecond })
	f := func(text, want string) {
		t.Helper()
		if got, body := h.raw(text); got != want || want != "none" && !strings.HasPrefix(body, `{"error":"`) {
			t.Errorf("%.80q: got %s %q, want %s", text, got, body, want)
		}
	}
	f("nonsense\r\n\r\n", "400")
	f("POST /query HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n", "400")
	f("POST /query HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\n", "400")
	f("POST /query HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "400")
	f("GET /health HTTP/1.1\r\nHost: x\r\nX: "+strings.Repeat("y", 20_000)+"\r\n\r\n", "431")
	f("POST /query HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{", "408") // never sends the rest
	h.must(200, "GET", "/health", "")
}

// TestManyBadRequests: memory stays flat under refusals.
func TestManyBadRequests(t *testing.T) {
	h := startTestHost(t, nil)
	h.register(reg("1", "m", ""))
	big := `{"model_name":"m","token_ids":[` + strings.Repeat("1,", 500_000) + `-1]}`
	round := func() uint64 {
		for range 30 {
			h.error("POST", "/query", big, 400)
			h.error("POST", "/query", strings.Repeat("[", 100_000), 400)
		}
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	round()
	before := round()
	if after := round(); after > before+16<<20 {
		t.Errorf("heap grew from %d to %d bytes over 60 refusals", before, after)
	}
}

// TestPanic: a fault that one request meets is that request's.
func TestPanic(t *testing.T) {
	h := startTestHost(t, nil)
	h.register(reg("1", "m", ""))
	h.put(h.rank("m", "", "1", 0), kv.TierDevice, "", "", 1, tokens(1, 4), nil)
	r := h.rank("m", "", "1", 0)
	whole := r.stream
	r.stream = nil // planted: lookups ask it
	if got := h.error("POST", "/query", query(t, tokens(1, 4), ""), 500); got != "internal error: this host's log has it" {
		t.Errorf("got %q", got)
	}
	h.must(200, "GET", "/health", "")
	if got := h.met.panics.Load(); got != 1 {
		t.Errorf("%d panics counted, want 1", got)
	}
	// Whole again, for the drain.
	r.stream = whole
}

// TestReady follows the contract: exact or given up on.
func TestReady(t *testing.T) {
	h := startTestHost(t, nil)
	h.register(reg("1", "m", ""))
	h.register(strings.Replace(reg("2", "m", ""), "21001", "21002", 1))
	h.want("GET", "/readyz", "", 200, `{"status":"ready"}`)
	setState(h.rank("m", "", "2", 0), feed.StatePending)
	if got := h.error("GET", "/readyz", "", 503); !strings.Contains(got, "m:default instance 2 dp_rank 0: pending") {
		t.Errorf("got %q", got)
	}
	h.must(200, "GET", "/health", "")
	h.must(200, "POST", "/unregister", `{"instance_id":2,"model_name":"m"}`)
	h.want("GET", "/readyz", "", 200, `{"status":"ready"}`)
	h.draining.Store(true)
	if got := h.error("GET", "/readyz", "", 503); !strings.Contains(got, "draining") {
		t.Errorf("got %q", got)
	}
	h.must(200, "GET", "/livez", "")
}

// TestDrain: requests under way are answered, idle connections do not hold it
// up, and it is over in bounded time.
func TestDrain(t *testing.T) {
	h := startTestHost(t, func(c *Config) { c.DrainTimeout = 2 * time.Second; c.DrainDelay = 200 * time.Millisecond })
	h.register(reg("1", "m", ""))
	h.must(200, "GET", "/health", "") // leaves an idle connection
	c, err := net.Dial("tcp", h.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := fmt.Fprint(c, "POST /query HTTP/1.1\r\nHost: x\r\nContent-Length: 36\r\n\r\n{\"model_name\":"); err != nil {
		t.Fatal(err)
	}
	stopped := make(chan error, 1)
	begun := time.Now()
	go func() { stopped <- h.stop() }()
	waitFor(t, "not ready", func() bool { return h.draining.Load() })
	h.error("GET", "/readyz", "", 503) // still serving, in the delay
	if _, err := fmt.Fprint(c, `"m","token_ids":[1,2]}`); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatalf("a request under way was cut: %v", err)
	}
	if err := resp.Body.Close(); err != nil || resp.StatusCode != 200 {
		t.Errorf("a request under way got %d (%v), want 200", resp.StatusCode, err)
	}
	if err := <-stopped; err != nil {
		t.Errorf("drain: %v", err)
	}
	if took := time.Since(begun); took > 2*time.Second {
		t.Errorf("the drain took %s", took)
	}
	if !h.src.closed {
		t.Error("the source was not closed")
	}
}

// TestDrainBounded: a client that never finishes does not hold up the drain.
func TestDrainBounded(t *testing.T) {
	h := startTestHost(t, func(c *Config) { c.DrainTimeout = 300 * time.Millisecond })
	c, err := net.Dial("tcp", h.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := fmt.Fprint(c, "POST /query HTTP/1.1\r\nHost: x\r\nContent-Length: 36\r\n\r\n{"); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the connection is accepted", func() bool { return h.server.GetOpenConnectionsCount() > 0 })
	begun := time.Now()
	if err := h.stop(); err != nil {
		t.Errorf("drain: %v", err)
	}
	if took := time.Since(begun); took > 3*time.Second {
		t.Errorf("the drain took %s, its timeout is 300ms", took)
	}
}

func waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within 10 s: %s", what)
		}
	}
}
