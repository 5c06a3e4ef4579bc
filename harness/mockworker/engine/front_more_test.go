// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"kindex/internal/kv"
	"kindex/proto/peer/sglang"
	"kindex/proto/peer/vllm"
)

// asked sends a body and decodes the answer, which must be 200.
func asked(t *testing.T, addr, path, body string, header ...string) any {
	t.Helper()
	code, text := sent(t, addr, path, body, header...)
	var out any
	if err := json.Unmarshal([]byte(text), &out); err != nil || code != http.StatusOK {
		t.Fatalf("%s %s: %d %s: %v", path, body, code, text, err)
	}
	return out
}

// number returns the number that a path leads to, or -1.
func numberAt(v any, path ...any) float64 {
	n, ok := at(v, path...).(float64)
	if !ok {
		return -1
	}
	return n
}

// TestGenerate asks SGLang's own API: texts and tokens, one and many, streamed and
// whole, with probabilities, stops and ids; and ends requests by their ids.
func TestGenerate(t *testing.T) {
	s := start(t, "--engine sglang --block 4 --blocks 300 --max-tokens 5 --ranks 2")
	one := asked(t, s.HTTP, "/generate", `{"input_ids":[1,2,3,4,5,6,7,8,9],"sampling_params":{"max_new_tokens":3},"data_parallel_rank":1,"rid":"mine"}`)
	if at(one, "meta_info", "id") != "mine" || numberAt(one, "meta_info", "prompt_tokens") != 9 || numberAt(one, "meta_info", "completion_tokens") != 3 ||
		numberAt(one, "meta_info", "cached_tokens") != 0 || at(one, "meta_info", "finish_reason", "type") != "length" || len(at(one, "output_ids").([]any)) != 3 {
		t.Errorf("one: %v", one)
	}
	again := asked(t, s.HTTP, "/generate", `{"input_ids":[1,2,3,4,5,6,7,8,9],"sampling_params":{"max_new_tokens":3}}`, "X-Data-Parallel-Rank", "1")
	if numberAt(again, "meta_info", "cached_tokens") != 8 || at(again, "text") != at(one, "text") {
		t.Errorf("again: %v, the first time %v", again, one)
	}
	all, _ := asked(t, s.HTTP, "/generate", `{"text":["w9 one two","three"],"sampling_params":{"n":2},"return_logprob":true,"top_logprobs_num":3}`).([]any)
	if len(all) != 4 || numberAt(all, 3, "index") != 3 || len(at(all, 0, "meta_info", "output_token_logprobs").([]any)) != 5 ||
		len(at(all, 0, "meta_info", "output_top_logprobs", 0).([]any)) != 3 || numberAt(all, 0, "meta_info", "output_token_logprobs", 0, 0) > 0 {
		t.Errorf("a list: %v", all)
	}
	_, text := sent(t, s.HTTP, "/generate", `{"text":"w9 one two","stream":true,"sampling_params":{"max_new_tokens":200,"stop":["w19"]}}`)
	events := eventsOf(t, text)
	before := ""
	for i, e := range events {
		said, _ := at(e, "text").(string)
		if !strings.HasPrefix(said, before) || numberAt(e, "meta_info", "completion_tokens") != float64(i+1) {
			t.Fatalf("event %d: %v after %q", i, e, before)
		}
		before = said
	}
	last := events[len(events)-1]
	if at(last, "meta_info", "finish_reason", "type") != "stop" || at(last, "meta_info", "finish_reason", "matched") != "w19" || strings.Contains(before, "w19") {
		t.Errorf("a stop: %v", last)
	}
	for body, want := range map[string]string{
		`{}`: "one of them must be given", `{"text":"a","input_ids":[1]}`: "one of them must be given", `{"text":"a","sampling_params":[]}`: "sampling_params: must be one object",
		`{"text":"a","rid":["x"]}`: "rid: must be one text", `{"text":"a","top_logprobs_num":99}`: "top_logprobs_num", `{"text":"a","image_data":"x"}`: "not understood",
		`{"input_ids":[-1]}`: "must be a token id", `{"text":"a","sampling_params":{"max_new_tokens":0}}`: "must be at least 1",
	} {
		if code, text := sent(t, s.HTTP, "/generate", body); code != http.StatusBadRequest || !strings.Contains(text, want) {
			t.Errorf("%s: %d %s, want %s", body, code, text, want)
		}
	}
}

