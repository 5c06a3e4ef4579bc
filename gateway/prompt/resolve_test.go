// SPDX-License-Identifier: Apache-2.0

package prompt

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"kindex/gateway/fleet"
	"kindex/gateway/openai"
)

// bytewise is a tokenizer of bytes alone.
func bytewise(text string) (out []uint32) {
	for i := range len(text) {
		out = append(out, uint32(text[i]))
	}
	return out
}

func newFake() *fake { return &fake{encode: bytewise, template: chatML} }

// TestResolveForms: each form of a prompt, and the reason where it has no tokens.
func TestResolveForms(t *testing.T) {
	f := newFake()
	r := New(Options{Client: f, Budget: time.Minute})
	defer r.Close()
	pool := poolOf(t, 1, 16)
	long := strings.Repeat("text ", 8)
	for _, c := range []struct {
		kind openai.Kind
		body string
		want string // tokens as text, or a reason
		lora string
		salt string
	}{
		{openai.Completion, `{"model":"m","prompt":[104,105],"cache_salt":"s"}`, "given hi", "", "s"},
		{openai.Completion, `{"model":"tuned","prompt":[[104,105],[1]]}`, "given hi", "tuned", ""},
		{openai.Completion, `{"model":"m","prompt":"` + long + `"}`, "asked <s>" + long, "", ""},
		{openai.Completion, `{"model":"m","prompt":"` + long + `","temperature":1}`, "cached <s>" + long, "", ""},
		{openai.Completion, `{"model":"m","prompt":"` + long + `","add_special_tokens":false}`, "asked " + long, "", ""},
		{openai.Completion, `{"model":"tuned","prompt":"` + long + `"}`, "asked <s>" + long, "tuned", ""},
		{openai.Completion, `{"model":"m","prompt":["` + long + `","b"]}`, "cached <s>" + long, "", ""},
		{openai.Completion, `{"model":"m","prompt":"\u00e9\n\"` + long + `"}`, "asked <s>é\n\"" + long, "", ""},
		{openai.Completion, `{"model":"m","prompt":"short"}`, Short, "", ""},
		{openai.Completion, `{"model":"m","prompt":""}`, NoPrompt, "", ""},
		{openai.Completion, `{"model":"m","prompt":[]}`, openai.Odd, "", ""},
		{openai.Completion, `{"model":"m","prompt":"` + long + `","truncate_prompt_tokens":3}`, openai.Truncated, "", ""},
		{openai.Completion, `{"model":"m","prompt_embeds":["x"]}`, openai.Embedded, "", ""},
		{openai.Embedding, `{"model":"m","input":"` + long + `"}`, "cached <s>" + long, "", ""},
		{openai.Embedding, `{"model":"m","messages":[{"role":"user","content":"hi"}]}`, openai.Odd, "", ""},
		{openai.Generate, `{"text":"` + long + `","lora_path":"l"}`, "asked <s>" + long, "l", ""},
		{openai.Generate, `{"input_ids":[104,105],"image_data":"x"}`, Items, "", ""},
		{openai.Generate, `{"text":"` + long + `","image_data":"x"}`, Items, "", ""},
		{openai.Generate, `{"text":"` + long + `","extra_key":"x"}`, openai.Isolated, "", ""},
		{openai.Chat, `{"model":"m","messages":[{"role":"user","content":"hi"}]}`, "asked " + chatML([]said{{"user", "hi"}}), "", ""},
		{openai.Chat, `{"model":"m","messages":[{"role":"user","content":"hi"}],"user":"u","stream":true}`, "cached " + chatML([]said{{"user", "hi"}}), "", ""},
		{openai.Chat, `{"model":"m","messages":[{"role":"user","content":"hi"}],"tools":[7]}`, "asked [7]" + chatML([]said{{"user", "hi"}}), "", ""},
		{openai.Chat, `{"model":"m","messages":[]}`, NoPrompt, "", ""},
		{openai.Chat, `{"model":"m","messages":[{"role":"user","content":"hi"}],"reasoning_effort":"low"}`, openai.Templated, "", ""},
		{openai.Chat, `{"model":"m","messages":[{"role":"user","content":[{"type":"image_url"}]}]}`, Items, "", ""},
	} {
		var p Prompt
		r.Resolve(t.Context(), pool, parsed(t, c.kind, c.body), &p)
		got := p.Why
		if p.Source != None {
			var text []byte
			for _, tok := range p.Tokens {
				text = append(text, byte(tok))
			}
			got = p.Source.String() + " " + string(text)
		}
		if got != c.want || p.LoRA != c.lora || p.Salt != c.salt {
			t.Errorf("%s:\ngot  %q, adapter %q, salt %q\nwant %q, %q, %q", c.body, got, p.LoRA, p.Salt, c.want, c.lora, c.salt)
		}
	}
	s := r.Stats()
	var skipped uint64
	for _, n := range s.Skipped {
		skipped += n
	}
	if skipped != s.Resolved[None] || s.Resolved[Given] != 2 || s.Resolved[Cached] != 4 || s.Calls != s.Resolved[Asked] || s.Bytes == 0 {
		t.Errorf("counted %+v", s)
	}
}

