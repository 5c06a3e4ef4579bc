// SPDX-License-Identifier: Apache-2.0

// Before: the mock fleet's admin API. After: run.go, which joins what it says.

package openloop

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"kindex/harness/mockworker/engine"
)

const (
	fleetEvery = time.Second
	askTime    = 5 * time.Second
	settleTime = 5 * time.Second // how long the last requests may take to appear
	askRows    = 1_000           // requests a question
	maxAnswer  = 64 << 20        // bytes
	maxKept    = 2 * maxRows     // requests that are kept for joining
)

// Worker is one engine, as the fleet says.
type Worker struct {
	Name      string  `json:"name"`
	Engine    string  `json:"engine,omitempty"`
	BlockSize int     `json:"block_size"` // tokens
	Blocks    int     `json:"blocks"`     // of one rank
	Ranks     int     `json:"ranks"`
	Speed     float64 `json:"speed,omitempty"`
	Running   int     `json:"running"`
	Waiting   int     `json:"waiting"`
	Usage     float64 `json:"kv_usage"` // 0 to 1
	Requests  int     `json:"requests"`

	Shape *engine.Shape `json:"shape,omitempty"` // nil: an older fleet, which says the above alone
}

// shape returns what the worker is modelled by.
func (w *Worker) shape() engine.Shape {
	if w.Shape != nil {
		return *w.Shape
	}
	s := usualShape(w.Blocks, w.BlockSize)
	s.Engine, s.Ranks, s.Speed = cmp.Or(w.Engine, s.Engine), w.Ranks, w.Speed
	return s
}

// served is one request, as the fleet says.
type served struct {
	N        int     `json:"n"`
	ID       string  `json:"id"`
	ClientID string  `json:"client_id"`
	Worker   string  `json:"worker"`
	Rank     int     `json:"rank"`
	Ended    float64 `json:"ended"`
	Queue    float64 `json:"queue_s"`
	Prompt   *int    `json:"prompt_tokens"`
	Cached   *int    `json:"cached_tokens"`
	Best     *int    `json:"best_at_arrival_tokens"`
	Finish   string  `json:"finish"`
}

// over reports whether the request has ended: what is said of one that runs may change.
func (q *served) over() bool { return q.Ended > 0 || q.Finish != "" }

// Sample is one worker at one instant; or this client, under [clientName].
type Sample struct {
	At     time.Duration // since the replay's begin
	Worker Worker
}

// clientName stands in fleet.csv for what this program has on the way.
const clientName = "client"

// fleet asks the admin API.
//
// Concurrency: the mutex guards what follows it.
type fleet struct {
	url  string
	http *http.Client

	mu       sync.Mutex
	since    int // the last request known to have ended, and all before it
	byClient map[string]*served
	byID     map[string]*served
	samples  []Sample
	lost     int // fell out of the fleet's log before they were read
	failures int // questions without an answer
	failure  error
}

func newFleet(url string) *fleet {
	return &fleet{url: url, http: &http.Client{Timeout: askTime, Transport: &http.Transport{MaxIdleConnsPerHost: 2, IdleConnTimeout: idleTime}}, byClient: make(map[string]*served), byID: make(map[string]*served)}
}

// statusError is an answer that is no success.
type statusError struct {
	code int
	text string
}

func (e *statusError) Error() string { return e.text }

func (f *fleet) close() { f.http.CloseIdleConnections() }

func (f *fleet) ask(ctx context.Context, method, path string, out any) error {
	req, err := http.NewRequestWithContext(ctx, method, f.url+path, http.NoBody)
	if err != nil {
		return err
	}
	resp, err := f.http.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	switch {
	case err != nil:
		return err
	case resp.StatusCode != http.StatusOK:
		return &statusError{resp.StatusCode, fmt.Sprintf("%s %s%s: status %d: %.200s", method, f.url, path, resp.StatusCode, bytes.TrimSpace(b))}
	case out == nil:
		return nil
	}
	if err := json.Unmarshal(b, out); err != nil {
		return fmt.Errorf("%s %s%s: %w", method, f.url, path, err)
	}
	return nil
}

// begin resets the fleet if asked to, forgets its earlier requests, and returns its
// workers.
func (f *fleet) begin(ctx context.Context, reset bool) ([]Worker, error) {
	if reset {
		if err := f.reset(ctx); err != nil {
			return nil, fmt.Errorf("--reset: %w", err)
		}
	}
	workers, err := f.workers(ctx)
	if err != nil {
		return nil, fmt.Errorf("--oracle: %w", err)
	}
	if err := f.poll(ctx); err != nil {
		return nil, fmt.Errorf("--oracle: %w", err)
	}
	f.byClient, f.byID, f.lost = make(map[string]*served), make(map[string]*served), 0
	return workers, nil
}

