// SPDX-License-Identifier: Apache-2.0

// Before: a test or an operator who wants the truth. After: engine.go.

package engine

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"
)

// maxQuestion bounds the body of a question, in bytes.
const maxQuestion = 64 << 20

// Admin tells an engine's truth over HTTP:
//
//	GET  /truth     what each rank's cache holds: a list of [Truth]
//	GET  /loads     what each rank does: a list of [Load]
//	POST /reuse     {"token_ids":[...],"cache_salt":""}: what each rank would
//	                find of the prompt: a list of [Reuse]
//	POST /generate  {"request_id":"","token_ids":[...],"cache_salt":"","max_tokens":n,
//	                "rank":n}: an answer, as [Answer]; rank absent: the engine chooses
//	POST /drop      {"rank":0,"batches":n,"keep":true}: the next n batches are lost on
//	                their way; with keep a replay has them
//	POST /reset     empties the caches: 409 while something runs
//	POST /restart   another life on the same sockets
//	GET  /health
type Admin struct {
	Addr string // host:port where it listens

	server http.Server
	served sync.WaitGroup
	engine *Engine
}

// OpenAdmin begins to serve e's truth at addr.
func OpenAdmin(e *Engine, addr string) (*Admin, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("--admin: %w", err)
	}
	a := &Admin{Addr: l.Addr().String(), engine: e}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /truth", func(w http.ResponseWriter, _ *http.Request) { say(w, http.StatusOK, e.Truth()) })
	mux.HandleFunc("GET /loads", func(w http.ResponseWriter, _ *http.Request) { say(w, http.StatusOK, e.Loads()) })
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) { say(w, http.StatusOK, "healthy") })
	mux.HandleFunc("POST /reuse", a.reuse)
	mux.HandleFunc("POST /generate", a.generate)
	mux.HandleFunc("POST /reset", a.reset)
	mux.HandleFunc("POST /drop", a.drop)
	mux.HandleFunc("POST /restart", func(w http.ResponseWriter, _ *http.Request) {
		e.Restart()
		say(w, http.StatusOK, "restarted")
	})
	a.server = http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	a.served.Go(func() { _ = a.server.Serve(l) })
	return a, nil
}

// Close ends every call and the socket.
func (a *Admin) Close() {
	_ = a.server.Close()
	a.served.Wait()
}

// question is the body of /reuse and /generate.
type question struct {
	ID        string   `json:"request_id"`
	Tokens    []uint32 `json:"token_ids"`
	Salt      string   `json:"cache_salt"`
	MaxTokens int      `json:"max_tokens"`
	Rank      *int     `json:"rank"`
}

// Answer is the whole answer of a request.
type Answer struct {
	Tokens []uint32 `json:"token_ids"`
	Cached int      `json:"cached_tokens"`
	Finish string   `json:"finish_reason"`
}

func (a *Admin) reuse(w http.ResponseWriter, r *http.Request) {
	var q question
	if read(w, r, &q) {
		say(w, http.StatusOK, a.engine.Reuse(q.Tokens, q.Salt))
	}
}

func (a *Admin) drop(w http.ResponseWriter, r *http.Request) {
	var q struct {
		Rank    int  `json:"rank"`
		Batches int  `json:"batches"`
		Keep    bool `json:"keep"`
	}
	if !read(w, r, &q) {
		return
	}
	pubs := a.engine.Publishers()
	switch {
	case q.Rank < 0 || q.Rank >= len(pubs):
		say(w, http.StatusBadRequest, fmt.Sprintf("rank: %d: must be 0 to %d", q.Rank, len(pubs)-1))
	case q.Batches < 0:
		say(w, http.StatusBadRequest, "batches: must not be negative")
	default:
		pubs[q.Rank].Drop(q.Batches, q.Keep)
		say(w, http.StatusOK, "from the next batch on")
	}
}

func (a *Admin) reset(w http.ResponseWriter, _ *http.Request) {
	ok, message := a.engine.flush()
	if !ok {
		say(w, http.StatusConflict, message)
		return
	}
	say(w, http.StatusOK, message)
}

func (a *Admin) generate(w http.ResponseWriter, r *http.Request) {
	var q question
	if !read(w, r, &q) {
		return
	}
	if q.MaxTokens < 0 {
		say(w, http.StatusBadRequest, "max_tokens: must not be negative")
		return
	}
	req := Request{ID: q.ID, Tokens: q.Tokens, Salt: q.Salt, MaxTokens: q.MaxTokens, Rank: -1}
	if q.MaxTokens == 0 {
		req.MaxTokens = a.engine.cfg.MaxTokens
	}
	if q.Rank != nil {
		req.Rank = *q.Rank
	}
	var out Answer
	err := answer(r.Context(), a.engine, req, func(o Output, all []uint32) error {
		out = Answer{all, o.Cached, o.Finish}
		return nil
	})
	if err != nil {
		say(w, http.StatusBadRequest, err.Error())
		return
	}
	say(w, http.StatusOK, out)
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
