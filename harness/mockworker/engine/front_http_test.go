// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// sent asks a worker's HTTP front and returns the whole answer.
func sent(t *testing.T, addr, path, body string, header ...string) (code int, answer string) {
	t.Helper()
	method := http.MethodPost
	if body == "" {
		method = http.MethodGet
	}
	req, err := http.NewRequestWithContext(t.Context(), method, "http://"+addr+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

// events takes a stream apart.
func eventsOf(t *testing.T, answer string) (events []map[string]any) {
	t.Helper()
	lines := strings.Split(answer, "\n\n")
	if n := len(lines); n < 2 || lines[n-1] != "" || lines[n-2] != "data: [DONE]" {
		t.Fatalf("no end: %q", answer)
	}
	for _, line := range lines[:len(lines)-2] {
		var e map[string]any
		if err := json.Unmarshal([]byte(strings.TrimPrefix(line, "data: ")), &e); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		events = append(events, e)
	}
	return events
}

// at returns what a path of keys and indexes leads to.
func at(v any, path ...any) any {
	for _, p := range path {
		switch k := p.(type) {
		case string:
			m, _ := v.(map[string]any)
			v = m[k]
		case int:
			l, _ := v.([]any)
			if k >= len(l) {
				return nil
			}
			v = l[k]
		}
	}
	return v
}

// TestCompletions asks in every form of a prompt, streamed and whole: the pieces of
// a stream make up the answer in one piece.
func TestCompletions(t *testing.T) {
	s := start(t, "--engine vllm --block 4 --blocks 300 --max-tokens 5 --lora small,large")
	for name, body := range map[string]string{
		"text": `"prompt":"w9 one two"`, "tokens": `"prompt":[5, 6,7 ,8]`, "texts": `"prompt":["one two","three"],"n":2`,
		"lists": `"prompt":[[1,2],[3,4,5]]`, "echo": `"prompt":"caf\u00e9 \"bar\"","echo":true`, "ids": `"prompt":[1,2,3],"return_token_ids":true`,
		"adapter": `"model":"small","prompt":[1,2,3]`, "stop": `"prompt":[1,2,3],"max_tokens":200,"stop":["w19","5 w"]`,
		"included": `"prompt":[1,2,3],"max_tokens":200,"stop":"w19","include_stop_str_in_output":true`,
		"token":    `"prompt":[1,2,3],"max_tokens":200,"stop_token_ids":[` + many(1000, 2000) + `]`,
	} {
		code, text := sent(t, s.HTTP, "/v1/completions", "{"+body+"}")
		var whole map[string]any
		if err := json.Unmarshal([]byte(text), &whole); err != nil || code != http.StatusOK {
			t.Errorf("%s: %d %s: %v", name, code, text, err)
			continue
		}
		code, text = sent(t, s.HTTP, "/v1/completions", "{"+body+`,"stream":true,"stream_options":{"include_usage":true}}`)
		if code != http.StatusOK {
			t.Errorf("%s: streamed: %d %s", name, code, text)
			continue
		}
		pieces := make(map[int]string)
		finish := make(map[int]any)
		var last map[string]any
		for _, e := range eventsOf(t, text) {
			last = e
			if c := at(e, "choices", 0); c != nil {
				i := int(at(c, "index").(float64))
				pieces[i] += at(c, "text").(string)
				if f := at(c, "finish_reason"); f != nil {
					finish[i] = f
				}
			}
		}
		choices := whole["choices"].([]any)
		for i := range choices {
			if at(choices, i, "text") != pieces[i] || at(choices, i, "finish_reason") != finish[i] || finish[i] == nil {
				t.Errorf("%s: choice %d: %v in one piece, %q %v streamed", name, i, choices[i], pieces[i], finish[i])
			}
		}
		if len(pieces) != len(choices) || at(last, "usage", "total_tokens") != at(whole, "usage", "total_tokens") && !strings.Contains(name, "stop") {
			t.Errorf("%s: %d choices and %v streamed, %d and %v in one piece", name, len(pieces), last["usage"], len(choices), whole["usage"])
		}
		switch stop, _ := at(choices, 0, "stop_reason").(string); name {
		case "stop", "included":
			text, _ := at(choices, 0, "text").(string)
			if at(choices, 0, "finish_reason") != "stop" || strings.HasSuffix(text, stop) != (name == "included") || stop == "" {
				t.Errorf("%s: ended with %q by %q", name, text, stop)
			}
		case "token":
			if id, _ := at(choices, 0, "stop_reason").(float64); id < 1000 || id >= 2000 || at(choices, 0, "finish_reason") != "stop" {
				t.Errorf("%s: ended by %v", name, choices[0])
			}
		case "echo":
			if text, _ := at(choices, 0, "text").(string); !strings.HasPrefix(text, "café \"bar\" w") {
				t.Errorf("%s: %q", name, text)
			}
		case "ids":
			if fmt.Sprint(at(choices, 0, "prompt_token_ids")) != "[1 2 3]" || len(at(choices, 0, "token_ids").([]any)) != 5 {
				t.Errorf("%s: %v", name, choices[0])
			}
		case "adapter":
			if whole["model"] != "small" {
				t.Errorf("%s: %v", name, whole)
			}
		}
	}
}

// many lists the numbers from one to another.
func many(from, past int) string {
	var out []string
	for i := from; i < past; i++ {
		out = append(out, strconv.Itoa(i))
	}
	return strings.Join(out, ",")
}

// TestChat asks for chats. The tokens are those that /tokenize tells, a prefix of a
// conversation is found again, and ids go through.
func TestChat(t *testing.T) {
	s := start(t, "--engine vllm --block 4 --blocks 300 --max-tokens 5")
	first := `[{"role":"system","content":"you are short"},{"role":"user","content":[{"type":"text","text":"hi there how"},{"type":"text","text":"are you"}]}`
	code, text := sent(t, s.HTTP, "/tokenize", `{"messages":`+first+`]}`)
	var tokens struct {
		Count  int
		Tokens []uint32
	}
	if err := json.Unmarshal([]byte(text), &tokens); err != nil || code != http.StatusOK || tokens.Count != len(tokens.Tokens) || tokens.Count < 12 {
		t.Fatalf("%d %s: %v", code, text, err)
	}
	ask := func(messages, more string) (map[string]any, int) {
		t.Helper()
		code, text := sent(t, s.HTTP, "/v1/chat/completions", `{"model":"mock","messages":`+messages+`]`+more+`}`, "x-request-id", "my-id")
		var out map[string]any
		if err := json.Unmarshal([]byte(text), &out); err != nil || code != http.StatusOK {
			t.Fatalf("%d %s: %v", code, text, err)
		}
		return out, int(at(out, "usage", "prompt_tokens_details", "cached_tokens").(float64))
	}
	whole, cached := ask(first, "")
	content, _ := at(whole, "choices", 0, "message", "content").(string)
	if cached != 0 || whole["id"] != "chatcmpl-my-id" || whole["object"] != "chat.completion" || len(strings.Fields(content)) != 5 ||
		int(at(whole, "usage", "prompt_tokens").(float64)) != tokens.Count || at(whole, "choices", 0, "message", "role") != "assistant" {
		t.Errorf("answer %v, %d cached", whole, cached)
	}
	next := fmt.Sprintf(`%s,{"role":"assistant","content":%q},{"role":"user","content":"and now"}`, first, content)
	if _, cached := ask(next, `,"max_completion_tokens":2`); cached < tokens.Count/4*4 {
		t.Errorf("the conversation goes on: %d tokens cached, %d were its beginning", cached, tokens.Count)
	}
	_, text = sent(t, s.HTTP, "/v1/chat/completions", `{"messages":`+first+`],"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}}`)
	events := eventsOf(t, text)
	said := ""
	for _, e := range events[1 : len(events)-1] {
		said += at(e, "choices", 0, "delta", "content").(string)
	}
	if at(events[0], "choices", 0, "delta", "role") != "assistant" || said != content || at(events[2], "usage", "completion_tokens") != 2.0 || len(events[len(events)-1]["choices"].([]any)) != 0 {
		t.Errorf("streamed %q of %s", said, text)
	}
	var page RequestsPage
	s.get(t, "/admin/requests?since=1&limit=1", &page)
	if r := page.Requests; len(r) != 1 || r[0].N != 2 || r[0].ID != "chatcmpl-my-id" || r[0].ClientID != "my-id" || page.Next != 2 || r[0].Cached != r[0].Best {
		t.Errorf("requests %+v", page)
	}
}

// TestHTTPRefusals asks for what an engine refuses: in OpenAI's shape, naming the
// field.
func TestHTTPRefusals(t *testing.T) {
	s := start(t, "--engine vllm --block 4 --blocks 30 --context 100 --ranks 2")
	const text, chat = "/v1/completions", "/v1/chat/completions"
	for _, test := range []struct {
		path, body string
		code       int
		want       string
		header     []string
	}{
		{text, `{"prompt":[1],"model":"other"}`, 404, "The model `other` does not exist.", nil},
		{text, `{}`, 400, "prompt: missing", nil},
		{text, `{"prompt":null}`, 400, "prompt: missing", nil},
		{text, `{"prompt":7}`, 400, "prompt: must be a text", nil},
		{text, `{"prompt":""}`, 400, "prompt: must not be empty", nil},
		{text, `{"prompt":[]}`, 400, "prompt: must not be empty", nil},
		{text, `{"prompt":[[]]}`, 400, "prompt: must not be empty", nil},
		{text, `{"prompt":[1,"a"]}`, 400, "prompt[1]: must be a token id", nil},
		{text, `{"prompt":[1,-1]}`, 400, "prompt[1]: must be a token id", nil},
		{text, `{"prompt":[1.5]}`, 400, "prompt[0]: must be a token id", nil},
		{text, `{"prompt":[4294967296]}`, 400, "prompt[0]: a token id must be at most", nil},
		{text, `{"prompt":["a",[1]]}`, 400, "prompt: must be a text", nil},
		{text, `{"prompt":[1],"max_tokens":0}`, 400, "max_tokens must be at least 1", nil},
		{text, `{"prompt":[1],"max_tokens":-5}`, 400, "max_tokens must be at least 1", nil},
		{text, `{"prompt":[1],"max_tokens":100}`, 400, "maximum context length is 100 tokens. However, you requested 101 tokens (1 in the prompt, 100 in the completion)", nil},
		{text, `{"prompt":[` + many(0, 100) + `]}`, 400, "your request has 100 input tokens", nil},
		{text, `{"prompt":[1],"n":0}`, 400, "n must be", nil},
		{text, `{"prompt":[1],"n":129}`, 400, "n must be", nil},
		{text, `{"prompt":[1],"temperature":-1}`, 400, "temperature must be", nil},
		{text, `{"prompt":[1],"top_p":0}`, 400, "top_p must be", nil},
		{text, `{"prompt":[1],"stream_options":{}}`, 400, "Stream options can only be defined", nil},
		{text, `{"prompt":[1],"stop":[1]}`, 400, "stop: must be", nil},
		{text, `{"prompt":[1],"stop":""}`, 400, "stop: a text must have", nil},
		{text, `{"prompt":[1],"logprobs":21}`, 400, "logprobs: must be 0 to 20", nil},
		{text, `{"prompt":[1],"logprobs":true}`, 400, "logprobs: must be a whole number", nil},
		{text, `{"prompt":[1],"logprobs":1,"echo":true}`, 400, "echo: does not go with logprobs", nil},
		{text, `{"prompt":[1],"prompt_logprobs":1}`, 400, "prompt_logprobs: this engine makes none up", nil},
		{text, `{"prompt":[1],"prompt_embeds":["AA=="]}`, 400, "prompt_embeds: go in the place of a prompt", nil},
		{text, `{"prompt_embeds":["AA==","?"]}`, 400, "prompt_embeds[1]: must be one token's embedding", nil},
		{chat, `{"messages":[{"role":"user","content":"x"}],"logprobs":2}`, 400, "logprobs: must be true or false", nil},
		{chat, `{"messages":[{"role":"user","content":"x"}],"top_logprobs":2}`, 400, "top_logprobs: goes with logprobs", nil},
		{text, `{"prompt":[1],"messages":[]}`, 400, "messages: belong to", nil},
		{text, `{"prompt":[1],"max_tokens":"x"}`, 400, "max_tokens", nil},
		{text, `{"prompt":[1]`, 400, "the body", nil},
		{text, `no`, 400, "the body", nil},
		{text, `{"prompt":[1]}`, 400, "must be a rank from 0 to 1", []string{"X-data-parallel-rank", "2"}},
		{text, `{"prompt":[1]}`, 400, "must be a rank from 0 to 1", []string{"X-data-parallel-rank", "x"}},
		{chat, `{"messages":[]}`, 400, "messages: must not be empty", nil},
		{chat, `{"messages":[{"content":"x"}]}`, 400, "messages[0].role: missing", nil},
		{chat, `{"messages":[{"role":"user","content":7}]}`, 400, "messages[0].content", nil},
		{chat, `{"messages":[{"role":"user","content":[{"type":"image_url"}]}]}`, 400, "messages[0].content[0]: only parts of type text", nil},
		{"/tokenize", `{}`, 400, "prompt: missing", nil},
		{"/tokenize", `{"prompt":"a","model":"b"}`, 404, "does not exist", nil},
		{"/detokenize", `{}`, 400, "tokens: missing", nil},
		{"/v1/loads?dp_rank=5", "", 400, "dp_rank", nil},
		{"/v1/loads?format=xml", "", 400, "format", nil},
		{"/v1/nothing", "", 404, "no GET /v1/nothing", nil},
	} {
		code, answer := sent(t, s.HTTP, test.path, test.body, test.header...)
		var said struct {
			Error struct {
				Message, Type string
				Code          int
			}
		}
		if err := json.Unmarshal([]byte(answer), &said); err != nil || code != test.code || said.Error.Code != code || !strings.Contains(said.Error.Message, test.want) || said.Error.Type == "" {
			t.Errorf("%s %.80s: %d %s, want %d and %q: %v", test.path, test.body, code, answer, test.code, test.want, err)
		}
	}
}

// TestRanksAndSalts pins requests to ranks and separates them by salt and adapter.
func TestRanksAndSalts(t *testing.T) {
	s := start(t, "--engine vllm --block 4 --blocks 100 --ranks 2 --lora a --max-tokens 1")
	ask := func(more, rank string) int {
		t.Helper()
		header := []string{"X-data-parallel-rank", rank}
		if rank == "" {
			header = nil
		}
		_, text := sent(t, s.HTTP, "/v1/completions", `{"prompt":[1,2,3,4,5,6,7,8,9]`+more+`}`, header...)
		var out struct{ Usage usage }
		if err := json.Unmarshal([]byte(text), &out); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		return out.Usage.Details.Cached
	}
	for i, test := range []struct {
		more, rank string
		want       int
	}{
		{"", "1", 0},
		{"", "0", 0},
		{"", "1", 8},
		{"", "0", 8},
		{`,"cache_salt":"s"`, "1", 0},
		{`,"cache_salt":"s"`, "1", 8},
		{`,"model":"a"`, "1", 0},
		{`,"model":"a"`, "1", 8},
		{`,"model":"a","cache_salt":"s"`, "1", 0},
		{`,"data_parallel_rank":1`, "", 8},
	} {
		if got := ask(test.more, test.rank); got != test.want {
			t.Errorf("request %d: %d tokens cached, want %d", i, got, test.want)
		}
	}
	var reuse TruthReuse
	s.post(t, "/admin/truth", map[string]any{"prompt": []int{1, 2, 3, 4, 5, 6, 7, 8}, "lora": "a", "salt": "s"}, &reuse)
	if r := reuse.Workers["w0"]; !slices.Equal(r.Held, []int{0, 8}) || !slices.Equal(r.Ranks, []int{0, 4}) {
		t.Errorf("the truth of an adapter's salted prompt: %+v", reuse)
	}
}

// TestLeaving ends a streaming client and one that has no token yet: their requests
// are aborted at once.
func TestLeaving(t *testing.T) {
	s := start(t, "--engine vllm --block 4 --blocks 100 --pass 20ms --max-running 1")
	leave := func(wait func(*http.Response, error)) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+s.HTTP+"/v1/completions", strings.NewReader(`{"prompt":[1,2,3],"max_tokens":300,"stream":true}`))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		wait(resp, err)
		cancel()
		if resp != nil {
			_ = resp.Body.Close()
		}
	}
	leave(func(resp *http.Response, err error) {
		if err != nil {
			t.Fatal(err)
		}
		if line, err := bufio.NewReader(resp.Body).ReadString('\n'); err != nil || !strings.HasPrefix(line, "data: {") {
			t.Errorf("%q: %v", line, err)
		}
	})
	s.await(t, func(l *Load) bool { return l.Running == 0 && l.Ended == 1 })
	s.post(t, "/admin/fault/w0/pause", nil, nil)
	leave(func(_ *http.Response, err error) {
		if err != nil {
			t.Fatal(err) // the headers come at once
		}
		s.await(t, func(l *Load) bool { return l.Waiting == 1 })
	})
	s.await(t, func(l *Load) bool { return l.Waiting == 0 && l.Ended == 2 })
	var page RequestsPage
	s.get(t, "/admin/requests", &page)
	for _, r := range page.Requests {
		if r.Finish != aborted {
			t.Errorf("%+v: want it aborted", r)
		}
	}
}

