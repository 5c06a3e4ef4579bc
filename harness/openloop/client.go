// SPDX-License-Identifier: Apache-2.0

// Before: run.go. After: the endpoint; stream.go reads what it answers.

package openloop

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"kindex/internal/fdwait"
)

const (
	dialTime    = 10 * time.Second
	idleTime    = 4 * time.Second // less than what servers wait (uvicorn's 5 s): no request meets a connection that is being closed
	readBytes   = 16 << 10
	maxErrBody  = 64 << 10
	maxModels   = 1 << 20
	maxExamples = 16
	maxExample  = 300
	contentJSON = "application/json"
)

// The headers that go out and come back.
const (
	requestID       = "X-Request-Id"
	headerPredicted = "X-Kindex-Predicted-Tokens"
)

// client sends requests and reads their answers.
//
// Concurrency: any goroutine.
type client struct {
	http    *http.Client
	url     string
	headers http.Header
	workers string
	timeout time.Duration
	began   time.Time
	gaps    histogram
	buffers sync.Pool

	mu       sync.Mutex
	examples map[string]string // of errors, by kind

	inFlight, waiting, first, done, failed atomic.Int64
	tokens                                 atomic.Int64 // of prompts sent
}

func newClient(o *Options, path string) *client {
	dialer := &net.Dialer{Timeout: dialTime, KeepAlive: 30 * time.Second}
	return &client{
		http: &http.Client{
			Transport: &http.Transport{
				Proxy: nil, // what is measured is the endpoint
				DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
					c, err := dialer.DialContext(ctx, network, addr)
					if err != nil {
						return nil, err
					}
					return fdwait.Quiet(c), nil // a token is a small read
				},
				MaxIdleConns:        o.InFlight,
				MaxIdleConnsPerHost: o.InFlight,
				IdleConnTimeout:     idleTime,
				TLSHandshakeTimeout: dialTime,
				DisableCompression:  true,
				WriteBufferSize:     64 << 10,
			},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		url: o.URL + path, headers: o.Headers, examples: make(map[string]string), workers: o.Workers, timeout: o.Timeout,
	}
}

func (c *client) close() { c.http.CloseIdleConnections() }

// since is now on the replay's clock.
func (c *client) since() time.Duration { return time.Since(c.began) }

// send sends one request and reads its answer; wrote is called once the whole request
// is with the kernel, or never. It releases b.
func (c *client) send(ctx context.Context, rec *Record, id string, b *body, wrote func()) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	defer b.release()
	c.waiting.Add(1)
	defer func() {
		if rec.First < 0 {
			c.waiting.Add(-1)
		}
		if c.done.Add(1); rec.Error != "" && rec.Error != errInterrupted {
			c.failed.Add(1)
		}
		rec.End = c.since()
		rec.done.Store(true)
	}()
	trace := &httptrace.ClientTrace{WroteRequest: func(httptrace.WroteRequestInfo) { wrote() }}
	req, err := http.NewRequestWithContext(httptrace.WithClientTrace(ctx, trace), http.MethodPost, c.url, b.open())
	if err != nil {
		rec.Error = errProtocol
		return
	}
	req.ContentLength = int64(len(b.buf))
	req.GetBody = func() (io.ReadCloser, error) { return b.open(), nil }
	maps.Copy(req.Header, c.headers)
	req.Header["Content-Type"] = []string{contentJSON}
	req.Header["Accept"] = []string{"text/event-stream"}
	req.Header[requestID] = []string{id}
	rec.Error = ""
	rec.Sent = c.since()
	resp, err := c.http.Do(req)
	if err != nil {
		rec.Error = kindOf(ctx, err)
		c.example(rec.Error, []byte(err.Error()))
		return
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		rec.Error = "status " + strconv.Itoa(resp.StatusCode)
		text, _ := io.ReadAll(io.LimitReader(resp.Body, maxErrBody)) // whole, so that the connection lives on
		c.example(rec.Error, text)
		return
	}
	rec.Worker = resp.Header.Get(c.workers)
	if n, err := strconv.ParseUint(resp.Header.Get(headerPredicted), 10, 31); err == nil {
		rec.Predicted = int(n)
	}
	c.read(ctx, rec, resp)
}

// read reads a streamed answer to its end.
func (c *client) read(ctx context.Context, rec *Record, resp *http.Response) {
	if kind := resp.Header.Get("Content-Type"); !strings.HasPrefix(kind, "text/event-stream") {
		rec.Error = errProtocol
		text, _ := io.ReadAll(io.LimitReader(resp.Body, maxErrBody))
		c.example(rec.Error, text)
		return
	}
	buf, ok := c.buffers.Get().(*[]byte)
	if !ok {
		buf = new(make([]byte, readBytes))
	}
	defer c.buffers.Put(buf)
	a := answer{rec: rec, gaps: &c.gaps}
	for {
		n, err := resp.Body.Read(*buf)
		if n > 0 {
			waited := rec.First < 0
			if err := a.feed((*buf)[:n], c.since()); err != nil {
				rec.Error = errProtocol
			}
			if waited && rec.First >= 0 {
				c.waiting.Add(-1)
				c.first.Add(1)
			}
			if rec.Error != "" {
				c.example(rec.Error, a.said)
				return
			}
		}
		switch {
		case err == nil:
		case !errors.Is(err, io.EOF):
			rec.Error = kindOf(ctx, err)
			return
		case !a.ended && rec.Finish == "":
			rec.Error = errCut
			return
		default:
			return
		}
	}
}

// example keeps the first text of each kind of error.
func (c *client) example(kind string, text []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.examples[kind]; !ok && len(c.examples) < maxExamples {
		c.examples[kind] = fmt.Sprintf("%.*s", maxExample, strings.Join(strings.Fields(string(text)), " "))
	}
}

// kindOf names why a request failed.
func kindOf(ctx context.Context, err error) string {
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" && ctx.Err() == nil {
		return errConnect
	}
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		return errInterrupted
	case ctx.Err() != nil:
		return errTimeout
	default:
		return errCut
	}
}

// firstModel asks the endpoint for its first model.
func (c *client) firstModel(ctx context.Context, base string) (string, error) {
	var list struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	if err := c.get(ctx, base+"/v1/models", &list); err != nil {
		return "", fmt.Errorf("the endpoint names no model (--model NAME says it): %w", err)
	}
	if len(list.Data) == 0 || list.Data[0].ID == "" {
		return "", errors.New("the endpoint names no model (--model NAME says it): /v1/models is empty")
	}
	return list.Data[0].ID, nil
}

// get reads a small JSON answer.
func (c *client) get(ctx context.Context, url string, out any) error {
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	maps.Copy(req.Header, c.headers)
	resp, err := c.http.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s: status %d", url, resp.StatusCode)
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxModels)).Decode(out); err != nil {
		return fmt.Errorf("GET %s: %w", url, err)
	}
	return nil
}
