// SPDX-License-Identifier: Apache-2.0

// Before: a replayer, a drill, a test or an operator who wants the truth. After:
// fleet.go; admin_fault.go has the faults.

package engine

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync"
)

const (
	maxQuestion = 64 << 20 // bytes of a question
	maxRows     = 10_000   // requests of one answer
)

// Admin tells a fleet's truth over HTTP, and breaks it on demand. {w} is a worker's
// name: w0, or one of its ports as http:8000 or grpc:50051.
//
//	GET  /admin/health
//	GET  /admin/fleet            every worker: a [FleetStatus]
//	GET  /admin/requests         ?since=N&limit=M: requests after number N, by arrival:
//	                             a [RequestsPage]
//	GET  /admin/cache/{w}        what each rank holds: a [CacheContent]
//	GET  /admin/truth[/{w}]      the content's digest and counts: a list of [TruthDigest]
//	                             by worker
//	POST /admin/truth[/{w}]      {"prompt":[ids] or "text","model":"","lora":"","salt":""}: what
//	                             each rank would not compute again of it, in tokens: a
//	                             [TruthReuse]
//	POST /admin/reset[/{w}]      empties caches and, of the whole fleet, the list of
//	                             requests: 409 where something runs
//	POST /admin/fault/{w}/{kind} sets a fault; clear undoes all
//	GET  /admin/faults           how every fault stands, by worker
type Admin struct {
	Addr string // host:port where it listens

	server http.Server
	served sync.WaitGroup
	fleet  *Fleet
}

// OpenAdmin begins to serve f's truth at addr.
func OpenAdmin(f *Fleet, addr string) (*Admin, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("--admin: %w", err)
	}
	a := &Admin{Addr: l.Addr().String(), fleet: f}
	mux := http.NewServeMux()
	for path, handler := range map[string]http.HandlerFunc{
		"GET /admin/health":            func(w http.ResponseWriter, _ *http.Request) { say(w, http.StatusOK, map[string]bool{"ok": true}) },
		"GET /admin/fleet":             a.status,
		"GET /admin/requests":          a.requests,
		"GET /admin/cache/{w}":         a.cache,
		"GET /admin/truth":             a.digest,
		"GET /admin/truth/{w}":         a.digest,
		"POST /admin/truth":            a.reuse,
		"POST /admin/truth/{w}":        a.reuse,
		"POST /admin/reset":            a.reset,
		"POST /admin/reset/{w}":        a.reset,
		"POST /admin/fault/{w}/{kind}": a.fault,
		"GET /admin/faults":            a.faults,
		"/": func(w http.ResponseWriter, r *http.Request) {
			say(w, http.StatusNotFound, "no "+r.Method+" "+r.URL.Path)
		},
	} {
		mux.HandleFunc(path, handler)
	}
	a.server = http.Server{Handler: mux, ReadHeaderTimeout: headTime}
	a.served.Go(func() { _ = a.server.Serve(l) })
	return a, nil
}

// Close ends every call and the socket.
func (a *Admin) Close() {
	_ = a.server.Close()
	a.served.Wait()
}

// FleetStatus is how every worker is.
type FleetStatus struct {
	Workers []WorkerStatus `json:"workers"`
}

// WorkerStatus is how one worker is, its ranks together.
type WorkerStatus struct {
	Name      string                `json:"name"`
	Engine    string                `json:"engine"`
	Version   string                `json:"version"`
	Model     string                `json:"model"`
	LoRA      []string              `json:"lora,omitempty"`
	BlockSize int                   `json:"block_size"` // tokens
	Blocks    int                   `json:"blocks"`     // of one rank
	Ranks     int                   `json:"ranks"`
	HTTP      string                `json:"http,omitempty"` // host:port
	GRPC      string                `json:"grpc,omitempty"`
	Pub       []string              `json:"pub"` // by rank
	Replay    []string              `json:"replay,omitempty"`
	Speed     float64               `json:"speed"`
	Running   int                   `json:"running"` // requests
	Waiting   int                   `json:"waiting"`
	KVUsage   float64               `json:"kv_usage"` // 0 to 1, of blocks that requests hold
	Requests  uint64                `json:"requests"` // that ended
	Loads     []Load                `json:"loads"`    // by rank
	Shape     Shape                 `json:"shape"`
	Faults    map[string]FaultState `json:"faults"`
}