// TestInfo asks for what is told beside answers, in every shape.
func TestInfo(t *testing.T) {
	for _, kind := range []string{VLLM, SGLang} {
		s := start(t, "--engine "+kind+" --block 4 --blocks 100 --ranks 2 --topic kv")
		s.complete(t, []uint32{1, 2, 3, 4, 5}, 2)
		s.complete(t, []uint32{1, 2, 3, 4, 5}, 2)
		for path, want := range map[string]string{
			"/health": "", "/version": `{"version":"`, "/v1/models": `"id":"mock"`, "/v1/models/mock": `"id":"mock"`, "/load": `{"server_load":0}`, "/get_load": `"num_waiting_reqs":0`,
			"/v1/loads": `"num_running_reqs":0`, "/v1/loads?dp_rank=1": `"dp_rank":1`, "/v1/loads?format=prometheus": `sglang_num_running_reqs{dp_rank="1"`,
			"/server_info": `"kv_events":{"block_size":4,"dp_size":2,"endpoint_host":"127.0.0.1","endpoint_port_base":`, "/get_model_info": `"model_path":"mock"`,
			"/metrics": map[string]string{
				VLLM: `vllm:prompt_tokens_total{engine="0",model_name="mock"} 10`, SGLang: `sglang:max_total_num_tokens{dp_rank="0",model_name="mock"} 400`,
			}[kind],
		} {
			if code, text := sent(t, s.HTTP, path, ""); code != http.StatusOK || !strings.Contains(text, want) {
				t.Errorf("%s %s: %d %s, want %s", kind, path, code, text, want)
			}
		}
		code, text := sent(t, s.HTTP, "/detokenize", `{"tokens":[5,7]}`)
		if code != http.StatusOK || !strings.Contains(text, `"w5 w7"`) {
			t.Errorf("%s", text)
		}
	}
}

