// SPDX-License-Identifier: Apache-2.0

package openai

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// bodies are texts of every kind that a client may send.
var bodies = []string{
	``, ` `, `{}`, `[]`, `null`, `7`, `"x"`, `{`, `{"a":1,}`, `{"a" 1}`, `{"model":"m"} x`, "\ufeff{}", `{"model":"m","prompt":"a"`,
	`{"model":"m","messages":[{"role":"user","content":"hi"}]}`,
	`{"model":"m","messages":[{"role":"user","content":"hi"},{"role":"assistant","content":null,"tool_calls":[{"id":"1"}]},{"role":"tool","content":"4"}],"stream":true,"stream_options":{"include_usage":true},"tools":[{"type":"function"}],"temperature":0.5}`,
	`{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url","image_url":{"url":"x"}}]}],"n":3,"max_tokens":7}`,
	`{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"a"},"b"]}],"max_completion_tokens":9,"user":"u","cache_salt":"s"}`,
	`{"model":"m","messages":[{"content":[{"text":"a"}]}]}`, `{"model":"m","messages":[7,"x",null]}`, `{"model":"m","messages":"hi"}`, `{"model":"m","messages":{}}`, `{"model":"m","messages":[]}`, `{"model":"m","messages":null}`,
	`{"model":"m","prompt":"a \"quoted\" \u00e9 \ud83d\ude00 text"}`, `{"model":"m","prompt":"\ud83d"}`, `{"model":"m","prompt":["a","b"]}`, `{"model":"m","prompt":[1,2,3]}`, `{"model":"m","prompt":[[1,2],[3]]}`, `{"model":"m","prompt":[]}`, `{"model":"m","prompt":[-1]}`, `{"model":"m","prompt":[1.5]}`, `{"model":"m","prompt":[1,"a"]}`, `{"model":"m","prompt":[[1,"a"],[2]]}`, `{"model":"m","prompt":["a",[1]]}`, `{"model":"m","prompt":[4294967296]}`, `{"model":"m","prompt":{}}`, `{"model":"m","prompt":7}`, `{"model":"m","prompt":true}`, `{"model":"m","prompt":null}`, `{"model":"m","prompt":""}`,
	`{"model":"m","prompt":"a","suffix":"b"}`, `{"model":"m","prompt":"a","suffix":""}`, `{"model":"m","prompt":"a","truncate_prompt_tokens":5}`, `{"model":"m","prompt":null,"prompt_embeds":["AA=="]}`, `{"model":"m","prompt_embeds":[]}`, `{"model":"m","prompt":"a","extra_key":"k"}`,
	`{"model":7,"prompt":"a"}`, `{"model":null,"prompt":"a"}`, `{"model":["m"],"prompt":"a"}`, `{"prompt":"a"}`, `{"model":"a","model":"b","prompt":"x","prompt":[5]}`, `{"mod\u0065l":"m","prompt":"a"}`, `{"\ud83d":1,"model":"m","prompt":"a"}`, `{"model":"\ud83d","prompt":"a"}`,
	`{"model":"m","input":"a"}`, `{"model":"m","input":["a","b"]}`, `{"model":"m","input":[1]}`, `{"model":"m","input":7}`,
	`{"text":"a","sampling_params":{"max_new_tokens":4,"n":2},"stream":true}`, `{"input_ids":[1,2],"lora_path":"l","data_parallel_rank":1}`, `{"text":["a","b"],"lora_path":["x",null]}`, `{"text":"a","image_data":"x"}`, `{"text":"a","image_data":null}`, `{"input_ids":[[1],[2,3]]}`, `{"input_ids":"a"}`,
	`{"tokens":[1,2,3]}`, `{"model":"m","messages":[{"role":"user","content":"x"}],"input_ids":[4,5]}`, `{"model":"m","input_ids":[4,5],"messages":[{"role":"user","content":"x"}]}`,
	`{"model":"m","prompt":"a","n":0}`, `{"model":"m","prompt":"a","n":-1}`, `{"model":"m","prompt":"a","n":"2"}`, `{"model":"m","prompt":"a","n":1e3}`, `{"model":"m","prompt":"a","max_tokens":99999999999}`, `{"model":"m","prompt":"a","stream":"true"}`, `{"model":"m","prompt":"a","stream":1}`, `{"model":"m","prompt":"a","stream":null}`, `{"model":"m","prompt":"a","stream_options":7}`, `{"model":"m","prompt":"a","data_parallel_rank":"1"}`, `{"model":"m","prompt":"a","data_parallel_rank":null}`,
	"{\"model\":\"\xff\",\"prompt\":\"a\"}", "{\"x\":\"\xff\",\"model\":\"m\",\"prompt\":\"a\"}", "{\"model\":\"m\",\"prompt\":\"a\x00\"}", "{\"model\":\"m\",\"prompt\":\"a\nb\"}", `{"model":"m","prompt":NaN}`,
	`{"x":` + strings.Repeat("[", 511) + strings.Repeat("]", 511) + `,"model":"m","prompt":"a"}`, `{"x":` + strings.Repeat("[", 512) + strings.Repeat("]", 512) + `,"model":"m","prompt":"a"}`, strings.Repeat("[", 100_000),
	`{"model":"m","messages":[{"role":"user","content":"x"}],"reasoning_effort":"high"}`, `{"model":"m","messages":[{"role":"user","content":"x"}],"documents":[]}`, `{"model":"m","messages":[{"role":"user","content":"x"}],"chat_template_kwargs":{"a":1},"add_generation_prompt":false}`,
}