// Status returns how the worker is.
func (w *Worker) Status() WorkerStatus {
	c := &w.Engine.cfg
	s := WorkerStatus{
		Name: w.Name, Engine: c.Engine, Version: c.Version, Model: c.Model, LoRA: c.LoRA, BlockSize: c.BlockSize, Blocks: c.Blocks, Ranks: c.Ranks,
		HTTP: w.HTTP(), GRPC: w.GRPC(), Speed: c.Speed, Loads: w.Engine.Loads(), Shape: w.Engine.Shape(), Faults: w.faults.states(),
	}
	for _, p := range w.Engine.Publishers() {
		s.Pub = append(s.Pub, p.Live)
		if p.Replay != "" {
			s.Replay = append(s.Replay, p.Replay)
		}
	}
	used, of := 0, 0
	for _, l := range s.Loads {
		s.Running += l.Running
		s.Waiting += l.Waiting
		s.Requests += l.Ended
		used += l.UsedTokens
		of += l.MaxTokens
	}
	s.KVUsage = ratio(used, of)
	return s
}

func (a *Admin) status(w http.ResponseWriter, _ *http.Request) {
	out := FleetStatus{Workers: []WorkerStatus{}}
	for _, worker := range a.fleet.workers {
		out.Workers = append(out.Workers, worker.Status())
	}
	say(w, http.StatusOK, out)
}

// RequestsPage is a part of the list of requests.
type RequestsPage struct {
	Next     uint64  `json:"next"` // to ask for from here on
	Lost     uint64  `json:"lost"` // requests after the number asked for that were forgotten
	Requests []Entry `json:"requests"`
}

func (a *Admin) requests(w http.ResponseWriter, r *http.Request) {
	since, err := whole(r, "since", 0, 1<<62)
	limit := int64(1_000)
	if err == nil && r.URL.Query().Has("limit") {
		limit, err = whole(r, "limit", 1, maxRows)
	}
	if err != nil {
		say(w, http.StatusBadRequest, err.Error())
		return
	}
	var out RequestsPage
	out.Requests, out.Next, out.Lost = a.fleet.journal.since(uint64(since), int(limit))
	say(w, http.StatusOK, out)
}