// TestTokenizer takes texts apart: words are tokens, wherever they stand.
func TestTokenizer(t *testing.T) {
	words := tokenizer{vocabulary: 100}
	for text, want := range map[string]int{"": 0, " \t\n": 0, "a": 1, " a  b\nc ": 3, "é à\u2003ü": 3, "w5": 1, "\xff\xfe x": 2} {
		if got := words.append(nil, text); len(got) != want {
			t.Errorf("%q: %v, want %d tokens", text, got, want)
		}
	}
	tokens := words.append(nil, "w5 w99 w100 w007 hello hello wx")
	if tokens[0] != 5 || tokens[1] != 99 || tokens[2] >= 100 || tokens[3] != 7 || tokens[4] != tokens[5] {
		t.Errorf("%v", tokens)
	}
	if back := words.append(nil, words.text(tokens)); !slices.Equal(back, tokens) {
		t.Errorf("%v comes back as %v", tokens, back)
	}
}

// FuzzCompletions puts anything: an answer or a refusal comes, and nothing stays.
func FuzzCompletions(f *testing.F) {
	for _, seed := range []string{`{"prompt":[1,2]}`, `{"prompt":["a","b"],"n":2,"stream":true}`, `{"prompt":"x","stop":["w1"],"echo":true}`, `{"messages":[{"role":"user","content":"x"}]}`, `{"prompt":[[1],[2]]`, ``} {
		f.Add(seed)
	}
	fleet, err := OpenFleet(Config{Engine: VLLM, Pub: "tcp://127.0.0.1:0", HTTP: "127.0.0.1:0", ContextLength: 64, Blocks: 64}, 1)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(fleet.Close)
	front := fleet.Workers()[0].http
	f.Fuzz(func(t *testing.T, body string) {
		for _, path := range []string{"/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"} {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://x"+path, bytes.NewReader([]byte(body)))
			if err != nil {
				t.Fatal(err)
			}
			w := &recorder{header: http.Header{}}
			front.server.Handler.ServeHTTP(w, req)
			if ctx.Err() != nil || w.code != 200 && w.code != 400 && w.code != 404 || w.body.Len() == 0 {
				t.Errorf("%s %q: %d %s", path, body, w.code, w.body.String())
			}
			cancel()
		}
	})
}

