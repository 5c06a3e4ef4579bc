// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// predicted is an engine behind a gateway whose expectations are checked.
type predicted struct {
	model, worker, replay string
	budget                string // of tokenising: the machine may be busy
	context               int    // tokens

	gateway *gatewayProcess
}

// run starts an index host and a gateway before the engine, sends n requests one at a
// time, each once all is applied that the engine published before, and holds what the
// gateway expected against what the engine said.
func (p *predicted) run(t *testing.T, n int, reg *registration) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	_ = l.Close()
	socket := filepath.Join(t.TempDir(), "index.sock")
	host := &indexHost{client: &client{base: "http://" + addr, http: http.Client{Timeout: 10 * time.Second}}}
	host.server = start(t, "indexsrv", nil, program("indexsrv"), "--listen", addr, "--shm-listen", socket)
	host.awaitUp(t, host.server, 20*time.Second)
	host.must(t, http.StatusCreated, http.MethodPost, "/register", reg, nil)
	p.gateway = startGateway(t, "--worker", p.worker+",instance=1", "--kv-index", "remote", "--index", "unix:"+socket, "--index-timeout", "2s", "--tokenize-budget", p.budget)

	published := newEngineCursor(t, p.replay)
	work := &mixedTalk{rng: rand.New(rand.NewPCG(7, 0)), model: p.model, context: p.context}
	began := time.Now()
	forms, hits, cached, exact := map[string]int{}, 0, 0, 0
	for i := range n {
		q := work.next()
		got := p.ask(t, q)
		work.answered(q, got.text)
		forms[q.form]++
		cached += got.cached
		if got.cached > 0 {
			hits++
		}
		if got.expected == got.cached {
			exact++
		} else {
			t.Errorf("request %d, %s of %d tokens: expected %d cached tokens, the engine says %d: %s", i+1, q.form, got.prompt, got.expected, got.cached, got.record)
		}
		if last, ok := published.last(t); ok {
			host.awaitSeq(t, p.model, map[string]uint64{"0": last})
		}
	}
	t.Logf("%d requests in %.0f s (%v): %d exact, %d with a hit, %d tokens cached", n, time.Since(began).Seconds(), forms, exact, hits, cached)
	if hits < n/4 || hits == n || len(forms) != 3 {
		t.Errorf("%d of %d requests hit, forms %v: the workload shows little", hits, n, forms)
	}
	p.figures(t, n, cached)
}

// figures holds the gateway's own account against what was seen here.
func (p *predicted) figures(t *testing.T, n, cached int) {
	t.Helper()
	resp, err := p.gateway.http.Get(p.gateway.base + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]int{
		`cache_answers_total`: n, `cache_answers_exact_total`: n, `cache_tokens_total{kind="chosen"}`: cached, `cache_tokens_total{kind="delivered"}`: cached,
	} {
		if line := fmt.Sprintf("\nkindex_gateway_%s %d\n", name, want); !bytes.Contains(b, []byte(line)) {
			_, rest, _ := strings.Cut(string(b), "\nkindex_gateway_"+name+" ")
			got, _, _ := strings.Cut(rest, "\n")
			t.Errorf("the gateway's %s is %q, want %d", name, got, want)
		}
	}
}

// talked is one answer.
type talked struct {
	text                     string // or chat content, to go on with
	prompt, cached, expected int
	record                   string
}

// ask sends one request through the gateway.
func (p *predicted) ask(t *testing.T, q *mixedRequest) (out talked) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, p.gateway.base+q.path, bytes.NewReader(q.body(t)))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Kindex-Explain", "1")
	resp, err := p.gateway.http.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	var answer struct {
		Choices []struct {
			Text    string `json:"text"`
			Message struct {
				Content string `json:"content"`
			} `json:"message"`
		} `json:"choices"`
		Usage struct {
			Prompt  int `json:"prompt_tokens"`
			Details struct {
				Cached int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		} `json:"usage"`
	}
	if err != nil || resp.StatusCode != http.StatusOK || json.Unmarshal(b, &answer) != nil || len(answer.Choices) != 1 {
		t.Fatalf("%s: %s (%v): %.1000s", q.path, resp.Status, err, b)
	}
	out = talked{answer.Choices[0].Text + answer.Choices[0].Message.Content, answer.Usage.Prompt, answer.Usage.Details.Cached, -1, resp.Header.Get("X-Kindex-Explain")}
	var record struct {
		Candidates []struct {
			Worker string `json:"worker"`
			Cached int    `json:"cached_tokens"`
		} `json:"candidates"`
	}
	if err := json.Unmarshal([]byte(out.record), &record); err != nil {
		t.Fatalf("X-Kindex-Explain: %v: %s", err, out.record)
	}
	for _, c := range record.Candidates {
		if c.Worker == resp.Header.Get("X-Kindex-Worker") {
			out.expected = c.Cached
		}
	}
	return out
}

