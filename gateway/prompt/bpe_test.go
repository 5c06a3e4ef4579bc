// SPDX-License-Identifier: Apache-2.0

package prompt

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"kindex/gateway/fleet"
	"kindex/gateway/openai"
)

// bpe is a tokenizer of bytes and merges.
type bpe struct {
	ranks map[[2]uint32]uint32 // a pair to the token it becomes; a lower one first
	words bool                 // text is cut before spaces first: no merge crosses that
}

// train makes n merges of the most frequent pairs of text. words keeps them within
// words; else they cross whatever stands there.
func train(text string, n int, words bool) *bpe {
	b := &bpe{ranks: map[[2]uint32]uint32{}, words: words}
	var parts [][]uint32
	for _, w := range b.cut(text) {
		var p []uint32
		for i := range len(w) {
			p = append(p, uint32(w[i]))
		}
		parts = append(parts, p)
	}
	for i := range n {
		count := map[[2]uint32]int{}
		var best [2]uint32
		for _, p := range parts {
			for k := 1; k < len(p); k++ {
				pair := [2]uint32{p[k-1], p[k]}
				count[pair]++
				if c, d := count[pair], count[best]; c > d || c == d && (pair[0] < best[0] || pair[0] == best[0] && pair[1] < best[1]) {
					best = pair
				}
			}
		}
		if count[best] < 2 {
			break
		}
		id := uint32(256 + i)
		b.ranks[best] = id
		for k := range parts {
			parts[k] = merge(parts[k], best, id)
		}
	}
	return b
}

func merge(p []uint32, pair [2]uint32, id uint32) []uint32 {
	out := p[:0]
	for i := 0; i < len(p); i++ {
		if i+1 < len(p) && p[i] == pair[0] && p[i+1] == pair[1] {
			out = append(out, id)
			i++
			continue
		}
		out = append(out, p[i])
	}
	return out
}

func (b *bpe) cut(text string) []string {
	if !b.words {
		return []string{text}
	}
	var out []string
	from := 0
	for i := 1; i < len(text); i++ {
		if text[i] == ' ' && text[i-1] != ' ' || text[i] == '\n' || text[i-1] == '\n' {
			out = append(out, text[from:i])
			from = i
		}
	}
	return append(out, text[from:])
}

// marks are special tokens: they stand for themselves, whatever is beside them.
var marks = []string{"<|im_start|>", "<|im_end|>", "<s>"}

func (b *bpe) encode(text string) (out []uint32) {
	for text != "" {
		at, which := len(text), -1
		for i, m := range marks {
			if k := strings.Index(text, m); k >= 0 && k < at {
				at, which = k, i
			}
		}
		if at > 0 {
			for _, w := range b.cut(text[:at]) {
				out = append(out, b.word(w)...)
			}
		}
		if which < 0 {
			return out
		}
		out = append(out, uint32(1_000_000+which))
		text = text[at+len(marks[which]):]
	}
	return out
}

func (b *bpe) word(w string) []uint32 {
	var p []uint32
	for i := range len(w) {
		p = append(p, uint32(w[i]))
	}
	for {
		var pair [2]uint32
		best := ^uint32(0)
		for k := 1; k < len(p); k++ {
			if id, ok := b.ranks[[2]uint32{p[k-1], p[k]}]; ok && id < best {
				best, pair = id, [2]uint32{p[k-1], p[k]}
			}
		}
		if best == ^uint32(0) {
			return p
		}
		p = merge(p, pair, best)
	}
}

// said is a message of a chat.
type said struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// asked is what a question has.
type asked struct {
	Model    string
	Prompt   *string
	Messages []said
	Special  *bool           `json:"add_special_tokens"`
	Tools    json.RawMessage `json:"tools"`
}

// fake answers as an engine does, with a tokenizer and a template of the test's.
type fake struct {
	encode   func(string) []uint32
	template func([]said) string

	calls, bytes atomic.Int64
	mu           sync.Mutex
	fail         func(w *fleet.Worker, path string) (status int, answer string, err error) // guarded by mu; nil: none
	hold         chan struct{}                                                             // nil: answers at once
}

