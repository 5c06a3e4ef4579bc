// SPDX-License-Identifier: Apache-2.0

package openai

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"
)

// told is an answer, as far as the oracle reads it.
type told struct {
	Usage *struct {
		Prompt     json.RawMessage `json:"prompt_tokens"`
		Completion json.RawMessage `json:"completion_tokens"`
		Details    json.RawMessage `json:"prompt_tokens_details"`
	} `json:"usage"`
	Meta *struct {
		Prompt     json.RawMessage `json:"prompt_tokens"`
		Completion json.RawMessage `json:"completion_tokens"`
		Cached     json.RawMessage `json:"cached_tokens"`
	} `json:"meta_info"`
}

func tokensOf(raw json.RawMessage, n *int64, known *bool) {
	var v uint64
	if json.Unmarshal(raw, &v) == nil && string(raw) != "null" && v <= 1<<62 {
		*n, *known = int64(v), true
	}
}

func askUsage(body []byte) (u Usage) {
	var a told
	if json.Unmarshal(body, &a) != nil {
		return u
	}
	if v := a.Usage; v != nil {
		tokensOf(v.Prompt, &u.Prompt, &u.Known)
		tokensOf(v.Completion, &u.Completion, &u.Known)
		var d map[string]json.RawMessage
		if json.Unmarshal(v.Details, &d) == nil {
			tokensOf(d["cached_tokens"], &u.Cached, &u.CachedKnown)
		}
	}
	if v := a.Meta; v != nil && a.Usage == nil {
		tokensOf(v.Prompt, &u.Prompt, &u.Known)
		tokensOf(v.Completion, &u.Completion, &u.Known)
		tokensOf(v.Cached, &u.Cached, &u.CachedKnown)
	}
	return u
}

var answers = []string{
	``, `{}`, `[]`, `null`, `7`, `{"usage":null}`, `{"usage":7}`, `{"usage":{}}`,
	`{"id":"x","choices":[{"index":0,"text":"a \"usage\": {\"prompt_tokens\":9}"}],"usage":{"prompt_tokens":12,"total_tokens":15,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":8}}}`,
	`{"usage":{"prompt_tokens":12,"completion_tokens":3,"prompt_tokens_details":null},"choices":[{"usage":{"prompt_tokens":1}}]}`,
	`{"choices":[{"usage":{"prompt_tokens":1}}]}`, `{"choices":[],"usage":{"prompt_tokens":5},"prompt_token_ids":[1,2,3],"kv_transfer_params":null}`,
	`{"usage":{"prompt_tokens":5},"x":"the \"usage\":{}"}`, `{"usage":{"prompt_tokens":5,"prompt_tokens_details":{"cached_tokens":"4"}}}`, `{"usage":{"prompt_tokens":-5}}`, `{"usage":{"prompt_tokens":1.5}}`,
	`{"text":"a","output_ids":[1],"meta_info":{"id":"r","finish_reason":{"type":"stop"},"prompt_tokens":7,"completion_tokens":1,"cached_tokens":4}}`,
	`{"text":"\"meta_info\":{\"prompt_tokens\":99}","meta_info":{"prompt_tokens":7,"cached_tokens":0},"index":1}`,
	`{"a":{"usage":{"prompt_tokens":1}}}`, `{"a":{"b":1,"usage":{"prompt_tokens":1}}}`, `{"usage" : { "prompt_tokens" : 3 } } `, `{"usage":{"prompt_tokens":3}`, `{"x":"usage"}`, `{"x":"usage","y":"meta_info"}`,
}

func TestScanUsage(t *testing.T) {
	for _, a := range answers {
		var got Usage
		ScanUsage([]byte(a), &got)
		if want := askUsage([]byte(a)); got != want {
			t.Errorf("%s: got %+v, want %+v", a, got, want)
		}
	}
	// Of a list it is the sum.
	var got Usage
	ScanUsage([]byte(`[`+answers[16]+`,`+answers[16]+`]`), &got)
	if want := (Usage{true, true, 14, 8, 2}); got != want {
		t.Errorf("a list: got %+v, want %+v", got, want)
	}
}