// recorder is a client that takes everything.
type recorder struct {
	header http.Header
	code   int
	body   bytes.Buffer
}

func (r *recorder) Header() http.Header         { return r.header }
func (r *recorder) WriteHeader(code int)        { r.code = code }
func (r *recorder) Write(b []byte) (int, error) { return r.body.Write(b) }

// TestJournal keeps a bounded list of requests, and tells how many fell out.
func TestJournal(t *testing.T) {
	j := newJournal(10)
	rng := rand.New(rand.NewPCG(1, 1))
	for i := range 95 {
		e := &Entry{Prompt: i}
		j.add(e)
		if int(e.N) != i+1 {
			t.Fatalf("request %d has number %d", i+1, e.N)
		}
		since, limit := rng.Uint64N(120), 1+rng.IntN(20)
		out, next, lost := j.since(since, limit)
		first := max(since+1, uint64(max(i+1-9, 1)))
		wantLost := first - since - 1
		n := max(min(i+1-int(first)+1, limit), 0)
		if since > uint64(i+1) {
			wantLost = 0
		}
		if len(out) != n || lost != wantLost || n > 0 && (out[0].N != first || next != out[n-1].N) || n == 0 && next != since {
			t.Fatalf("after %d requests, since %d: %d from %v, next %d, %d lost; want %d from %d and %d lost", i+1, since, len(out), out, next, lost, n, first, wantLost)
		}
	}
	j.forget()
	if out, next, lost := j.since(0, 10); len(out) != 0 || next != 0 || lost != 0 {
		t.Errorf("after it was forgotten: %v %d %d", out, next, lost)
	}
}