// oracle says of a body what the package says, read with encoding/json.
type oracle struct {
	Model, User, Salt  string
	Stream, UsageInSSE bool
	Form               Form
	Prompts            int
	Tokens             []uint32
	Text               string
	Rank, MaxTokens, N int
	Multimodal         bool
	Turns              int
	code, param        string // of the refusal
}

func levels(body []byte) (deepest int) {
	depth, in := 0, false
	for i := 0; i < len(body); i++ {
		switch c := body[i]; {
		case in && c == '\\':
			i++
		case c == '"':
			in = !in
		case in:
		case c == '{' || c == '[':
			depth++
			deepest = max(deepest, depth)
		case c == '}' || c == ']':
			depth--
		}
	}
	return deepest
}

func halves(raw []byte) bool {
	var s string
	if json.Unmarshal(raw, &s) != nil {
		return false
	}
	literal := strings.Count(string(raw), "�") + strings.Count(strings.ToLower(string(raw)), `\ufffd`)
	return strings.Count(s, "�") > literal
}

func ask(kind Kind, body []byte) (o oracle) {
	o = oracle{Rank: -1, N: 1}
	if !json.Valid(body) || !utf8.Valid(body) || levels(body) > maxDepth {
		return oracle{code: "invalid_json"}
	}
	m := map[string]json.RawMessage{}
	if body = bytes.TrimSpace(body); body[0] != '{' || json.Unmarshal(body, &m) != nil {
		return oracle{code: "invalid_type"}
	}
	text := func(name string, into *string) {
		if raw := m[name]; len(raw) > 0 && raw[0] == '"' && !halves(raw) {
			_ = json.Unmarshal(raw, into)
		}
	}
	number := func(name string, into *int, least int) {
		var v int64
		if raw := m[name]; len(raw) > 0 && raw[0] != 'n' && raw[0] != '"' && string(raw) != "-0" && json.Unmarshal(raw, &v) == nil && v >= int64(least) && v <= maxInt {
			*into = int(v)
		}
	}
	truth := func(raw json.RawMessage) bool {
		return slices.Contains([]string{"true", "1", `"true"`, `"True"`, `"1"`}, string(raw))
	}
	if raw := m["model"]; len(raw) > 0 && raw[0] != '"' && raw[0] != 'n' {
		return oracle{code: "invalid_type", param: "model"}
	}
	text("model", &o.Model)
	text("user", &o.User)
	text("cache_salt", &o.Salt)
	o.Stream = truth(m["stream"])
	var opts map[string]json.RawMessage
	if json.Unmarshal(m["stream_options"], &opts) == nil {
		o.UsageInSSE = truth(opts["include_usage"])
	}
	number("data_parallel_rank", &o.Rank, 0)
	number("n", &o.N, 1)
	names := map[Kind]string{Completion: "prompt", Embedding: "input", Generate: "text", Detokenize: "tokens", Chat: "messages"}
	o.prompt(kind, m, names[kind])
	return o
}

