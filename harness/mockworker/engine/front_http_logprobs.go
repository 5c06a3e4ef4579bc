// SPDX-License-Identifier: Apache-2.0

// Before: front_http_answer.go and front_generate.go, which have tokens. After:
// nothing.

package engine

import (
	"math"
	"slices"
)

// scored is a token and its log-probability.
type scored struct {
	token uint32
	log   float64
}

// score makes up the probability of the n-th token of an answer, and most tokens that
// might have come in its stead, it first: there is no model that would know. Equal
// tokens in equal places have equal ones, and those of one place add up to less than
// 1.
func (t tokenizer) score(n int, token uint32, most int) (own float64, top []scored) {
	state := mix(uint64(n)<<32 ^ uint64(token))
	p := 0.5 + float64(state>>11)/(1<<53)*0.49
	left := 1 - p
	top = append(top, scored{token, math.Log(p)})
	for len(top) < min(most, int(t.vocabulary)-firstWord) {
		state = mix(state)
		other := firstWord + uint32(state%uint64(t.vocabulary-firstWord))
		if slices.ContainsFunc(top, func(s scored) bool { return s.token == other }) {
			continue
		}
		left /= 2
		top = append(top, scored{other, math.Log(left)})
	}
	return top[0].log, top[:min(most, len(top))]
}

// textProbs is what is told of a text's tokens.
type textProbs struct {
	Offsets []int                `json:"text_offset"` // in bytes of the answer
	Logs    []float64            `json:"token_logprobs"`
	Tokens  []string             `json:"tokens"`
	Top     []map[string]float64 `json:"top_logprobs"`
}

// chatProbs is what is told of a chat's tokens.
type chatProbs struct {
	Content []chatProb `json:"content"`
}

type chatProb struct {
	Token string     `json:"token"`
	Log   float64    `json:"logprob"`
	Bytes []int      `json:"bytes"`
	Top   []chatProb `json:"top_logprobs,omitempty"`
}

// logprobs returns what is told of a choice's tokens that was not yet told; nil where
// nobody asked for it. The reply's mutex is held, or its choices have ended.
func (a *reply) logprobs(c *choice) any {
	if a.q.likely < 0 {
		return nil
	}
	from := c.scored
	c.scored = len(c.tokens)
	if a.chat {
		out := chatProbs{Content: []chatProb{}}
		for i := from; i < len(c.tokens); i++ {
			own, top := a.words.score(i, c.tokens[i], a.q.likely)
			e := chatProbOf(spoken(i, c.tokens[i], true), own)
			for _, o := range top {
				e.Top = append(e.Top, chatProbOf(spoken(i, o.token, true), o.log))
			}
			out.Content = append(out.Content, e)
		}
		return out
	}
	out := textProbs{Offsets: []int{}, Logs: []float64{}, Tokens: []string{}, Top: []map[string]float64{}}
	at := 0
	for i, token := range c.tokens {
		text := spoken(i, token, false)
		if i >= from {
			own, top := a.words.score(i, token, max(a.q.likely, 1))
			likely := make(map[string]float64)
			for _, o := range top {
				likely[spoken(i, o.token, false)] = o.log
			}
			out.Offsets, out.Logs, out.Tokens, out.Top = append(out.Offsets, at), append(out.Logs, own), append(out.Tokens, text), append(out.Top, likely)
		}
		at += len(text)
	}
	return out
}

func chatProbOf(text string, log float64) chatProb {
	out := chatProb{Token: text, Log: log, Bytes: []int{}}
	for _, b := range []byte(text) {
		out.Bytes = append(out.Bytes, int(b))
	}
	return out
}

// spoken returns the text of the n-th token of an answer.
func spoken(n int, token uint32, chat bool) string {
	if n == 0 && chat {
		return word(token)
	}
	return " " + word(token)
}