// mixedRequest is token ids, text or a chat.
type mixedRequest struct {
	form, path string
	model      string
	most       int
	ids        []uint32
	text       string
	turns      []map[string]string
}

func (q *mixedRequest) body(t *testing.T) []byte {
	t.Helper()
	body := map[string]any{"model": q.model, "max_tokens": q.most, "temperature": 0, "ignore_eos": true}
	switch q.form {
	case "ids":
		body["prompt"] = q.ids
	case "text":
		body["prompt"] = q.text
	default:
		body["messages"] = q.turns
	}
	b, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// length is the prompt's in tokens at least: a word is one.
func (q *mixedRequest) length() int {
	n := len(q.ids) + len(strings.Fields(q.text))
	for _, turn := range q.turns {
		n += len(strings.Fields(turn["content"]))
	}
	return n
}

// mixedTalk makes requests as clients do: beginnings that several share, turns that go on
// from an answer, repeats, strangers.
type mixedTalk struct {
	rng     *rand.Rand
	model   string
	context int
	past    []*mixedRequest // grown by their answers
}

func (w *mixedTalk) words(n int) string {
	var b strings.Builder
	for range n {
		b.WriteString("w" + strconv.Itoa(w.rng.IntN(1900)) + " ")
	}
	return strings.TrimSuffix(b.String(), " ")
}

// next returns the next request; its prompt and output fit the context.
func (w *mixedTalk) next() *mixedRequest {
	q := &mixedRequest{model: w.model, most: 1 + w.rng.IntN(40)}
	if len(w.past) > 0 && w.rng.IntN(10) < 7 {
		q2 := *w.past[len(w.past)-1-w.rng.IntN(min(12, len(w.past)))]
		if q2.length() < w.context/2 {
			q2.most = q.most
			n := w.rng.IntN(100)
			switch w.rng.IntN(5) {
			case 0:
				n = 0 // again
			case 1: // exactly to a block's end: the last token is computed anew all the same
				n = (vllmBlock - q2.length()%vllmBlock) % vllmBlock
			}
			return w.grow(&q2, n)
		}
	}
	q.form, q.path = "ids", "/v1/completions"
	switch w.rng.IntN(3) {
	case 0:
		q.form = "text"
	case 1:
		q.form, q.path = "chat", "/v1/chat/completions"
		q.turns = []map[string]string{{"role": "system", "content": w.words(20 + w.rng.IntN(200))}}
	}
	return w.grow(q, 40+w.rng.IntN(200))
}

// grow adds so many tokens; none makes it a repeat.
func (w *mixedTalk) grow(q *mixedRequest, n int) *mixedRequest {
	if n == 0 {
		return q
	}
	switch q.form {
	case "ids":
		q.ids = append([]uint32{}, q.ids...)
		for range n {
			q.ids = append(q.ids, 29+w.rng.Uint32N(1900))
		}
	case "text":
		q.text = strings.TrimSpace(q.text + " " + w.words(n))
	default:
		q.turns = append(append([]map[string]string{}, q.turns...), map[string]string{"role": "user", "content": w.words(n)})
	}
	return q
}

// answered makes q, with its answer, a place to go on from.
func (w *mixedTalk) answered(q *mixedRequest, text string) {
	grown := *q
	switch q.form {
	case "ids":
	case "text":
		grown.text = strings.TrimSpace(q.text + " " + text)
	default:
		grown.turns = append(append([]map[string]string{}, q.turns...), map[string]string{"role": "assistant", "content": text})
	}
	w.past = append(w.past, &grown)
}