// TestAdapterNames: an adapter has its own namespace, whatever it is asked for by.
func TestAdapterNames(t *testing.T) {
	r := New(Options{Client: newFake()})
	defer r.Close()
	all, some := poolOf(t, 1, 16), poolOf(t, 1, 16)
	some.Model, some.Base = "l", "m"
	for _, c := range []struct {
		pool        *fleet.Pool
		model, want string
	}{{all, "m", ""}, {all, "l", "l"}, {all, "m:l", "l"}, {some, "l", "l"}, {some, "m:l", "l"}} {
		var p Prompt
		r.Resolve(t.Context(), c.pool, parsed(t, openai.Completion, `{"model":"`+c.model+`","prompt":[1,2,3]}`), &p)
		if p.LoRA != c.want {
			t.Errorf("%s of the pool %s: adapter %q, want %q", c.model, c.pool.Model, p.LoRA, c.want)
		}
	}
}

// TestItems: of a chat with an image, what stands before it is known.
func TestItems(t *testing.T) {
	f := newFake()
	r := New(Options{Client: f, Budget: time.Minute})
	defer r.Close()
	body := `{"model":"m","messages":[{"role":"system","content":"rules"},{"role":"user","content":[{"type":"text","text":"see"},{"type":"image_url","image_url":{"url":"http://x/y.png"}}]},{"role":"assistant","content":"nice"}]}`
	var p Prompt
	r.Resolve(t.Context(), poolOf(t, 1, 16), parsed(t, openai.Chat, body), &p)
	text := "<|im_start|>system\nrules<|im_end|>\n<|im_start|>user\n"
	if want := bytewise(text[:len(text)-2]); !slices.Equal(p.Tokens, want) || !p.Partial || p.Source != Asked {
		t.Errorf("got %d tokens from %v (%s), partial %v, want %d", len(p.Tokens), p.Source, p.Why, p.Partial, len(want))
	}
	r.Resolve(t.Context(), poolOf(t, 1, 16), parsed(t, openai.Chat, body), &p)
	if p.Source != Cached || !p.Partial || f.calls.Load() != 2 {
		t.Errorf("once more: from %v, partial %v, %d questions", p.Source, p.Partial, f.calls.Load())
	}
	// Whoever asks for these turns alone gets another answer.
	r.Resolve(t.Context(), poolOf(t, 1, 16), parsed(t, openai.Chat, `{"model":"m","messages":[{"role":"system","content":"rules"}]}`), &p)
	if p.Source != Asked || p.Partial || len(p.Tokens) != len(chatML([]said{{"system", "rules"}})) {
		t.Errorf("the turns alone: %d tokens from %v, partial %v", len(p.Tokens), p.Source, p.Partial)
	}
}

const someText = `{"model":"m","prompt":"a text that is long enough"}`