// prompt reads the prompt; a body's further rules are left to the table.
func (o *oracle) prompt(kind Kind, m map[string]json.RawMessage, name string) {
	raw := m[name]
	switch {
	case len(raw) == 0 || string(raw) == "null":
		o.code = "?"
		return
	case kind == Chat && raw[0] != '[', kind == Detokenize && raw[0] != '[', raw[0] != '[' && raw[0] != '"':
		*o = oracle{code: "invalid_type", param: name}
		return
	}
	var texts []json.RawMessage
	_ = json.Unmarshal(raw, &texts)
	if kind == Chat {
		o.Form, o.Prompts, o.Turns = Messages, 1, len(texts)
		for _, t := range texts {
			var msg map[string]json.RawMessage
			var parts []json.RawMessage
			if json.Unmarshal(t, &msg) != nil || json.Unmarshal(msg["content"], &parts) != nil {
				continue
			}
			for _, p := range parts {
				var part map[string]json.RawMessage
				if p[0] == '"' {
					continue
				}
				_ = json.Unmarshal(p, &part)
				if !slices.Contains([]string{`"text"`, `"input_text"`, `"output_text"`, `"refusal"`, `"thinking"`, `"reasoning"`}, string(part["type"])) {
					o.Multimodal = true
				}
			}
		}
		return
	}
	first := raw
	o.Prompts = 1
	if raw[0] == '[' {
		if len(texts) == 0 || texts[0][0] != '"' && texts[0][0] != '[' {
			o.ids(raw)
			return
		}
		first, o.Prompts = texts[0], len(texts)
	}
	if first[0] == '[' {
		n := o.Prompts
		o.ids(first)
		o.Prompts = n
		return
	}
	if !halves(first) {
		o.Form = Text
		_ = json.Unmarshal(first, &o.Text)
	}
}

func (o *oracle) ids(raw json.RawMessage) {
	var list []json.RawMessage
	_ = json.Unmarshal(raw, &list)
	o.Prompts = 1
	if len(list) == 0 {
		return
	}
	var ids []uint32
	for _, r := range list {
		if string(r) == "null" || string(r) == "-0" {
			return
		}
	}
	if json.Unmarshal(raw, &ids) == nil && len(ids) > 0 {
		o.Form, o.Tokens = IDs, ids
	}
}

func compare(kind Kind, body []byte) error {
	var c Call
	err := Parse(kind, body, &c)
	want := ask(kind, body)
	e, refused := errors.AsType[*Error](err)
	if err != nil && !refused {
		return fmt.Errorf("not of the package: %w", err)
	}
	if refused && (e.Status != 400 || !json.Valid(e.AppendJSON(nil)) || strings.ContainsAny(e.Message, "\r\n")) {
		return fmt.Errorf("a refusal in another shape: %s", e.AppendJSON(nil))
	}
	switch {
	case want.code == "?": // the oracle knows one form of each kind alone
		return nil
	case want.code != "" && (!refused || e.Code != want.code || want.param != "" && e.Param != want.param):
		return fmt.Errorf("got %w, want %s of %q", orNone(err), want.code, want.param)
	case want.code != "":
		return nil
	case refused:
		return fmt.Errorf("refused: %w", err)
	}
	got := oracle{
		Model: c.Model, User: c.User, Salt: c.Salt, Stream: c.Stream, UsageInSSE: c.UsageInSSE,
		Form: c.Form, Prompts: c.Prompts, Text: string(c.Text), Rank: c.Rank, N: c.N, Multimodal: c.Multimodal, Turns: len(c.turns),
	}
	if c.Form == IDs {
		got.Tokens = append([]uint32{}, c.Tokens...)
	}
	if kind == Generate { // n stands elsewhere
		want.N = got.N
	}
	m := map[string]json.RawMessage{}
	_ = json.Unmarshal(body, &m)
	for _, other := range []string{"prompt_embeds", "input_embeds", "input_ids", "image_data", "audio_data", "video_data", "messages"} {
		if _, ok := m[other]; ok && (kind != Chat || other != "messages") {
			return spliced(&c) // what these do is in the table
		}
	}
	if len(want.Tokens) == 0 && len(got.Tokens) == 0 {
		want.Tokens, got.Tokens = nil, nil
	}
	if want.Form == NoPrompt { // how many prompts make no sense is nobody's question
		want.Prompts = got.Prompts
	}
	if !reflect.DeepEqual(got, want) {
		return fmt.Errorf("got %+v, want %+v", got, want)
	}
	for _, t := range c.turns {
		if !json.Valid(body[t.From:t.To]) {
			return fmt.Errorf("a message is %q", body[t.From:t.To])
		}
	}
	return spliced(&c)
}