func FuzzScanUsage(f *testing.F) {
	for _, a := range answers {
		f.Add([]byte(a))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		var m map[string]json.RawMessage
		var twice map[string]any
		if !utf8.Valid(body) || json.Unmarshal(body, &m) != nil || json.Unmarshal(body, &twice) != nil {
			var u Usage
			ScanUsage(body, &u) // whatever it finds, it comes back
			return
		}
		plain, err := json.Marshal(twice) // names once each, and as they are written
		if err != nil || levels(plain) > 100 {
			return
		}
		_, usage := twice["usage"].(map[string]any)
		_, meta := twice["meta_info"].(map[string]any)
		if usage && meta || odd(twice) {
			return
		}
		var got Usage
		ScanUsage(plain, &got)
		if want := askUsage(plain); got != want {
			t.Errorf("%s: got %+v, want %+v", plain, got, want)
		}
	})
}

// odd reports whether names differ from the known ones in case alone, which the oracle
// takes.
func odd(v map[string]any) bool {
	for k, e := range v {
		for _, name := range []string{"usage", "meta_info", "prompt_tokens", "completion_tokens", "cached_tokens", "prompt_tokens_details"} {
			if k != name && strings.EqualFold(k, name) {
				return true
			}
		}
		if m, ok := e.(map[string]any); ok && odd(m) {
			return true
		}
	}
	return false
}

// streams are what engines send.
var streams = map[string]struct {
	text string
	want Seen
	cost Usage
}{
	"chat": {
		"data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"finish_reason\":null}]}\n\n" +
			"data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"hi\"},\"finish_reason\":null}]}\n\n" +
			": ping\n\n" +
			"data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n" +
			"data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":2,\"prompt_tokens_details\":{\"cached_tokens\":4}}}\n\ndata: [DONE]\n\n",
		Seen{Events: 5, Output: 2, Usage: true, Done: true},
		Usage{true, true, 9, 4, 2},
	},
	"carriage returns": {
		"data:{\"choices\":[{\"text\":\"a\"}]}\r\n\r\ndata: [DONE]\r\n\r\n", Seen{Events: 2, Output: 1, Done: true}, Usage{},
	},
	"native": {
		"data: {\"text\":\"\",\"output_ids\":[],\"meta_info\":{\"prompt_tokens\":3,\"completion_tokens\":0,\"cached_tokens\":1}}\n\n" +
			"data: {\"text\":\"a\",\"output_ids\":[1],\"meta_info\":{\"prompt_tokens\":3,\"completion_tokens\":1,\"cached_tokens\":1}}\n\ndata: [DONE]\n\n",
		Seen{Events: 3, Output: 1, Usage: true, Done: true},
		Usage{true, true, 3, 1, 1},
	},
	"tool and thought": {
		"data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":0}]}}]}\n\ndata: {\"choices\":[{\"delta\":{\"reasoning_content\":\"x\"}}]}\n\ndata: {\"choices\":[{\"delta\":{\"content\":null}}]}\n\n",
		Seen{Events: 3, Output: 2},
		Usage{},
	},
	"error":              {"data: {\"error\":{\"message\":\"no\"}}\n\n", Seen{Events: 1, Error: true}, Usage{}},
	"error, older":       {"data: {\"object\":\"error\",\"message\":\"no\"}\n\n", Seen{Events: 1, Error: true}, Usage{}},
	"error by name":      {"event: error\ndata: {\"message\":\"no\"}\n\n", Seen{Events: 1, Error: true}, Usage{}},
	"no error":           {"data: {\"error\":null,\"choices\":[]}\n\n", Seen{Events: 1}, Usage{}},
	"several lines":      {"id: 7\ndata: {\"choices\":\ndata: [{\"text\":\ndata: \"a\"}]}\n\n", Seen{Events: 1, Output: 1}, Usage{}},
	"not JSON":           {"data: {\"choices\n\n", Seen{Events: 1, Output: 1}, Usage{}},
	"blank lines before": {"\n\n\r\n\ndata: [DONE]\n\n", Seen{Events: 1, Done: true}, Usage{}},
	"cut": {
		"data: {\"choices\":[{\"text\":\"a\"}]}\n\ndata: {\"choices\":[{\"te", Seen{Events: 1, Output: 1}, Usage{},
	},
	"long": {
		"data: {\"text\":\"" + strings.Repeat("x", 2*maxEvent) + "\",\"meta_info\":{\"prompt_tokens\":3,\"completion_tokens\":1,\"cached_tokens\":1}}\n\n",
		Seen{Events: 1, Output: 1, Usage: true},
		Usage{true, true, 3, 1, 1},
	},
}