// TestOneQuestion: who asks the same at once shares one question.
func TestOneQuestion(t *testing.T) {
	f := newFake()
	f.hold = make(chan struct{})
	r := New(Options{Client: f, Budget: time.Minute})
	defer r.Close()
	pool := poolOf(t, 4, 16)
	var all sync.WaitGroup
	var bad sync.Map
	for i := range 50 {
		c := parsed(t, openai.Completion, someText)
		all.Go(func() {
			var p Prompt
			r.Resolve(t.Context(), pool, c, &p)
			if len(p.Tokens) != len("<s>a text that is long enough") {
				bad.Store(i, p.Why)
			}
		})
	}
	for r.Stats().Shared < 49 {
		time.Sleep(time.Millisecond)
	}
	close(f.hold)
	all.Wait()
	bad.Range(func(k, v any) bool { t.Errorf("%v: %v", k, v); return true })
	if n := f.calls.Load(); n != 1 {
		t.Errorf("%d questions, want 1", n)
	}
}

// TestBudget: whoever cannot wait goes, and the answer is kept for the next one.
func TestBudget(t *testing.T) {
	f := newFake()
	f.hold = make(chan struct{})
	r := New(Options{Client: f, Budget: time.Millisecond, Waiting: 2})
	defer r.Close()
	pool := poolOf(t, 1, 16)
	c := parsed(t, openai.Completion, someText)
	var p Prompt
	if r.Resolve(t.Context(), pool, c, &p); p.Why != Late {
		t.Errorf("got %v, %s, want %s", p.Source, p.Why, Late)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	other := parsed(t, openai.Completion, `{"model":"m","prompt":"another text that is long enough"}`)
	if r.Resolve(gone, pool, other, &p); p.Why != Gone && p.Why != Late {
		t.Errorf("got %v, %s, want %s", p.Source, p.Why, Gone)
	}
	if r.Resolve(t.Context(), pool, parsed(t, openai.Completion, `{"model":"m","prompt":"a third text that is long enough"}`), &p); p.Why != Busy {
		t.Errorf("got %v, %s, want %s", p.Source, p.Why, Busy)
	}
	close(f.hold)
	r.idle()
	if r.Resolve(t.Context(), pool, c, &p); p.Source != Cached {
		t.Errorf("got %v, %s, want it kept", p.Source, p.Why)
	}
	none := New(Options{Client: f})
	defer none.Close()
	if none.Resolve(t.Context(), pool, c, &p); p.Why != Off {
		t.Errorf("without a budget: %v, %s", p.Source, p.Why)
	}
	if none.Resolve(t.Context(), pool, parsed(t, openai.Completion, `{"prompt":[1]}`), &p); p.Source != Given {
		t.Errorf("without a budget, token ids: %v, %s", p.Source, p.Why)
	}
}

// TestFaults: a worker that fails is left for a while, one that has no such thing for
// good, and one that is not ready is never asked.
func TestFaults(t *testing.T) {
	f := newFake()
	r := New(Options{Client: f, Budget: time.Minute})
	defer r.Close()
	pool := poolOf(t, 3, 16)
	pool.Workers[2].SetState(fleet.NotReady)
	var mu sync.Mutex
	hits := map[string]int{}
	set := func(answer func(w *fleet.Worker, path string) (int, string, error)) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.fail = func(w *fleet.Worker, path string) (int, string, error) {
			mu.Lock()
			defer mu.Unlock()
			hits[w.ID+path]++
			return answer(w, path)
		}
	}
	n := 0
	resolve := func(pool *fleet.Pool) (p Prompt) {
		n++
		r.Resolve(t.Context(), pool, parsed(t, openai.Completion, fmt.Sprintf(`{"model":"m","prompt":"a text that is long enough, number %d"}`, n)), &p)
		return p
	}
	set(func(w *fleet.Worker, _ string) (int, string, error) {
		if w.ID == "0" {
			return 0, "", errors.New("refused")
		}
		return 0, "", nil
	})
	for range 20 {
		if p := resolve(pool); p.Source != Asked {
			t.Fatalf("%v, %s", p.Source, p.Why)
		}
	}
	if hits["0/tokenize"] > 3 || hits["1/tokenize"] != 20 || hits["2/tokenize"] != 0 {
		t.Errorf("one refuses connections: %v", hits)
	}
	clear(hits)
	set(func(*fleet.Worker, string) (int, string, error) { return 404, `{"detail":"Not Found"}`, nil })
	bare := poolOf(t, 2, 16)
	for range 4 {
		if p := resolve(bare); p.Why != Unsupported {
			t.Errorf("no such path: %v, %s", p.Source, p.Why)
		}
	}
	for what, n := range hits {
		if n != 1 {
			t.Errorf("no such path: %s was asked %d times", what, n)
		}
	}
	set(func(_ *fleet.Worker, path string) (int, string, error) {
		if path == "/tokenize" {
			return 404, "", nil
		}
		return 0, "", nil
	})
	if p := resolve(poolOf(t, 1, 16)); p.Source != Asked {
		t.Errorf("the other path: %v, %s", p.Source, p.Why)
	}
	for _, answer := range []string{`{"tokens":[1,2],"count":3}`, `{"tokens":"x"}`, `{`, ``, `{"count":0}`, `[1]`} {
		set(func(*fleet.Worker, string) (int, string, error) { return 200, answer, nil })
		if p := resolve(poolOf(t, 1, 16)); p.Why != Unanswered {
			t.Errorf("%s: %v, %s", answer, p.Source, p.Why)
		}
	}
	for status, why := range map[int]string{400: Refused, 422: Refused, 500: Unanswered, 503: Unanswered, 429: Unanswered, 401: Unanswered} {
		set(func(*fleet.Worker, string) (int, string, error) { return status, "{}", nil })
		if p := resolve(poolOf(t, 1, 16)); p.Why != why {
			t.Errorf("status %d: %v, %s", status, p.Source, p.Why)
		}
	}
}