// whole reads a number from the query; absent it is least.
func whole(r *http.Request, name string, least, most int64) (int64, error) {
	text := r.URL.Query().Get(name)
	if text == "" {
		return least, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < least || n > most {
		return 0, fmt.Errorf("%s: %q: must be a whole number from %d to %d", name, text, least, most)
	}
	return n, nil
}

// named returns the worker that a path names, or says that there is none.
func (a *Admin) named(w http.ResponseWriter, r *http.Request) *Worker {
	name := r.PathValue("w")
	worker := a.fleet.Worker(name)
	if worker == nil {
		say(w, http.StatusNotFound, fmt.Sprintf("worker %q: must be w0 to w%d, or http:PORT or grpc:PORT", name, len(a.fleet.workers)-1))
	}
	return worker
}

// chosen returns the worker that a path names, all where it names none; none where it
// is not there, which was said.
func (a *Admin) chosen(w http.ResponseWriter, r *http.Request) []*Worker {
	if r.PathValue("w") == "" {
		return a.fleet.workers
	}
	if worker := a.named(w, r); worker != nil {
		return []*Worker{worker}
	}
	return nil
}

// CacheContent is what one worker holds.
type CacheContent struct {
	Worker string  `json:"worker"`
	Ranks  []Truth `json:"ranks"`
}

func (a *Admin) cache(w http.ResponseWriter, r *http.Request) {
	if worker := a.named(w, r); worker != nil {
		say(w, http.StatusOK, CacheContent{worker.Name, worker.Engine.Truth()})
	}
}

// TruthDigest is a rank's content in short. Equal contents have equal digests, in
// whichever order they came.
type TruthDigest struct {
	Rank     int     `json:"rank"`
	Sequence *uint64 `json:"sequence"` // of the last batch published; null: none yet
	Pending  int     `json:"pending"`  // events that the next pass will publish
	Blocks   int     `json:"blocks"`
	Copies   int     `json:"copies"`
	Digest   string  `json:"digest"` // 16 hex digits
}

func (a *Admin) digest(w http.ResponseWriter, r *http.Request) {
	all := a.chosen(w, r)
	if all == nil {
		return
	}
	out := make(map[string][]TruthDigest)
	for _, worker := range all {
		for _, t := range worker.Engine.Truth() {
			out[worker.Name] = append(out[worker.Name], t.short())
		}
	}
	say(w, http.StatusOK, map[string]any{"workers": out})
}

// short returns a content in short.
func (t *Truth) short() TruthDigest {
	d := TruthDigest{Rank: t.Rank, Sequence: t.Sequence, Pending: t.Pending, Blocks: len(t.Blocks)}
	sum := uint64(0)
	for i := range t.Blocks {
		b := &t.Blocks[i]
		d.Copies += b.Copies
		sum += mix(mix(uint64(b.Position)) + uint64(b.Copies))
	}
	d.Digest = fmt.Sprintf("%016x", sum)
	return d
}

// TruthReuse is what every worker would find of a prompt.
type TruthReuse struct {
	Workers map[string]RankTokens `json:"workers"`
}

// RankTokens are tokens of a prompt, by rank.
type RankTokens struct {
	Ranks []int `json:"ranks"` // that a request would not compute again
	Held  []int `json:"held"`  // that are cached: a whole prompt's last block is computed again
}

func (a *Admin) reuse(w http.ResponseWriter, r *http.Request) {
	all := a.chosen(w, r)
	var q struct {
		Prompt json.RawMessage `json:"prompt"`
		Model  string          `json:"model"`
		LoRA   string          `json:"lora"`
		Salt   string          `json:"salt"`
	}
	if all == nil || !read(w, r, &q) {
		return
	}
	out := TruthReuse{Workers: make(map[string]RankTokens)}
	for _, worker := range all {
		c := &worker.Engine.cfg
		prompts, err := c.words().prompts(q.Prompt)
		if err == nil && len(prompts) != 1 {
			err = refuse("prompt", "prompt: must be one")
		}
		if err != nil {
			say(w, http.StatusBadRequest, err.Error())
			return
		}
		if q.LoRA == "" && q.Model != c.Model {
			q.LoRA = q.Model
		}
		found := RankTokens{Ranks: []int{}, Held: []int{}}
		for _, held := range worker.Engine.ReuseOf(worker.Engine.Prompt(prompts[0].tokens, q.LoRA, q.Salt)) {
			found.Ranks, found.Held = append(found.Ranks, held.Used*c.BlockSize), append(found.Held, held.Held*c.BlockSize)
		}
		out.Workers[worker.Name] = found
	}
	say(w, http.StatusOK, out)
}

func (a *Admin) reset(w http.ResponseWriter, r *http.Request) {
	var ok bool
	if r.PathValue("w") == "" {
		ok = a.fleet.Reset()
	} else {
		worker := a.named(w, r)
		if worker == nil {
			return
		}
		ok = worker.Engine.Reset()
	}
	if !ok {
		say(w, http.StatusConflict, "requests are running: their ranks are not cleared")
		return
	}
	say(w, http.StatusOK, "cleared: told with the next pass")
}

// read decodes a body, or says what is wrong with it.
func read(w http.ResponseWriter, r *http.Request, into any) bool {
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxQuestion))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		say(w, http.StatusBadRequest, err.Error())
		return false
	}
	return true
}

// say writes v as JSON; a text becomes an object with a message.
func say(w http.ResponseWriter, code int, v any) {
	if text, ok := v.(string); ok {
		v = map[string]string{"message": text}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(v)
}
