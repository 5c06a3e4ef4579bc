// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"kindex/gateway/route"
	"kindex/internal/longtest"
)

// dial connects to a front, for requests that no client would make.
func (tf *testFront) dial(t testing.TB) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", tf.addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return c
}

// post writes a request.
func post(c io.Writer, body string) {
	fmt.Fprintf(c, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
}

// Whatever a client does at whichever stage, nothing is left of it, and the engine sees
// its connection closed.
func TestHangUps(t *testing.T) {
	for name, c := range map[string]struct {
		serve func(c net.Conn) // after the request was read
		wait  int              // bytes of the answer that the client reads before it hangs up
		kind  route.OutcomeKind
	}{
		"before the head":         {func(net.Conn) {}, 0, route.ClientGone},
		"before the first token":  {func(c net.Conn) { io.WriteString(c, sseHead) }, 0, route.ClientGone},
		"within an event":         {func(c net.Conn) { io.WriteString(c, sseHead); chunk(c, "data: {") }, 0, route.ClientGone},
		"after the first token":   {func(c net.Conn) { io.WriteString(c, sseHead); chunk(c, event("a")) }, 100, route.ClientGone},
		"within a body":           {func(c net.Conn) { io.WriteString(c, okAnswer[:len(okAnswer)-9]) }, 0, route.ClientGone},
		"within a large body":     {func(c net.Conn) { fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: 9999999\r\n\r\n%0999999d", 1) }, 100, route.ClientGone},
		"within an error's words": {func(c net.Conn) { io.WriteString(c, "HTTP/1.1 503 X\r\nContent-Length: 9\r\n\r\nxx") }, 0, route.ClientGone},
	} {
		for _, how := range []string{"close", "reset", "half"} {
			t.Run(name+"/"+how, func(t *testing.T) {
				asked := make(chan struct{}, 1)
				var e *engine
				e = newEngine(t, func(_ int64, conn net.Conn, br *bufio.Reader) {
					readRequest(br)
					c.serve(conn)
					asked <- struct{}{}
					e.waitEnd(br)
				})
				tf := newTestFront(t, nil, e.url)
				client := tf.dial(t).(*net.TCPConn)
				post(client, streamPrompt)
				if _, err := io.ReadFull(client, make([]byte, c.wait)); err != nil {
					t.Fatal(err)
				}
				if c.wait == 0 {
					<-asked
				}
				switch how {
				case "reset":
					client.SetLinger(0)
					client.Close()
				case "half":
					client.CloseWrite()
				default:
					client.Close()
				}
				a := <-tf.told
				if a.Outcome != c.kind {
					t.Errorf("told %+v", a)
				}
				eventually(t, func() string {
					if e.ends.Load() != 1 {
						return "the engine does not see it"
					}
					return ""
				})
				if a.Tries != 1 {
					t.Errorf("%d tries for nobody", a.Tries)
				}
			})
		}
	}
}

// A client that takes nothing of its answer is let go, and so is the engine.
func TestWriteStall(t *testing.T) {
	var e *engine
	e = newEngine(t, func(_ int64, c net.Conn, br *bufio.Reader) {
		readRequest(br)
		io.WriteString(c, sseHead)
		big := event(strings.Repeat("x", 32<<10))
		for range 2000 {
			if _, err := fmt.Fprintf(c, "%x\r\n%s\r\n", len(big), big); err != nil {
				break
			}
		}
		e.waitEnd(br)
	})
	tf := newTestFront(t, func(o *frontOptions) { o.WriteStall = 100 * time.Millisecond }, e.url)
	c := tf.dial(t)
	post(c, streamPrompt)
	if a := <-tf.told; a.Outcome != route.ClientGone {
		t.Errorf("told %+v", a)
	}
	if n := tf.conns.stalled.Load(); n == 0 {
		t.Error("no stall was counted")
	}
}

// What no client should send gets a clear answer, and nothing hangs.
func TestBadInput(t *testing.T) {
	tf := newTestFront(t, func(o *frontOptions) { o.ReadTimeout = 300 * time.Millisecond }, newEngine(t, good).url)
	const host = "Host: x\r\n"
	sized := func(head, body string) string {
		return fmt.Sprintf("POST /v1/completions HTTP/1.1\r\nHost: x\r\n%sContent-Length: %d\r\n\r\n%s", head, len(body), body)
	}
	for name, c := range map[string]struct {
		send   string
		status int
		code   string
	}{
		"no JSON":           {sized("", `{"model":`), 400, "invalid_json"},
		"not UTF-8":         {sized("", "\xff\xfe"), 400, "invalid_json"},
		"empty":             {sized("", ""), 400, "invalid_json"},
		"array":             {sized("", `[1]`), 400, ""},
		"model of a number": {sized("", `{"model":7,"prompt":"a"}`), 400, ""},
		"unknown model":     {sized("", `{"model":"n","prompt":"a"}`), 404, "model_not_found"},
		"unknown path":      {"POST /v1/nothing HTTP/1.1\r\n" + host + "Content-Length: 0\r\n\r\n", 404, "unknown_url"},
		"path of \\xff":     {"GET /\xff\xfe HTTP/1.1\r\n" + host + "\r\n", 404, "unknown_url"},
		"GET":               {"GET /v1/completions HTTP/1.1\r\n" + host + "\r\n", 405, "method_not_allowed"},
		"OPTIONS":           {"OPTIONS /v1/chat/completions HTTP/1.1\r\n" + host + "\r\n", 405, "method_not_allowed"},
		"DELETE of models":  {"DELETE /v1/models HTTP/1.1\r\n" + host + "\r\n", 405, "method_not_allowed"},
		"no such model":     {"GET /v1/models/n HTTP/1.1\r\n" + host + "\r\n", 404, "model_not_found"},
		"no HTTP":           {"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400, "malformed_request"},
		"header bomb":       {"GET /health HTTP/1.1\r\n" + strings.Repeat("X-A: b\r\n", 10_000) + "\r\n", 431, "headers_too_large"},
		"long header":       {"GET /health HTTP/1.1\r\nX-A: " + strings.Repeat("x", 1<<20) + "\r\n\r\n", 431, "headers_too_large"},
		"long URL":          {"GET /" + strings.Repeat("x", 1<<20) + " HTTP/1.1\r\n\r\n", 431, "headers_too_large"},
		"too large":         {"POST /v1/completions HTTP/1.1\r\n" + host + "Content-Length: 99999999999\r\n\r\n", 413, "request_too_large"},
		"too large, sent":   {sized("", strings.Repeat(" ", 4<<20)), 413, "request_too_large"},
		"too large, asked":  {"POST /v1/completions HTTP/1.1\r\n" + host + "Expect: 100-continue\r\nContent-Length: 99999999\r\n\r\n", 413, "request_too_large"},
		"too large, chunks": {"POST /v1/completions HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n" + strings.Repeat("8000\r\n"+strings.Repeat(" ", 0x8000)+"\r\n", 64), 413, "request_too_large"},
		"bad chunk":         {"POST /v1/completions HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\nxyz\r\n", 400, "malformed_request"},
		"both lengths":      {"POST /v1/completions HTTP/1.1\r\n" + host + "Content-Length: 1\r\nContent-Length: 2\r\n\r\n{}", 400, "malformed_request"},
		"negative length":   {"POST /v1/completions HTTP/1.1\r\n" + host + "Content-Length: -1\r\n\r\n{}", 400, "malformed_request"},
		"slow head":         {"POST /v1/completions HTTP/1.1\r\nHos", 408, "request_timeout"},
		"slow body":         {"POST /v1/completions HTTP/1.1\r\n" + host + "Content-Length: 10\r\n\r\n{", 408, "request_timeout"},
		"compressed":        {sized("Content-Encoding: gzip\r\n", idPrompt), 415, "unsupported_encoding"},
	} {
		t.Run(name, func(t *testing.T) {
			conn := tf.dial(t)
			go io.WriteString(conn, c.send)
			resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			if err != nil {
				t.Fatal(err)
			}
			if c.code == "" {
				c.code = resp.Header.Get("X-Kindex-Error-Code")
			}
			wantError(t, &replyHead{resp.StatusCode, resp.Header}, string(body), c.status, c.code)
		})
	}
}

// What is unusual and right is served.
func TestUnusualInput(t *testing.T) {
	tf := newTestFront(t, nil, newEngine(t, good).url)
	read := func(t *testing.T, br *bufio.Reader, method string, status int) string {
		t.Helper()
		resp, err := http.ReadResponse(br, &http.Request{Method: method})
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != status {
			t.Fatalf("got %d %q %v, want %d", resp.StatusCode, body, err, status)
		}
		return string(body)
	}
	t.Run("pipelined", func(t *testing.T) {
		c := tf.dial(t)
		var all bytes.Buffer
		for range 20 {
			post(&all, idPrompt)
			io.WriteString(&all, "GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
		}
		go c.Write(all.Bytes())
		br := bufio.NewReader(c)
		for range 20 {
			if body := read(t, br, "POST", 200); body != okBody {
				t.Fatalf("got %q", body)
			}
			read(t, br, "GET", 200)
		}
	})
	t.Run("chunked", func(t *testing.T) {
		c := tf.dial(t)
		io.WriteString(c, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
		for _, piece := range []string{idPrompt[:3], idPrompt[3:]} {
			chunk(c, piece)
		}
		io.WriteString(c, "0\r\n\r\n")
		read(t, bufio.NewReader(c), "POST", 200)
	})
	t.Run("continue", func(t *testing.T) {
		c := tf.dial(t)
		br := bufio.NewReader(c)
		fmt.Fprintf(c, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n", len(idPrompt))
		if line, err := br.ReadString('\n'); err != nil || !strings.Contains(line, "100") {
			t.Fatalf("got %q %v", line, err)
		}
		br.ReadString('\n')
		io.WriteString(c, idPrompt)
		read(t, br, "POST", 200)
	})
	t.Run("HEAD", func(t *testing.T) {
		c := tf.dial(t)
		br := bufio.NewReader(c)
		for _, path := range []string{"/v1/models", "/health", "/readyz", "/livez"} {
			fmt.Fprintf(c, "HEAD %s HTTP/1.1\r\nHost: x\r\n\r\n", path)
			read(t, br, "HEAD", 200)
		}
		fmt.Fprintf(c, "GET /v1/models/m HTTP/1.1\r\nHost: x\r\n\r\n")
		if body := read(t, br, "GET", 200); !strings.Contains(body, `"id":"m"`) {
			t.Errorf("got %q", body)
		}
	})
	t.Run("HTTP/1.0", func(t *testing.T) {
		e := newEngine(t, func(_ int64, c net.Conn, br *bufio.Reader) {
			readRequest(br)
			io.WriteString(c, sseHead)
			chunk(c, event("a"))
			chunk(c, "data: [DONE]\n\n")
			io.WriteString(c, "0\r\n\r\n")
		})
		old := newTestFront(t, nil, e.url)
		c := old.dial(t)
		fmt.Fprintf(c, "POST /v1/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n%s", len(streamPrompt), streamPrompt)
		all, err := io.ReadAll(c)
		if err != nil || !strings.HasSuffix(string(all), event("a")+"data: [DONE]\n\n") || strings.Contains(string(all), "chunked") {
			t.Errorf("got %q %v", all, err)
		}
	})
}

// Many clients hang up at random moments: nothing is left, and the engine is told of
// each that it was still working for.
func TestManyHangUps(t *testing.T) {
	e := newEngine(t, func(_ int64, c net.Conn, br *bufio.Reader) {
		for readRequest(br) != nil {
			pause := time.Duration(rand.Int64N(int64(2 * time.Millisecond)))
			time.Sleep(pause)
			if _, err := io.WriteString(c, sseHead); err != nil {
				return
			}
			for range 5 {
				time.Sleep(pause)
				chunk(c, event("token"))
			}
			chunk(c, "data: [DONE]\n\n")
			io.WriteString(c, "0\r\n\r\n")
		}
	})
	tf := newTestFront(t, nil, e.url, newEngine(t, good).url)
	clients := longtest.N(400, 10_000)
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			for range clients / 50 {
				c, err := net.Dial("tcp", tf.addr)
				if err != nil {
					t.Error(err)
					return
				}
				post(c, streamPrompt)
				if rand.IntN(4) > 0 {
					time.Sleep(time.Duration(rand.Int64N(int64(8 * time.Millisecond))))
				}
				if rand.IntN(2) == 0 {
					c.(*net.TCPConn).SetLinger(0)
				}
				c.Close()
			}
		})
	}
	all.Wait()
	tf.settled(t)
	eventually(t, func() string {
		if n := tf.conns.watcher.Watched(); n != 0 {
			return fmt.Sprint(n, " connections are still watched")
		}
		tf.conns.mu.Lock()
		defer tf.conns.mu.Unlock()
		if n := len(tf.conns.open); n != 0 {
			return fmt.Sprint(n, " connections are still open")
		}
		return ""
	})
	gone, whole := 0, 0
	for len(tf.told) > 0 {
		if a := <-tf.told; a.Outcome == route.ClientGone {
			gone++
		} else {
			whole++
		}
	}
	t.Logf("%d hung up, %d were answered", gone, whole)
	if gone == 0 {
		t.Error("nobody hung up")
	}
}