// TestChatless: an engine that tokenises text alone is not asked for every chat.
func TestChatless(t *testing.T) {
	f := newFake()
	f.fail = func(*fleet.Worker, string) (int, string, error) { return 400, `{"error":"prompt: missing"}`, nil }
	r := New(Options{Client: f, Budget: time.Minute})
	defer r.Close()
	pool := poolOf(t, 1, 16)
	var p Prompt
	for i := range 20 {
		r.Resolve(t.Context(), pool, parsed(t, openai.Chat, fmt.Sprintf(`{"messages":[{"role":"user","content":"%d"}]}`, i)), &p)
	}
	if f.calls.Load() != chatlessIn || p.Why != Unsupported {
		t.Errorf("%d questions, and then %s", f.calls.Load(), p.Why)
	}
}

// TestSpread: questions go to those who have the least to do, and to nobody in bad
// health while others are there.
func TestSpread(t *testing.T) {
	f := newFake()
	r := New(Options{Client: f, Budget: time.Minute})
	defer r.Close()
	pool := poolOf(t, 4, 16)
	pool.Workers[1].Steer(fleet.Wedged, true)
	l := pool.Workers[2].Holders[0].Take(fleet.Work{})
	defer l.Release()
	for range 200 {
		w, _, err := r.pick(pool, false, nil)
		if err != nil || w == pool.Workers[1] || w == pool.Workers[2] {
			t.Fatalf("%v, %v", w, err)
		}
	}
	for _, i := range []int{0, 2, 3} {
		pool.Workers[i].SetState(fleet.Draining)
	}
	if w, _, err := r.pick(pool, false, nil); w != pool.Workers[1] {
		t.Errorf("the last one: %v, %v", w, err)
	}
}