// TestTooLargeSaid refuses a body by the size that its client says, before it comes.
func TestTooLargeSaid(t *testing.T) {
	s := start(t, "--engine vllm")
	conn, err := net.Dial("tcp", s.HTTP)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprintf(conn, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n{", maxBody+1); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("%s, want 413", resp.Status)
	}
}

// TestAbortRequest ends requests by SGLang's call: by name, a choice of one, and all.
func TestAbortRequest(t *testing.T) {
	s := start(t, "--engine sglang --block 4 --blocks 300 --max-running 1")
	s.fault(t, "pause")
	ends := make(chan string, 4)
	ask := func(body string) {
		go func() {
			_, text := sent(t, s.HTTP, "/generate", body)
			ends <- text
		}()
	}
	ask(`{"text":"a","rid":"first"}`)
	ask(`{"text":"b","rid":"second","sampling_params":{"n":2}}`)
	ask(`{"text":"c"}`)
	s.await(t, func(l *Load) bool { return l.Waiting == 4 })
	if code, text := sent(t, s.HTTP, "/abort_request", `{}`); code != http.StatusBadRequest || !strings.Contains(text, "rid: missing") {
		t.Errorf("%d %s", code, text)
	}
	for i, body := range []string{`{"rid":"nobody"}`, `{"rid":"second"}`, `{"rid":"first"}`, `{"abort_all":true}`} {
		if code, text := sent(t, s.HTTP, "/abort_request", body); code != http.StatusOK {
			t.Errorf("%s: %d %s", body, code, text)
		}
		if i == 0 {
			s.await(t, func(l *Load) bool { return l.Waiting == 4 })
			continue
		}
		if text := <-ends; strings.Count(text, `"type":"abort"`) != []int{0, 2, 1, 1}[i] {
			t.Errorf("%s: %s", body, text)
		}
	}
	s.fault(t, "resume")
	asked(t, s.HTTP, "/generate", `{"text":"a","rid":"first"}`)
	v := start(t, "--engine vllm")
	if code, _ := sent(t, v.HTTP, "/generate", `{"text":"a"}`); code != http.StatusNotFound {
		t.Errorf("vllm has no such call: %d", code)
	}
}

// TestEmbeddings asks for vectors: of length 1, equal for equal prompts, as numbers
// and as bytes; a prompt of one is found cached by the next.
func TestEmbeddings(t *testing.T) {
	s := start(t, "--engine vllm --block 4 --blocks 300")
	out := asked(t, s.HTTP, "/v1/embeddings", `{"model":"mock","input":["one two three four five","six","one two three four five"],"dimensions":8}`)
	v, _ := at(out, "data", 0, "embedding").([]any)
	sum := 0.0
	for _, x := range v {
		sum += x.(float64) * x.(float64)
	}
	if len(v) != 8 || math.Abs(sum-1) > 1e-5 || fmt.Sprint(v) != fmt.Sprint(at(out, "data", 2, "embedding")) || fmt.Sprint(v) == fmt.Sprint(at(out, "data", 1, "embedding")) ||
		numberAt(out, "usage", "prompt_tokens") != 11 || numberAt(out, "data", 1, "index") != 1 || at(out, "object") != "list" {
		t.Errorf("%v", out)
	}
	out = asked(t, s.HTTP, "/v1/embeddings", `{"input":[1,2,3],"encoding_format":"base64"}`)
	packedText, _ := at(out, "data", 0, "embedding").(string)
	if b, err := base64.StdEncoding.DecodeString(packedText); err != nil || len(b) != 4*dimensions {
		t.Errorf("%v: %d bytes: %v", out, len(b), err)
	}
	out = asked(t, s.HTTP, "/v1/completions", `{"prompt":"one two three four five","max_tokens":1}`)
	if numberAt(out, "usage", "prompt_tokens_details", "cached_tokens") != 4 {
		t.Errorf("after an embedding: %v", out)
	}
	by, err := vllm.NewVllmEngineClient(s.conn).Embed(t.Context(), &vllm.EmbedRequest{RequestId: "e", Tokenized: &vllm.TokenizedInput{InputIds: []uint32{1, 2, 3}}})
	if err != nil || by.GetEmbeddingDim() != dimensions || by.GetPromptTokens() != 3 || packed(by.GetEmbedding()) != packedText {
		t.Errorf("by gRPC: %v: %v", by, err)
	}
	sg := start(t, "--engine sglang")
	like, err := sglang.NewSglangSchedulerClient(sg.conn).Embed(t.Context(), &sglang.EmbedRequest{RequestId: "e", Tokenized: &sglang.TokenizedInput{InputIds: []uint32{1, 2, 3}}})
	if err != nil || packed(like.GetEmbedding()) != packedText {
		t.Errorf("by SGLang's: %v: %v", like, err)
	}
	if _, err := vllm.NewVllmEngineClient(s.conn).Embed(t.Context(), &vllm.EmbedRequest{RequestId: "e"}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("no tokens: %v", err)
	}
	for body, want := range map[string]string{
		`{}`: "input: missing", `{"input":"x","dimensions":0}`: "dimensions", `{"input":"x","encoding_format":"hex"}`: "encoding_format", `{"input":[]}`: "must not be empty",
	} {
		if code, text := sent(t, s.HTTP, "/v1/embeddings", body); code != http.StatusBadRequest || !strings.Contains(text, want) {
			t.Errorf("%s: %d %s, want %s", body, code, text, want)
		}
	}
}

// TestLogprobs asks for probabilities: well formed, as many as asked for, in a stream
// those of the answer in one piece.
func TestLogprobs(t *testing.T) {
	s := start(t, "--engine vllm --block 4 --blocks 300 --max-tokens 6")
	const text, chat = `{"prompt":[1,2,3],"logprobs":3`, `{"messages":[{"role":"user","content":"hi"}],"logprobs":true,"top_logprobs":2`
	whole := asked(t, s.HTTP, "/v1/completions", text+"}")
	probs := at(whole, "choices", 0, "logprobs")
	said, _ := at(whole, "choices", 0, "text").(string)
	tokens, _ := at(probs, "tokens").([]any)
	joined := ""
	for i, token := range tokens {
		top, _ := at(probs, "top_logprobs", i).(map[string]any)
		own, sum := numberAt(probs, "token_logprobs", i), 0.0
		for _, log := range top {
			sum += math.Exp(log.(float64))
		}
		if len(top) != 3 || top[token.(string)] != own || own > 0 || sum > 1 || int(numberAt(probs, "text_offset", i)) != len(joined) {
			t.Errorf("token %d of %v", i, probs)
		}
		joined += token.(string)
	}
	if joined != said || len(tokens) != 6 {
		t.Errorf("%q of %q", joined, said)
	}
	_, stream := sent(t, s.HTTP, "/v1/completions", text+`,"stream":true}`)
	var logs []any
	for _, e := range eventsOf(t, stream) {
		some, _ := at(e, "choices", 0, "logprobs", "token_logprobs").([]any)
		logs = append(logs, some...)
	}
	if fmt.Sprint(logs) != fmt.Sprint(at(probs, "token_logprobs")) {
		t.Errorf("streamed %v of %v", logs, probs)
	}
	whole = asked(t, s.HTTP, "/v1/chat/completions", chat+"}")
	content, _ := at(whole, "choices", 0, "logprobs", "content").([]any)
	joined = ""
	for i := range content {
		joined += at(content, i, "token").(string)
		if len(at(content, i, "top_logprobs").([]any)) != 2 || len(at(content, i, "bytes").([]any)) != len(at(content, i, "token").(string)) {
			t.Errorf("token %d: %v", i, content[i])
		}
	}
	if joined != at(whole, "choices", 0, "message", "content") {
		t.Errorf("%q of %v", joined, whole)
	}
	if none := asked(t, s.HTTP, "/v1/completions", `{"prompt":[1]}`); at(none, "choices", 0, "logprobs") != nil {
		t.Errorf("nobody asked: %v", none)
	}
}

// TestAPIKey lets in who has the key, where the engine asks for one.
func TestAPIKey(t *testing.T) {
	for kind, open := range map[string][]string{VLLM: {"/health", "/metrics", "/version"}, SGLang: {"/health", "/metrics"}} {
		s := start(t, "--engine "+kind+" --api-key secret")
		for _, path := range open {
			if code, _ := sent(t, s.HTTP, path, ""); code != http.StatusOK {
				t.Errorf("%s %s: %d without a key", kind, path, code)
			}
		}
		const body = `{"prompt":[1],"max_tokens":1}`
		for key, want := range map[string]int{"": 401, "Bearer wrong": 401, "secret": 401, "Bearer secret": 200} {
			if code, text := sent(t, s.HTTP, "/v1/completions", body, "Authorization", key); code != want {
				t.Errorf("%s with %q: %d %s, want %d", kind, key, code, text, want)
			}
		}
		if code, _ := sent(t, s.HTTP, "/server_info", ""); (code == 401) != (kind == SGLang) {
			t.Errorf("%s: /server_info: %d", kind, code)
		}
	}
}

// TestItems asks with images, embeddings and adapters: what differs in these alone is
// not found, what is equal is, and the events tell it with the keys.
func TestItems(t *testing.T) {
	for _, kind := range []string{VLLM, SGLang} {
		s := start(t, "--engine "+kind+" --block 4 --blocks 300 --max-tokens 2 --image-tokens 10")
		ask := func(url string) int {
			t.Helper()
			out := asked(t, s.HTTP, "/v1/chat/completions", `{"messages":[{"role":"user","content":[{"type":"text","text":"what is on this"},{"type":"image_url","image_url":{"url":"`+url+`"}},{"type":"text","text":"and why"}]}]}`)
			if n := numberAt(out, "usage", "prompt_tokens"); n != 20 {
				t.Errorf("%v prompt tokens, want 20", n)
			}
			return int(numberAt(out, "usage", "prompt_tokens_details", "cached_tokens"))
		}
		if a, b, c, d := ask("http://a/b.png"), ask("http://a/b.png"), ask("data:other"), ask("data:other"); a != 0 || b != 16 || c != 4 || d != 16 {
			t.Errorf("%s: cached %d %d %d %d, want 0 16 4 16", kind, a, b, c, d)
		}
		s.holdTruth(t, 1)
		events, _ := replayed(t, s.Replay[0])
		keys := 0
		for _, e := range events {
			for _, list := range e.Extra {
				for _, k := range list {
					if k.Kind == kv.ExtraItem && len(k.ID) == 64 {
						keys++
					}
				}
			}
		}
		if (keys > 0) != (kind == VLLM) {
			t.Errorf("%s: %d keys of items told", kind, keys)
		}
	}
	s := start(t, "--engine vllm --block 4 --blocks 300 --max-tokens 2")
	row := func(n byte) string { return `"` + base64.StdEncoding.EncodeToString([]byte{n, 2, 3, 4}) + `"` }
	prompt := func(rows ...byte) string {
		var all []string
		for _, n := range rows {
			all = append(all, row(n))
		}
		return `{"prompt_embeds":[` + strings.Join(all, ",") + `]}`
	}
	for i, test := range []struct {
		rows []byte
		want float64
	}{{[]byte{1, 2, 3, 4, 5, 6, 7, 8, 9}, 0}, {[]byte{1, 2, 3, 4, 5, 6, 7, 8, 9}, 8}, {[]byte{1, 2, 3, 4, 5, 6, 7, 7, 9}, 4}} {
		out := asked(t, s.HTTP, "/v1/completions", prompt(test.rows...))
		if n := numberAt(out, "usage", "prompt_tokens_details", "cached_tokens"); n != test.want {
			t.Errorf("embeddings %d: %v cached, want %v", i, n, test.want)
		}
	}
	s.holdTruth(t, 1)
	sg := start(t, "--engine sglang")
	if code, text := sent(t, sg.HTTP, "/v1/completions", prompt(1)); code != http.StatusBadRequest || !strings.Contains(text, "embeddings: vllm takes") {
		t.Errorf("sglang: %d %s", code, text)
	}
}

// TestReportAgain has blocks told again that were found cached: nobody can tell that
// from a second copy, which there is not.
func TestReportAgain(t *testing.T) {
	s := start(t, "--engine vllm --block 4 --blocks 300 --max-tokens 1")
	const body = `{"prompt":[1,2,3,4,5,6,7,8,9]`
	asked(t, s.HTTP, "/v1/completions", body+"}")
	asked(t, s.HTTP, "/v1/completions", body+`,"vllm_xargs":{"kv_cache_report_mode":"full"}}`)
	events, _ := replayed(t, s.Replay[0])
	if len(events) != 2 || events[1].HasParent || !slices.Equal(events[0].Hashes, events[1].Hashes) || !slices.Equal(events[0].Tokens, events[1].Tokens) {
		t.Errorf("events %+v", events)
	}
	for _, b := range s.truth(t)[0].Blocks {
		if b.Copies != 1 {
			t.Errorf("block %+v", b)
		}
	}
}