func orNone(err error) error {
	if err == nil {
		return errors.New("no refusal")
	}
	return err
}

// spliced holds a rank that is put into a body against one that is put into its values.
func spliced(c *Call) error {
	var got, want map[string]json.RawMessage
	b := c.AppendWithRank(nil, 5)
	if err := json.Unmarshal(b, &got); err != nil {
		return fmt.Errorf("with a rank %q: %w", b, err)
	}
	if err := json.Unmarshal(c.Body, &want); err != nil {
		return err
	}
	want["data_parallel_rank"] = []byte("5")
	if !reflect.DeepEqual(got, want) {
		return fmt.Errorf("with a rank it is %q", b)
	}
	return nil
}

// TestParseOracle reads each body as each kind, and with encoding/json.
func TestParseOracle(t *testing.T) {
	good := 0
	for _, body := range bodies {
		for kind := Chat; kind <= Detokenize; kind++ {
			if kind == Tokenize {
				continue
			}
			if err := compare(kind, []byte(body)); err != nil {
				t.Errorf("kind %d: %.200q: %v", kind, body, err)
			}
			if ask(kind, []byte(body)).code == "" {
				good++
			}
		}
	}
	if good < 40 {
		t.Errorf("%d bodies are good: the table has lost one side", good)
	}
}

// FuzzParse is the same over any bytes.
func FuzzParse(f *testing.F) {
	for i, body := range bodies {
		if len(body) < 2_000 {
			f.Add(uint8(i), []byte(body))
		}
	}
	f.Fuzz(func(t *testing.T, kind uint8, body []byte) {
		k := Kind(kind % 6)
		if k == Tokenize {
			k = Chat
		}
		if err := compare(k, body); err != nil {
			t.Errorf("kind %d: %q: %v", k, body, err)
		}
	})
}

// TestParseTable is what the oracle does not know.
func TestParseTable(t *testing.T) {
	for _, c := range []struct {
		kind Kind
		body string
		want string
	}{
		{Chat, `{"messages":[{"role":"user","content":"x"}],"input_ids":[4,5]}`, `form 2 prompts 1 tokens [4 5]`},
		{Chat, `{"input_ids":[4,5],"messages":[{"role":"user","content":"x"}]}`, `form 2 prompts 1 tokens [4 5]`},
		{Chat, `{"model":"m"}`, `missing_required_parameter messages`},
		{Completion, `{"model":"m"}`, `missing_required_parameter prompt`},
		{Completion, `{"model":"m","prompt":null}`, `missing_required_parameter prompt`},
		{Completion, `{"prompt":null,"prompt_embeds":["AA=="]}`, `form 4 prompts 0 tokens [] embeddings`},
		{Completion, `{"prompt":"a","suffix":"b"}`, `form 1 prompts 1 tokens [] suffix`},
		{Completion, `{"prompt":"a","suffix":""}`, `form 1 prompts 1 tokens []`},
		{Completion, `{"prompt":"a","truncate_prompt_tokens":1}`, `form 1 prompts 1 tokens [] truncated`},
		{Completion, `{"prompt":"a","extra_key":"x"}`, `form 1 prompts 1 tokens [] extra_key`},
		{Completion, `{"prompt":"a","reasoning_effort":"low"}`, `form 1 prompts 1 tokens []`},
		{Chat, `{"messages":[{}],"reasoning_effort":"low"}`, `form 3 prompts 1 tokens [] template_fields`},
		{Chat, `{"messages":[{}],"documents":null}`, `form 3 prompts 1 tokens []`},
		{Generate, `{"text":["a","b"],"lora_path":["l",null]}`, `form 1 prompts 2 tokens [] odd_prompt`},
		{Generate, `{"input_ids":[[7],[2,3]],"lora_path":"l"}`, `form 2 prompts 2 tokens [7] lora l`},
		{Generate, `{"text":"a","image_data":"x"}`, `form 1 prompts 1 tokens [] items`},
		{Generate, `{"text":"a","image_data":[]}`, `form 1 prompts 1 tokens []`},
		{Generate, `{"model":"m"}`, `missing_required_parameter text`},
		{Generate, `{"text":"a","sampling_params":{"n":3,"max_new_tokens":9}}`, `form 1 prompts 1 tokens [] n 3 most 9`},
		{Embedding, `{"model":"m","messages":[{}]}`, `form 3 prompts 1 tokens []`},
		{Embedding, `{"model":"m"}`, `missing_required_parameter input`},
		{Tokenize, `{"model":"m"}`, `missing_required_parameter prompt`},
		{Tokenize, `{"messages":[]}`, `form 3 prompts 1 tokens []`},
		{Detokenize, `{"model":"m"}`, `missing_required_parameter tokens`},
	} {
		var call Call
		var got string
		if err := Parse(c.kind, []byte(c.body), &call); err != nil {
			e, _ := errors.AsType[*Error](err)
			got = e.Code + " " + e.Param
		} else {
			got = fmt.Sprintf("form %d prompts %d tokens %v", call.Form, call.Prompts, call.Tokens)
			for _, word := range []string{call.Unsure} {
				if word != "" {
					got += " " + word
				}
			}
			if call.LoRA != "" {
				got += " lora " + call.LoRA
			}
			if call.Multimodal {
				got += " items"
			}
			if call.N != 1 || call.MaxTokens != 0 {
				got += fmt.Sprintf(" n %d most %d", call.N, call.MaxTokens)
			}
		}
		if got != c.want {
			t.Errorf("%s: got %s, want %s", c.body, got, c.want)
		}
	}
}