// TestConfirm: answers that tell other numbers end what led to them.
func TestConfirm(t *testing.T) {
	f := newFake()
	var log bytes.Buffer
	r := New(Options{Client: f, Budget: time.Minute, Log: slog.New(slog.NewTextHandler(&log, nil))})
	defer r.Close()
	pool := poolOf(t, 1, 16)
	var p Prompt
	for i := range 4 {
		c := parsed(t, openai.Completion, fmt.Sprintf(`{"model":"m","prompt":"a text that is long enough, number %d"}`, i))
		r.Resolve(t.Context(), pool, c, &p)
		want := Asked
		if i == 3 {
			want = None
		}
		if p.Source != want {
			t.Fatalf("%d: %v, %s", i, p.Source, p.Why)
		}
		r.Confirm(c, &p, openai.Usage{Known: true, Prompt: int64(len(p.Tokens) + 1)})
	}
	// Of several answers' usage nothing follows.
	several := parsed(t, openai.Completion, `{"model":"m","prompt":[1],"n":2}`)
	r.Confirm(several, &Prompt{Source: Asked, pool: r.state(pool, false)}, openai.Usage{Known: true, Prompt: 9})
	if p.Why != Disagrees || r.Stats().Mismatches != 3 || r.Stats().Entries != 0 || strings.Count(log.String(), "\n") != 1 {
		t.Errorf("%s, %+v, log %q", p.Why, r.Stats(), log.String())
	}
}

// TestCacheBound: the cache keeps to its bound, what is used stays.
func TestCacheBound(t *testing.T) {
	c := newCache(100_000)
	keys := make([]key, 0, 1_000)
	for i := range 1_000 {
		k := root(ofText, fmt.Append(nil, i))
		keys = append(keys, k)
		c.put(&entry{key: k, begin: key{n: -1}, tokens: make([]uint32, 500)})
		if c.get(keys[0]) == nil {
			t.Fatalf("what is used went at %d", i)
		}
		if n, used, _ := c.size(); used > 100_000 || int64(n)*2_256 != used {
			t.Fatalf("%d entries of %d bytes", n, used)
		}
	}
	if n, _, evicted := c.size(); n != 44 || evicted != 956 {
		t.Errorf("%d entries, %d evicted", n, evicted)
	}
	c.put(&entry{key: keys[1], begin: key{n: -1}, tokens: make([]uint32, 10_000)})
	if c.get(keys[1]) != nil {
		t.Error("what is larger than a quarter of all was kept")
	}
	for _, k := range keys {
		c.drop(k)
	}
	if n, used, _ := c.size(); n != 0 || used != 0 || c.newest != nil || c.oldest != nil || len(c.begins) != 0 {
		t.Errorf("%d entries of %d bytes are left", n, used)
	}
}

// TestResolveAllocations: what is kept costs none.
func TestResolveAllocations(t *testing.T) {
	f := newFake()
	r := New(Options{Client: f, Budget: time.Minute})
	defer r.Close()
	pool := poolOf(t, 1, 16)
	talk, _ := json.Marshal([]said{{"system", strings.Repeat("x", 2_000)}, {"user", "hi"}})
	for _, c := range []*openai.Call{
		parsed(t, openai.Completion, `{"prompt":[1,2,3]}`), parsed(t, openai.Completion, `{"prompt":"`+strings.Repeat("y", 3_000)+`"}`),
		parsed(t, openai.Chat, `{"messages":`+string(talk)+`,"tools":[1]}`),
	} {
		var p Prompt
		r.Resolve(t.Context(), pool, c, &p)
		n := 99.0
		for range 50 { // the least: the race detector has pools forget
			n = min(n, testing.AllocsPerRun(1, func() { r.Resolve(t.Context(), pool, c, &p) }))
		}
		if n > 0 {
			t.Errorf("%.40s: %v allocations, want none", c.Body, n)
		}
	}
}

func BenchmarkResolve(b *testing.B) {
	r := New(Options{Client: newFake(), Budget: time.Minute})
	defer r.Close()
	pool := poolOf(b, 1, 16)
	c := parsed(b, openai.Completion, `{"prompt":"`+strings.Repeat("some words. ", 700)+`"}`)
	var p Prompt
	r.Resolve(b.Context(), pool, c, &p)
	b.ReportAllocs()
	for b.Loop() {
		r.Resolve(b.Context(), pool, c, &p)
	}
}