// TestEventScanner cuts each stream in every way.
func TestEventScanner(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for name, c := range streams {
		for try := range 60 {
			var s EventScanner
			var all Seen
			whole := -1
			text := []byte(c.text)
			for at := 0; at < len(text); {
				n := 1 + rng.IntN(1+rng.IntN(60))
				switch {
				case try == 0:
					n = len(text)
				case len(text) > maxEvent:
					n = 1 + rng.IntN(len(text)/3)
				case try == 1:
					n = 1
				}
				part := bytes.Clone(text[at:min(at+n, len(text))])
				seen := s.Scan(part)
				clear(part) // it keeps nothing of what it was given
				if seen.Whole > 0 {
					whole = at + seen.Whole
				}
				at += len(part)
				all.Events, all.Output = all.Events+seen.Events, all.Output+seen.Output
				all.Usage, all.Error, all.Done = all.Usage || seen.Usage, all.Error || seen.Error, all.Done || seen.Done
				if cap(s.buf) > 4*maxEvent {
					t.Fatalf("%s: %d bytes kept", name, cap(s.buf))
				}
			}
			if !reflect.DeepEqual(all, c.want) || s.Usage() != c.cost || s.Done() != c.want.Done || s.Mid() != (name == "cut") {
				t.Fatalf("%s, try %d: got %+v, %+v, mid %v, want %+v, %+v", name, try, all, s.Usage(), s.Mid(), c.want, c.cost)
			}
			last := strings.LastIndex(strings.ReplaceAll(c.text, "\r\n\r\n", "\n\n\n\n"), "\n\n") + 2
			if whole != last {
				t.Fatalf("%s: the last event ends at %d, want %d", name, whole, last)
			}
		}
	}
}

// TestEventScannerAllocations: a stream costs none.
func TestEventScannerAllocations(t *testing.T) {
	var s EventScanner
	text := []byte(streams["chat"].text)
	s.Scan(text[:100])
	s.Scan(text[100:])
	if n := testing.AllocsPerRun(50, func() {
		s.Reset()
		s.Scan(text[:100])
		s.Scan(text[100:])
	}); n > 0 {
		t.Errorf("%v allocations a stream, want none", n)
	}
}

func FuzzEventScanner(f *testing.F) {
	for _, c := range streams {
		if len(c.text) < 10_000 {
			f.Add([]byte(c.text), uint16(7))
		}
	}
	f.Fuzz(func(t *testing.T, text []byte, cut uint16) {
		var one, two EventScanner
		a := one.Scan(text)
		at := int(cut) % (len(text) + 1)
		b := two.Scan(text[:at])
		c := two.Scan(text[at:])
		if a.Events != b.Events+c.Events || a.Output != b.Output+c.Output || a.Done != (b.Done || c.Done) || one.Usage() != two.Usage() || one.Mid() != two.Mid() {
			t.Errorf("%q cut at %d: %+v and %+v, whole %+v", text, at, b, c, a)
		}
	})
}

func BenchmarkEventScanner(b *testing.B) {
	event := []byte(`data: {"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1796010653,"model":"m","choices":[{"index":0,"delta":{"content":" word"},"logprobs":null,"finish_reason":null}]}` + "\n\n")
	var s EventScanner
	b.SetBytes(int64(len(event)))
	b.ReportAllocs()
	for b.Loop() {
		s.Scan(event)
	}
}

func BenchmarkScanUsage(b *testing.B) {
	body := fmt.Appendf(nil, `{"choices":[{"text":"%s"}],"usage":{"prompt_tokens":12,"total_tokens":15,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":8}}}`, strings.Repeat("x", 100_000))
	b.ReportAllocs()
	for b.Loop() {
		var u Usage
		if ScanUsage(body, &u); u.Cached != 8 {
			b.Fatal(u)
		}
	}
}
