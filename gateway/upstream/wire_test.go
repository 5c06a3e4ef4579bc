// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"github.com/valyala/fasthttp"
	"go.uber.org/goleak"

	"kindex/gateway/fleet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// raw serves each connection by a function of it.
func raw(t *testing.T, serve func(n int64, c net.Conn, br *bufio.Reader)) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	var n atomic.Int64
	all.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer c.Close()
				serve(n.Add(1), c, bufio.NewReader(c))
			})
		}
	})
	t.Cleanup(func() { ln.Close(); all.Wait() })
	return "http://" + ln.Addr().String()
}

// request reads one; false: there is none.
func request(br *bufio.Reader) bool {
	q, err := http.ReadRequest(br)
	if err != nil {
		return false
	}
	_, err = io.Copy(io.Discard, q.Body)
	return err == nil
}

const answer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

func TestFaultsAreTold(t *testing.T) {
	for name, c := range map[string]struct {
		says string
		stay bool // and says no more
		kind Kind
	}{
		"nothing":        {"", false, Closed},
		"silence":        {"", true, Late},
		"half a head":    {"HTTP/1.1 200 OK\r\nConte", false, Broken},
		"a slow head":    {"HTTP/1.1 200 OK\r\nConte", true, Late},
		"no head":        {"220 mail\r\n\r\n", false, Malformed},
		"a long head":    {"HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", headLimit), true, Malformed},
		"half a body":    {"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab", false, Broken},
		"a slow body":    {"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab", true, Stalled},
		"no body":        {"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", true, Late},
		"half a chunk":   {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nab", false, Broken},
		"no last chunk":  {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n", false, Broken},
		"half a trailer": {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: ", false, Broken},
		"no chunk":       {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxy\r\ncd", false, Malformed},
		"too long chunk": {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabcd\r\n", false, Malformed},
		"long size":      {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1" + strings.Repeat("0", 300) + "\r\n", false, Malformed},
	} {
		t.Run(name, func(t *testing.T) {
			url := raw(t, func(_ int64, conn net.Conn, br *bufio.Reader) {
				request(br)
				io.WriteString(conn, c.says)
				if c.stay {
					br.ReadByte()
				}
			})
			cl := client(t, Options{})
			var head fasthttp.ResponseHeader
			q := &Request{Method: "POST", Path: "/", FirstByte: 50 * time.Millisecond, Stall: 50 * time.Millisecond}
			r, err := cl.Do(t.Context(), worker(url, ""), q, &head)
			if err == nil {
				_, err = r.ReadAll(1 << 20)
				r.Close()
			}
			if kindOf(err) != c.kind || err.Error() == "" {
				t.Errorf("got %v, want %s", err, c.kind)
			}
		})
	}
}

// A connection that ended while it was idle is told from a worker that is gone.
func TestStale(t *testing.T) {
	url := raw(t, func(_ int64, c net.Conn, br *bufio.Reader) {
		request(br)
		io.WriteString(c, answer)
	})
	c, w := client(t, Options{}), worker(url, "")
	for range 50 {
		if _, body, err := c.Post(t.Context(), w, "/", nil, 10); err != nil || string(body) != "ok" {
			t.Fatalf("got %q %v", body, err)
		}
	}
	// A worker that reads requests and closes is asked once for each connection.
	var asked atomic.Int64
	url = raw(t, func(_ int64, _ net.Conn, br *bufio.Reader) {
		if request(br) {
			asked.Add(1)
		}
	})
	if _, _, err := c.Post(t.Context(), worker(url, ""), "/", nil, 10); kindOf(err) != Closed || asked.Load() != 1 {
		t.Errorf("got %v after %d requests", err, asked.Load())
	}
}

// The end of a context ends the exchange at once, wherever it is.
func TestCanceled(t *testing.T) {
	for name, says := range map[string]string{
		"before the head": "", "within it": "HTTP/1.1 200", "before the body": "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n",
		"within it too": "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			ended := make(chan struct{})
			asked := make(chan struct{})
			url := raw(t, func(_ int64, c net.Conn, br *bufio.Reader) {
				request(br)
				io.WriteString(c, says)
				close(asked)
				br.ReadByte()
				close(ended)
			})
			ctx, cancel := context.WithCancel(t.Context())
			go func() { <-asked; cancel() }()
			_, _, err := client(t, Options{}).Get(ctx, worker(url, ""), "/", 10)
			if kindOf(err) != Canceled {
				t.Errorf("got %v", err)
			}
			<-ended
		})
	}
}

func TestIdleConnectionsEnd(t *testing.T) {
	ended := make(chan int64, 10)
	serve := func(n int64, c net.Conn, br *bufio.Reader) {
		for request(br) {
			io.WriteString(c, answer)
		}
		ended <- n
	}
	get := func(c *Client, w *fleet.Worker) {
		t.Helper()
		if _, _, err := c.Get(t.Context(), w, "/", 10); err != nil {
			t.Fatal(err)
		}
	}
	c, w := client(t, Options{Idle: 40 * time.Millisecond}), worker(raw(t, serve), "")
	get(c, w)
	<-ended // of itself
	c = client(t, Options{Idle: time.Hour})
	get(c, w)
	c.Forget(w)
	<-ended
	w.SetState(fleet.Removed)
	get(c, w) // keeps nothing
	<-ended
	w.SetState(fleet.Ready)
	get(c, w)
	c.Close()
	<-ended
}

func TestTLS(t *testing.T) {
	srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) { fmt.Fprint(w, q.Proto) }))
	defer srv.Close()
	roots := x509.NewCertPool()
	roots.AddCert(srv.Certificate())
	c := client(t, Options{TLS: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}})
	for range 3 {
		if _, body, err := c.Get(t.Context(), worker(srv.URL, ""), "/", 100); err != nil || string(body) != "HTTP/1.1" {
			t.Errorf("got %q %v", body, err)
		}
	}
	if _, _, err := client(t, Options{}).Get(t.Context(), worker(srv.URL, ""), "/", 100); kindOf(err) != Connect {
		t.Errorf("a certificate of nobody: %v", err)
	}
	if _, _, err := client(t, Options{}).Get(t.Context(), worker("ftp://127.0.0.1:1", ""), "/", 100); kindOf(err) != Connect {
		t.Errorf("another scheme: %v", err)
	}
}

