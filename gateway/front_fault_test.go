// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"kindex/gateway/route"
)

const sseHead = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"

// chunk writes s as a chunk.
func chunk(c io.Writer, s string) {
	fmt.Fprintf(c, "%x\r\n%s\r\n", len(s), s)
}

const streamPrompt = `{"model":"m","prompt":[1,2,3],"stream":true}`

// event is one that carries output.
func event(text string) string {
	return `data: {"choices":[{"index":0,"text":"` + text + `"}]}` + "\n\n"
}

// Whatever a worker does before a byte reached the client, another one answers.
func TestRetriesBeforeFirstByte(t *testing.T) {
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	for name, c := range map[string]struct {
		kind  route.OutcomeKind
		serve func(c net.Conn)
	}{
		"refused":    {route.ConnectFailed, nil},
		"closed":     {route.Broken, func(net.Conn) {}},
		"half head":  {route.Broken, func(c net.Conn) { io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Ty") }},
		"no head":    {route.Broken, func(c net.Conn) { io.WriteString(c, "SSH-2.0-OpenSSH_9.2\r\n") }},
		"huge head":  {route.Broken, func(c net.Conn) { io.WriteString(c, "HTTP/1.1 200 OK\r\nX: "+strings.Repeat("x", 1<<20)) }},
		"cut body":   {route.Broken, func(c net.Conn) { io.WriteString(c, okAnswer[:len(okAnswer)-5]) }},
		"bad chunk":  {route.Broken, func(c net.Conn) { io.WriteString(c, sseHead+"zz\r\nx\r\n") }},
		"cut stream": {route.Broken, func(c net.Conn) { io.WriteString(c, sseHead) }},
		"half event": {route.Broken, func(c net.Conn) { io.WriteString(c, sseHead); chunk(c, "data: {\"cho") }},
		"two lengths": {route.Broken, func(c net.Conn) {
			io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx")
		}},
		"negative":     {route.Broken, func(c net.Conn) { io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\nxx") }},
		"upgrade":      {route.Broken, func(c net.Conn) { io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\n\r\n") }},
		"full":         {route.BackPressure, func(c net.Conn) { io.WriteString(c, "HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nbusy") }},
		"rate limited": {route.BackPressure, func(c net.Conn) { io.WriteString(c, "HTTP/1.1 429 Busy\r\nContent-Length: 4\r\n\r\nbusy") }},
		"fails":        {route.WorkerError, func(c net.Conn) { io.WriteString(c, "HTTP/1.1 500 Oh\r\nContent-Length: 2\r\n\r\noh") }},
	} {
		t.Run(name, func(t *testing.T) {
			url := "http://" + closed.Addr().String()
			if c.serve != nil {
				url = newEngine(t, func(_ int64, conn net.Conn, br *bufio.Reader) {
					readRequest(br)
					c.serve(conn)
				}).url
			}
			tf := newTestFront(t, nil, url, newEngine(t, good).url)
			for range 2 { // one of them begins with the bad one
				resp, body := ask(t, tf.url+"/v1/completions", streamPrompt)
				if resp.StatusCode != 200 || body != okBody || resp.Header.Get("X-Kindex-Worker") != "w1" {
					t.Errorf("got %d %q of %s", resp.StatusCode, body, resp.Header.Get("X-Kindex-Worker"))
				}
			}
			if tf.stats.retries[c.kind].Load() == 0 {
				t.Errorf("nothing was tried again after %s", c.kind)
			}
			if a := <-tf.told; a.Outcome != route.OK || a.Tries == 0 {
				t.Errorf("told %+v", a)
			}
		})
	}
}

// Where no other worker is left, the client is told.
func TestNobodyElse(t *testing.T) {
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	tf := newTestFront(t, nil, "http://"+closed.Addr().String())
	resp, body := ask(t, tf.url+"/v1/completions", idPrompt)
	wantError(t, resp, body, 503, "upstream_unreachable")

	cut := newEngine(t, func(_ int64, _ net.Conn, br *bufio.Reader) { readRequest(br) })
	tf = newTestFront(t, nil, cut.url)
	resp, body = ask(t, tf.url+"/v1/completions", idPrompt)
	wantError(t, resp, body, 502, "upstream_broken")

	silent := newEngine(t, func(_ int64, _ net.Conn, br *bufio.Reader) { readRequest(br); br.ReadByte() })
	tf = newTestFront(t, func(o *frontOptions) { o.FirstByte = 50 * time.Millisecond }, silent.url, silent.url)
	resp, body = ask(t, tf.url+"/v1/completions", idPrompt)
	wantError(t, resp, body, 504, "upstream_timeout")

	// The worker's own words, where it has some.
	for status, text := range map[int]string{429: "slow down", 503: "full", 500: "oops", 400: "bad", 404: "what", 413: "large", 501: "no"} {
		e := newEngine(t, func(_ int64, c net.Conn, br *bufio.Reader) {
			for readRequest(br) != nil {
				fmt.Fprintf(c, "HTTP/1.1 %d X\r\nX-Own: 1\r\nContent-Length: %d\r\n\r\n%s", status, len(text), text)
			}
		})
		tf := newTestFront(t, nil, e.url, e.url)
		resp, body := ask(t, tf.url+"/v1/completions", idPrompt)
		if resp.StatusCode != status || body != text || resp.Header.Get("X-Own") != "1" || resp.Header.Get("X-Request-Id") == "" {
			t.Errorf("%d %s: got %d %q %v", status, text, resp.StatusCode, body, resp.Header)
		}
	}
}

// A connection that the worker closed while it was idle costs a client nothing.
func TestStaleConnection(t *testing.T) {
	e := newEngine(t, func(_ int64, c net.Conn, br *bufio.Reader) {
		readRequest(br)
		io.WriteString(c, okAnswer) // and closes, without having said so
	})
	tf := newTestFront(t, func(o *frontOptions) { o.Retries = 0 }, e.url)
	for range 20 {
		if resp, body := ask(t, tf.url+"/v1/completions", idPrompt); resp.StatusCode != 200 {
			t.Fatalf("got %d %s", resp.StatusCode, body)
		}
	}
}

func TestStreamPassesEventByEvent(t *testing.T) {
	next := make(chan string)
	e := newEngine(t, func(_ int64, c net.Conn, br *bufio.Reader) {
		for readRequest(br) != nil {
			io.WriteString(c, sseHead)
			for s := range next {
				if s == "" {
					break
				}
				chunk(c, s)
			}
			io.WriteString(c, "0\r\n\r\n")
		}
	})
	tf := newTestFront(t, nil, e.url)
	c, err := net.Dial("tcp", tf.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	br := bufio.NewReader(c)
	for range 2 { // on one connection
		fmt.Fprintf(c, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(streamPrompt), streamPrompt)
		next <- event("a")
		head := ""
		for !strings.HasSuffix(head, "\r\n\r\n") {
			line, err := br.ReadString('\n')
			if err != nil {
				t.Fatal(err)
			}
			head += line
		}
		if !strings.Contains(head, "text/event-stream") || !strings.Contains(head, "chunked") {
			t.Fatalf("got %q", head)
		}
		want := func(s string) {
			t.Helper()
			b := make([]byte, len(fmt.Sprintf("%x\r\n%s\r\n", len(s), s)))
			if _, err := io.ReadFull(br, b); err != nil || !strings.Contains(string(b), s) {
				t.Fatalf("got %q %v, want %q", b, err, s)
			}
		}
		want(event("a"))
		for i := range 5 { // each is with the client before the worker has sent the next
			next <- event(fmt.Sprint(i))
			want(event(fmt.Sprint(i)))
		}
		half := event("two halves")
		next <- half[:10]
		next <- half[10:] + ": comment\n\n"
		want(half + ": comment\n\n")
		next <- "data: [DONE]\n\n"
		want("data: [DONE]\n\n")
		next <- ""
		b := make([]byte, 5)
		if _, err := io.ReadFull(br, b); err != nil || string(b) != "0\r\n\r\n" {
			t.Fatalf("the end: %q %v", b, err)
		}
		a := <-tf.told
		if a.Outcome != route.OK || a.FirstToken == 0 || !a.Stream {
			t.Errorf("told %+v", a)
		}
	}
	if n := e.conns.Load(); n != 1 {
		t.Errorf("%d connections to the worker", n)
	}
	close(next)
}

// A stream that its worker cuts ends with an event that says so, and no other half.
func TestStreamCut(t *testing.T) {
	for name, end := range map[string]func(c net.Conn){
		"between events": func(net.Conn) {},
		"within one":     func(c net.Conn) { chunk(c, `data: {"choices":[{"in`) },
		"within a chunk": func(c net.Conn) { io.WriteString(c, "40\r\ndata: {") },
		"bad chunk":      func(c net.Conn) { io.WriteString(c, "nonsense\r\n") },
		"ends in one":    func(c net.Conn) { chunk(c, `data: {"choi`); io.WriteString(c, "0\r\n\r\n") },
	} {
		t.Run(name, func(t *testing.T) {
			e := newEngine(t, func(_ int64, c net.Conn, br *bufio.Reader) {
				readRequest(br)
				io.WriteString(c, sseHead)
				chunk(c, event("a"))
				end(c)
			})
			tf := newTestFront(t, nil, e.url)
			resp, body := ask(t, tf.url+"/v1/completions", streamPrompt)
			rest, ok := strings.CutPrefix(body, event("a"))
			if resp.StatusCode != 200 || !ok || !strings.HasPrefix(rest, `data: {"error":{`) || !strings.HasSuffix(rest, "}}\n\n") ||
				!strings.Contains(rest, `"code":"upstream_broken"`) || strings.Count(rest, "data:") != 1 {
				t.Errorf("got %d %q", resp.StatusCode, body)
			}
			if a := <-tf.told; a.Outcome != route.Broken {
				t.Errorf("told %+v", a)
			}
		})
	}
}

// A stream that stands still ends, too.
func TestStreamStalls(t *testing.T) {
	e := newEngine(t, func(_ int64, c net.Conn, br *bufio.Reader) {
		readRequest(br)
		io.WriteString(c, sseHead)
		chunk(c, event("a"))
		br.ReadByte()
	})
	tf := newTestFront(t, func(o *frontOptions) { o.Stall = 50 * time.Millisecond }, e.url)
	_, body := ask(t, tf.url+"/v1/completions", streamPrompt)
	if !strings.Contains(body, "upstream_timeout") {
		t.Errorf("got %q", body)
	}
	if a := <-tf.told; a.Outcome != route.Stalled {
		t.Errorf("told %+v", a)
	}
}

// A large answer that is cut is broken off: a client can tell that it is not whole.
func TestLargeAnswerCut(t *testing.T) {
	const size = answerLimit * 2
	for name, head := range map[string]string{
		"sized":   fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n", size+1),
		"chunked": fmt.Sprintf("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n", size+1),
	} {
		e := newEngine(t, func(_ int64, c net.Conn, br *bufio.Reader) {
			readRequest(br)
			io.WriteString(c, head+strings.Repeat("x", size))
		})
		tf := newTestFront(t, nil, e.url)
		c, err := net.Dial("tcp", tf.addr)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(c, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(idPrompt), idPrompt)
		all, err := io.ReadAll(c)
		if err != nil || len(all) < size || strings.HasSuffix(string(all), "0\r\n\r\n") {
			t.Errorf("%s: %d bytes, %v", name, len(all), err)
		}
		c.Close()
	}
}

// Answers of every size and framing pass unharmed.
func TestAnswersOfAllKinds(t *testing.T) {
	text := strings.Repeat("0123456789abcdef", answerLimit/8) // twice the limit
	e := newEngine(t, func(_ int64, c net.Conn, br *bufio.Reader) {
		for q := readRequest(br); q != nil; q = readRequest(br) {
			var n int
			var framing string
			fmt.Sscanf(q.URL.RawQuery, "%d-%s", &n, &framing)
			switch framing {
			case "sized":
				fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", n, text[:n])
			case "chunked":
				io.WriteString(c, "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
				for rest := text[:n]; rest != ""; {
					m := min(len(rest), 1+len(rest)/3)
					chunk(c, rest[:m])
					rest = rest[m:]
				}
				io.WriteString(c, "0\r\nX-Trailer: 1\r\n\r\n")
			case "close":
				io.WriteString(c, "HTTP/1.0 200 OK\r\n\r\n"+text[:n])
				return
			}
		}
	})
	tf := newTestFront(t, nil, e.url)
	for _, n := range []int{0, 1, 4095, 4096, 100_000, answerLimit - 1, answerLimit, answerLimit + 1, 2 * answerLimit} {
		for _, framing := range []string{"sized", "chunked", "close"} {
			resp, body := ask(t, fmt.Sprintf("%s/v1/completions?%d-%s", tf.url, n, framing), idPrompt)
			if resp.StatusCode != 200 || body != text[:n] {
				t.Errorf("%s of %d bytes: got %d and %d bytes", framing, n, resp.StatusCode, len(body))
			}
		}
	}
}
