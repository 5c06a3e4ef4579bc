// SPDX-License-Identifier: Apache-2.0

package load

// Before this file: an engine's HTTP server, or its own service. After it: the
// meter, which publishes what the answers say.

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"
)

// The pace of a puller that fails or that asks a slow server, chosen, not
// measured.
const (
	maxPause  = 5 * time.Second // after failures in a row, doubling from the interval
	busyShare = 4               // a server is kept busy at most one part in so many of the time
	redetect  = 3               // failures in a row after which the source is looked for anew
)

// failure is an error with the counter that it belongs to.
type failure struct {
	kind Failure
	err  error
}

func (f *failure) Error() string { return f.err.Error() }

func (f *failure) Unwrap() error { return f.err }

func failf(kind Failure, format string, args ...any) error {
	return &failure{kind: kind, err: fmt.Errorf(format, args...)}
}

func kindOf(err error) Failure {
	if f, ok := errors.AsType[*failure](err); ok {
		return f.kind
	}
	return FailTransport
}

// puller asks for readings at the meter's interval, in one goroutine.
type puller struct {
	m      *Meter
	urls   []string // that may answer, the likeliest first
	at     int      // which of urls answered last; -1 unknown
	fails  int      // in a row
	client *http.Client
	source atomic.Pointer[string]
	body   bytes.Buffer
}

// candidates are the paths that may answer, in the order of the engine's kind.
func candidates(engine string) []string {
	if engine == "sglang" {
		return []string{"/v1/loads", "/metrics", "/get_load"}
	}
	return []string{"/metrics", "/v1/loads", "/get_load"}
}

func newHTTPPuller(m *Meter) *puller {
	p := &puller{m: m, at: -1}
	p.found("")
	if m.cfg.Get != nil {
		p.urls = candidates(m.cfg.Engine)
		return p
	}
	base := strings.TrimSpace(m.cfg.Metrics)
	if u, err := url.Parse(base); err == nil && (u.Path != "" && u.Path != "/" || u.RawQuery != "") {
		p.urls = []string{base}
	} else {
		for _, path := range candidates(m.cfg.Engine) {
			p.urls = append(p.urls, strings.TrimSuffix(base, "/")+path)
		}
	}
	p.client = &http.Client{
		Transport: &http.Transport{
			Proxy:                  nil, // the engine is beside us
			DisableCompression:     true,
			MaxIdleConnsPerHost:    1,
			MaxConnsPerHost:        1,
			IdleConnTimeout:        time.Minute,
			ResponseHeaderTimeout:  m.cfg.Timeout,
			MaxResponseHeaderBytes: 64 << 10,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return p
}

func newAskPuller(m *Meter) *puller {
	p := &puller{m: m}
	p.found("GetLoads")
	return p
}

func (p *puller) found(source string) { p.source.Store(&source) }

// run pulls until ctx ends.
func (p *puller) run(ctx context.Context) {
	if p.client != nil {
		defer p.client.CloseIdleConnections()
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		began := time.Now()
		err := p.once(ctx)
		if ctx.Err() != nil {
			return
		}
		took := time.Since(began)
		pause := max(p.m.cfg.Interval-took, took*(busyShare-1))
		if err != nil {
			p.m.failed(kindOf(err), err)
			p.miss()
			pause = max(pause, p.m.cfg.Interval<<min(p.fails-1, 10))
		} else {
			p.fails = 0
		}
		timer.Reset(min(pause, max(maxPause, p.m.cfg.Interval)))
	}
}

// miss counts a failure, and has the source looked for anew after some in a row.
func (p *puller) miss() {
	p.fails++
	if p.fails%redetect == 0 && len(p.urls) > 1 {
		p.at = -1
		p.found("")
	}
}

// once takes one reading of all ranks.
func (p *puller) once(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, p.m.cfg.Timeout)
	defer cancel()
	if len(p.urls) == 0 {
		return p.ask(ctx)
	}
	if p.at >= 0 {
		return p.read(ctx, p.at)
	}
	var first error
	for i := range p.urls {
		err := p.read(ctx, i)
		if err == nil {
			p.at = i
			p.found(p.urls[i])
			return nil
		}
		// What is said of the likeliest source says most, unless it is not there.
		if first == nil || kindOf(first) == FailStatus && kindOf(err) != FailStatus {
			first = err
		}
		if kindOf(err) == FailTransport {
			break // the others are on the same server
		}
	}
	return first
}

func (p *puller) ask(ctx context.Context) error {
	began := time.Now()
	rs, err := p.m.cfg.Ask(ctx)
	if err != nil {
		return failf(FailTransport, "GetLoads: %w", err)
	}
	for i := range rs {
		if rs[i].Taken.IsZero() {
			rs[i].Taken = began
		}
	}
	return p.publish(rs, "GetLoads")
}

func (p *puller) read(ctx context.Context, i int) error {
	began := time.Now() // an answer is as old as the request at most
	body, err := p.fetch(ctx, p.urls[i])
	if err != nil {
		return err
	}
	a, err := parse(body, began)
	if err != nil {
		return failf(FailMalformed, "%s: %w", p.urls[i], err)
	}
	if a.version != "" {
		p.m.version.Store(&a.version)
	}
	return p.publish(a.readings, p.urls[i])
}

func (p *puller) publish(rs []Reading, from string) error {
	rs = ofRanks(rs, p.m.cfg.Ranks)
	if len(rs) == 0 {
		return failf(FailEmpty, "%s: says nothing of the load of ranks 0 to %d", from, p.m.cfg.Ranks-1)
	}
	p.m.took(rs)
	return nil
}

// fetch returns url's answer, which is good until the next one.
func (p *puller) fetch(ctx context.Context, url string) ([]byte, error) {
	if get := p.m.cfg.Get; get != nil {
		status, body, err := get(ctx, url, int(p.m.cfg.MaxBody))
		switch {
		case err != nil:
			return nil, failf(FailTransport, "GET %s: %w", url, err)
		case status != http.StatusOK:
			return nil, failf(FailStatus, "GET %s: answered %d, not 200", url, status)
		}
		return body, nil
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, failf(FailTransport, "%w", err)
	}
	req.Header.Set("Accept", "application/json, text/plain")
	if p.m.cfg.Token != "" {
		req.Header.Set("Authorization", "Bearer "+p.m.cfg.Token)
	}
	resp, err := p.client.Do(req)
	if err != nil {
		return nil, failf(FailTransport, "%w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return nil, failf(FailStatus, "GET %s: answered %d, not 200", url, resp.StatusCode)
	}
	p.body.Reset()
	limit := p.m.cfg.MaxBody
	n, err := p.body.ReadFrom(io.LimitReader(resp.Body, limit+1))
	switch {
	case err != nil:
		return nil, failf(FailTransport, "GET %s: %w", url, err)
	case n > limit:
		return nil, failf(FailTooLarge, "GET %s: an answer of more than %d bytes", url, limit)
	}
	return p.body.Bytes(), nil
}

// ofRanks returns the readings of ranks 0 to ranks-1. An engine that is a part of
// a larger one numbers its ranks from elsewhere: where none is ours and there are
// as many as ours, they are ours in order.
func ofRanks(rs []Reading, ranks int) []Reading {
	var ours []Reading
	for i := range rs {
		if rs[i].Rank >= 0 && rs[i].Rank < ranks {
			ours = append(ours, rs[i])
		}
	}
	if len(ours) > 0 || len(rs) != ranks {
		return ours
	}
	sortByRank(rs)
	for i := range rs {
		rs[i].Rank = i
	}
	return rs
}