// TestOptions: what may change a chat's text is kept, what is about the answer is not.
func TestOptions(t *testing.T) {
	var c Call
	body := `{"model":"m", "tools" : [1], "temperature":1,"messages":[{}],"chat_template_kwargs":{"x":2},"unheard_of":3,"stream":true,"user":"u","cache_salt":"s","seed":1}`
	if err := Parse(Chat, []byte(body), &c); err != nil {
		t.Fatal(err)
	}
	if got, want := string(c.AppendOptions(nil)), `"tools" : [1],"chat_template_kwargs":{"x":2},"unheard_of":3,`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if err := Parse(Completion, []byte(`{"prompt":"a","add_special_tokens":false,"tools":[1]}`), &c); err != nil {
		t.Fatal(err)
	}
	if got, want := string(c.AppendOptions(nil)), `"add_special_tokens":false,`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// TestParseAllocations: a call that is used again costs none, but for a new name.
func TestParseAllocations(t *testing.T) {
	for _, body := range []struct {
		kind Kind
		text string
	}{
		{Chat, bodies[14]},
		{Chat, bodies[15]},
		{Completion, `{"model":"m","prompt":"a \"b\" c","stream":true,"user":"u","data_parallel_rank":1}`},
		{Completion, `{"model":"m","prompt":[` + strings.Repeat("12345,", 999) + `1],"cache_salt":"s"}`},
		{Generate, `{"text":"a","sampling_params":{"max_new_tokens":4,"n":2},"lora_path":"l"}`},
	} {
		var c Call
		if n := testing.AllocsPerRun(100, func() {
			if err := Parse(body.kind, []byte(body.text), &c); err != nil {
				t.Fatal(err)
			}
		}); n > 1 { // the bytes of the text
			t.Errorf("%.100s: %v allocations", body.text, n)
		}
	}
}

func BenchmarkParse(b *testing.B) {
	for name, body := range map[string]string{
		"small": `{"model":"m","messages":[{"role":"user","content":"hello there"}],"stream":true,"max_tokens":16,"temperature":0.7}`,
		"8KB":   `{"model":"m","messages":[{"role":"system","content":"` + strings.Repeat("some words of a text. ", 180) + `"},{"role":"user","content":"` + strings.Repeat("a question\\n", 360) + `"}],"stream":true}`,
		"ids":   `{"model":"m","prompt":[` + strings.Repeat("12345,", 4095) + `1]}`,
	} {
		b.Run(name, func(b *testing.B) {
			kind := Chat
			if name == "ids" {
				kind = Completion
			}
			var c Call
			text := []byte(body)
			b.SetBytes(int64(len(text)))
			b.ReportAllocs()
			for b.Loop() {
				if err := Parse(kind, text, &c); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