// reset empties the fleet. One that still runs what was asked before says that it
// conflicts: it has a moment to end that.
func (f *fleet) reset(ctx context.Context) error {
	deadline := time.Now().Add(settleTime)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		err := f.ask(ctx, http.MethodPost, "/admin/reset", nil)
		if refused, ok := errors.AsType[*statusError](err); !ok || refused.code != http.StatusConflict || time.Now().After(deadline) {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (f *fleet) workers(ctx context.Context) ([]Worker, error) {
	var answer struct {
		Workers []Worker `json:"workers"`
	}
	err := f.ask(ctx, http.MethodGet, "/admin/fleet", &answer)
	if err == nil && len(answer.Workers) == 0 {
		err = fmt.Errorf("GET %s/admin/fleet: no workers", f.url)
	}
	return answer.Workers, err
}

// watch asks again and again until ctx ends.
func (f *fleet) watch(ctx context.Context, now func() time.Duration) {
	tick := time.NewTicker(fleetEvery)
	defer tick.Stop()
	for {
		f.look(ctx, now())
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// look notes how the workers are, and reads the log on. What fails is counted.
func (f *fleet) look(ctx context.Context, at time.Duration) {
	workers, err := f.workers(ctx)
	if err == nil {
		err = f.poll(ctx)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if err != nil && ctx.Err() == nil {
		f.failures++
		f.failure = err
	}
	for i := range workers {
		f.samples = append(f.samples, Sample{at, workers[i]})
	}
}

// poll reads all requests that ended since, and those still running.
func (f *fleet) poll(ctx context.Context) error {
	f.mu.Lock()
	at := f.since
	f.mu.Unlock()
	settled := true // up to at, every one has ended
	for {
		var answer struct {
			Next     int      `json:"next"`
			Lost     int      `json:"lost"`
			Requests []served `json:"requests"`
		}
		if err := f.ask(ctx, http.MethodGet, "/admin/requests?since="+strconv.Itoa(at)+"&limit="+strconv.Itoa(askRows), &answer); err != nil {
			return err
		}
		f.mu.Lock()
		f.lost = max(f.lost, answer.Lost)
		for i := range answer.Requests {
			q := &answer.Requests[i]
			at = max(at, q.N)
			if settled = settled && q.over(); settled {
				f.since = at
			}
			f.keep(q)
		}
		f.mu.Unlock()
		if len(answer.Requests) == 0 {
			return nil
		}
	}
}

func (f *fleet) keep(q *served) {
	if len(f.byID)+len(f.byClient) > maxKept {
		return
	}
	if q.ClientID != "" {
		f.byClient[q.ClientID] = q
	}
	if q.ID != "" {
		f.byID[q.ID] = q
	}
}

// of finds what the fleet says of a request: by the id that was sent; by the answer's,
// where a gateway makes its own; or where an engine put something around either.
func (f *fleet) of(sent, answered string) *served {
	for _, id := range [...]string{sent, answered} {
		if id == "" {
			continue
		}
		if q := f.byClient[id]; q != nil {
			return q
		}
		if q := f.byID[id]; q != nil {
			return q
		}
		// vLLM: cmpl-ID-0 is ID's first prompt.
		for _, kind := range [...]string{"cmpl-", "chatcmpl-"} {
			bare := strings.TrimPrefix(id, kind)
			for _, form := range [...]string{bare, kind + bare, kind + bare + "-0", id + "-0"} {
				if q := f.byID[form]; q != nil {
					return q
				}
			}
		}
	}
	return nil
}

// join fills records with what the fleet says; it returns how many of those sent it
// says nothing of.
func (f *fleet) join(recs []Record, id func(i int) string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	missing := 0
	for i := range recs {
		r := &recs[i]
		if !r.sent() || !r.done.Load() {
			continue
		}
		q := f.of(id(i), r.ID)
		if q == nil || !q.over() {
			if r.ok() {
				missing++
			}
			continue
		}
		if q.Worker != "" {
			r.Worker = q.Worker
		}
		r.Rank, r.Queue = q.Rank, q.Queue
		set(&r.FleetPrompt, q.Prompt)
		set(&r.FleetCached, q.Cached)
		set(&r.BestAtArrival, q.Best)
	}
	return missing
}

// settle asks until every answered request is joined, or no more come.
func (f *fleet) settle(ctx context.Context, recs []Record, id func(i int) string) (missing int, err error) {
	ctx, cancel := context.WithTimeout(ctx, settleTime)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		err = f.poll(ctx)
		if missing = f.join(recs, id); missing == 0 {
			return 0, err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			if errors.Is(err, context.DeadlineExceeded) {
				err = nil
			}
			return missing, err
		}
	}
}