// decode reads a chunked body that comes in the pieces that r gives.
func decode(r io.Reader, into int) ([]byte, error) {
	c := &conn{pool: &pool{}, br: bufio.NewReaderSize(r, headLimit)}
	resp := &Response{conn: c, body: chunked, canceled: func() error { return nil }}
	var all []byte
	b := make([]byte, into)
	for {
		n, err := resp.Read(b)
		all = append(all, b[:n]...)
		if errors.Is(err, io.EOF) && kindOf(err) == 0 {
			return all, nil
		}
		if err != nil {
			return all, err
		}
	}
}

func FuzzChunks(f *testing.F) {
	for _, s := range []string{
		"0\r\n\r\n", "3\r\nabc\r\n0\r\n\r\n", "1;x=y\r\na\r\nA\r\n0123456789\r\n0\r\nT: v\r\n\r\n", "00005 \r\nhello\r\n0\r\n\r\n",
		"3\r\nabcd\r\n0\r\n\r\n", "3\nabc\n0\n\n", "-1\r\n", "\r\n", "ffffffffffffffff\r\n", "0\r\nX", "2\r\na",
	} {
		f.Add([]byte(s), uint8(3))
	}
	f.Fuzz(func(t *testing.T, wire []byte, into uint8) {
		got, err := decode(bytes.NewReader(wire), int(into)+1)
		for name, r := range map[string]io.Reader{
			"byte by byte": iotest.OneByteReader(bytes.NewReader(wire)), "halves": iotest.HalfReader(bytes.NewReader(wire)),
		} {
			again, err2 := decode(r, int(into)+1)
			if !bytes.Equal(got, again) || kindOf(err) != kindOf(err2) {
				t.Fatalf("%s: %q %v, else %q %v", name, again, err2, got, err)
			}
		}
		if err != nil {
			return // the reference is more lenient
		}
		want, err := io.ReadAll(httputil.NewChunkedReader(bytes.NewReader(wire)))
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("got %q, the reference %q %v", got, want, err)
		}
	})
}
