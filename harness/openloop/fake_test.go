// SPDX-License-Identifier: Apache-2.0

package openloop

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/zeebo/xxh3"
)

// fake is an OpenAI endpoint with an admin API, whose cache is a set of prefixes.
type fake struct {
	*httptest.Server
	fail   func(n int, w http.ResponseWriter) bool // the n-th request ends otherwise
	hold   func(n int)                             // before the answer
	ids    bool                                    // as a gateway that makes ids of its own
	header http.Header

	mu    sync.Mutex
	seen  int
	held  map[uint64]bool
	log   []map[string]any
	order []string // request ids as they came
	asked []int    // tokens
	outs  []int
}

const fakeBlock = 16

func newFake(t *testing.T) *fake {
	f := &fake{held: map[uint64]bool{}, header: http.Header{}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"data":[{"id":"m"}]}`) })
	mux.HandleFunc("POST /v1/completions", f.answer)
	mux.HandleFunc("POST /v1/chat/completions", f.answer)
	mux.HandleFunc("POST /admin/reset", func(http.ResponseWriter, *http.Request) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.held, f.log = map[uint64]bool{}, nil
	})
	mux.HandleFunc("GET /admin/fleet", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"workers":[{"name":"w0","block_size":%d,"blocks":100000,"ranks":1,"running":1,"kv_usage":0.5},{"name":"w1","block_size":%d,"blocks":100000,"ranks":1}]}`, fakeBlock, fakeBlock)
	})
	mux.HandleFunc("GET /admin/requests", func(w http.ResponseWriter, r *http.Request) {
		since, _ := strconv.Atoi(r.FormValue("since"))
		limit, _ := strconv.Atoi(r.FormValue("limit"))
		f.mu.Lock()
		defer f.mu.Unlock()
		rows := f.log[min(since, len(f.log)):]
		rows = rows[:min(limit, len(rows))]
		_ = json.NewEncoder(w).Encode(map[string]any{"next": since + len(rows), "requests": rows})
	})
	f.Server = httptest.NewServer(mux)
	t.Cleanup(f.Close)
	return f
}

func (f *fake) answer(w http.ResponseWriter, r *http.Request) {
	var q struct {
		Model    string          `json:"model"`
		Stream   bool            `json:"stream"`
		Max      int             `json:"max_tokens"`
		Prompt   json.RawMessage `json:"prompt"`
		Messages []struct {
			Content string `json:"content"`
		} `json:"messages"`
	}
	f.mu.Lock() // one after the other, in the order in which they came
	if err := json.NewDecoder(r.Body).Decode(&q); err != nil || !q.Stream || q.Model != "m" {
		f.mu.Unlock()
		http.Error(w, "bad", http.StatusBadRequest)
		return
	}
	var tokens []string
	switch p := string(q.Prompt); {
	case p == "":
		tokens = strings.Fields(q.Messages[0].Content)
	case p[0] == '[':
		tokens = strings.Split(strings.Trim(p, "[]"), ",")
	default:
		tokens = strings.Fields(strings.Trim(p, `"`))
	}
	n := f.seen
	f.seen++
	id := r.Header.Get("X-Request-Id")
	f.order = append(f.order, id)
	f.asked, f.outs = append(f.asked, len(tokens)), append(f.outs, q.Max)
	cached, key := 0, uint64(0)
	for end := fakeBlock; end <= len(tokens); end += fakeBlock {
		key = xxh3.HashString(strconv.FormatUint(key, 16) + strings.Join(tokens[end-fakeBlock:end], " "))
		if f.held[key] && cached == end-fakeBlock && end < len(tokens) {
			cached = end
		}
		f.held[key] = true
	}
	mine := "cmpl-" + id
	row := map[string]any{"n": len(f.log) + 1, "id": mine, "client_id": id, "worker": "w" + strconv.Itoa(n%2), "rank": 0, "ended": 1.0, "queue_s": 0.001, "prompt_tokens": len(tokens), "cached_tokens": cached, "best_at_arrival_tokens": cached + 16, "finish": "length"}
	if f.ids {
		mine = "own-" + strconv.Itoa(n)
		row["id"], row["client_id"] = mine, ""
	}
	f.mu.Unlock()
	if f.hold != nil {
		f.hold(n)
	}
	if f.fail != nil && f.fail(n, w) {
		return
	}
	maps.Copy(w.Header(), f.header)
	w.Header().Set("Content-Type", "text/event-stream")
	for i := range q.Max {
		finish := "null"
		if i == q.Max-1 {
			finish = `"length"`
		}
		if q.Messages != nil {
			fmt.Fprintf(w, "data: {\"id\":%q,\"choices\":[{\"index\":0,\"delta\":{\"content\":\"x \"},\"finish_reason\":%s}]}\n\n", mine, finish)
		} else {
			fmt.Fprintf(w, "data: {\"id\":%q,\"choices\":[{\"index\":0,\"text\":\"x \",\"finish_reason\":%s}]}\n\n", mine, finish)
		}
		_ = http.NewResponseController(w).Flush()
	}
	f.mu.Lock()
	f.log = append(f.log, row)
	row["n"] = len(f.log)
	f.mu.Unlock()
	fmt.Fprintf(w, "data: {\"id\":%q,\"choices\":[],\"usage\":{\"prompt_tokens\":%d,\"completion_tokens\":%d,\"prompt_tokens_details\":{\"cached_tokens\":%d}}}\n\ndata: [DONE]\n\n", mine, len(tokens), q.Max, cached)
}

// came returns the ids of all requests as they came, and how many tokens each asked for.
func (f *fake) came() (order []string, asked []int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.order), slices.Clone(f.asked)
}

// options are those of a replay against f of a short made-up trace, fast.
func (f *fake) options() *Options {
	o := DefaultOptions()
	o.URL, o.Oracle, o.Reset = f.URL, f.URL, true
	o.Trace, o.Rows, o.Speedup, o.MaxOutput, o.Seed = Generated, Range{0, 39}, 1_000, 5, 3
	o.Late = time.Minute // the machine may be busy
	return &o
}