func (f *fake) Post(ctx context.Context, w *fleet.Worker, path string, body []byte, _ int) (int, []byte, error) {
	f.calls.Add(1)
	f.bytes.Add(int64(len(body)))
	if f.hold != nil {
		select {
		case <-f.hold:
		case <-ctx.Done():
			return 0, nil, ctx.Err()
		}
	}
	f.mu.Lock()
	fail := f.fail
	f.mu.Unlock()
	if fail != nil {
		if status, answer, err := fail(w, path); status != 0 || err != nil {
			return status, []byte(answer), err
		}
	}
	var q asked
	if err := json.Unmarshal(body, &q); err != nil {
		return 0, nil, errors.New("a question that is not JSON: " + string(body))
	}
	tokens := f.tokens(&q)
	out := fmt.Appendf(nil, `{"count":%d,"max_model_len":4096,"tokens":[`, len(tokens))
	for i, t := range tokens {
		if i > 0 {
			out = append(out, ',')
		}
		out = fmt.Appendf(out, "%d", t)
	}
	return 200, append(out, "]}"...), nil
}

func (f *fake) tokens(q *asked) []uint32 {
	if q.Prompt != nil {
		text := *q.Prompt
		if q.Special == nil || *q.Special {
			text = "<s>" + text
		}
		return f.encode(text)
	}
	return f.encode(string(q.Tools) + f.template(q.Messages))
}

// chatML is the template that most have.
func chatML(all []said) string {
	var b strings.Builder
	if len(all) > 0 && all[0].Role != "system" {
		b.WriteString("<|im_start|>system\nYou are helpful.<|im_end|>\n")
	}
	for _, m := range all {
		b.WriteString("<|im_start|>" + m.Role + "\n" + m.Content + "<|im_end|>\n")
	}
	return b.String() + "<|im_start|>assistant\n"
}

// forgetful leaves out what was thought before the last answer.
func forgetful(all []said) string {
	last := 0
	for i, m := range all {
		if m.Role == "user" {
			last = i
		}
	}
	out := make([]said, len(all))
	for i, m := range all {
		if m.Role == "assistant" && i < last {
			if _, after, ok := strings.Cut(m.Content, "</think>"); ok {
				m.Content = after
			}
		}
		out[i] = m
	}
	return chatML(out)
}

// counting tells at its begin how many messages there are.
func counting(all []said) string {
	return fmt.Sprintf("<|im_start|>system\n%d messages<|im_end|>\n", len(all)) + chatML(all)
}

// late changes its begin once a conversation is long.
func late(all []said) string {
	if len(all) > 14 {
		return "<|im_start|>system\nBe short.<|im_end|>\n" + chatML(all)
	}
	return chatML(all)
}

// unmarked has nothing between messages that keeps them apart.
func unmarked(all []said) string {
	var b strings.Builder
	for _, m := range all {
		b.WriteString(m.Role + ": " + m.Content + "\n")
	}
	return b.String() + "assistant: "
}

// poolOf returns a pool of ready workers.
func poolOf(t testing.TB, workers, block int) *fleet.Pool {
	t.Helper()
	var all []*fleet.Worker
	for i := range workers {
		w := fleet.NewWorker(fmt.Sprint(i), &fleet.Spec{URL: fmt.Sprintf("http://127.0.0.1:%d", 9_000+i), Models: []string{"m"}, Ranks: 1, Instance: fmt.Sprint(i), BlockSize: block})
		w.SetState(fleet.Ready)
		all = append(all, w)
	}
	return fleet.NewPool("m", 1, all)
}

// words makes text of few words, so that pairs repeat.
func words(rng *rand.Rand, n int) string {
	list := []string{"the", "cat", "sat", "on", "a", "mat", "and", "then", "it", "thecat", "ss", "sss", "\n", "\n\n", "  ", "12", "345", "é", "世界", ",", ".", "aaaa", "aaa"}
	var b strings.Builder
	for b.Len() < n {
		b.WriteString(list[rng.IntN(len(list))])
		if rng.IntN(4) > 0 {
			b.WriteByte(' ')
		}
	}
	return b.String()
}

// parsed returns the call of a body.
func parsed(t testing.TB, kind openai.Kind, body string) *openai.Call {
	t.Helper()
	c := new(openai.Call)
	if err := openai.Parse(kind, []byte(body), c); err != nil {
		t.Fatalf("%.200s: %v", body, err)
	}
	return c
}
