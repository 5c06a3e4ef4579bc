// SPDX-License-Identifier: Apache-2.0

// Before: New, with a configuration. After: package prompt, which finds tokens for the
// router.

package gateway

import (
	"kindex/gateway/prompt"
)

// buildPrompts makes what finds the tokens of prompts.
//
// Errors: those of a local tokenizer.
func (g *Gateway) buildPrompts() error {
	o := prompt.Options{Client: g.upstream, Budget: g.cfg.TokenizeBudget, CacheBytes: g.cfg.TokenizeCache, Log: g.log}
	if path := g.cfg.Tokenizer; path != "" {
		t, err := prompt.OpenTokenizer(path)
		if err != nil {
			return err
		}
		g.tokenizer, o.Local = t, t
	}
	g.prompts = prompt.New(o)
	return nil
}

// closePrompts ends all questions; then nobody uses the tokenizer any more.
func (g *Gateway) closePrompts() {
	if g.prompts != nil {
		g.prompts.Close()
	}
	if g.tokenizer != nil {
		g.tokenizer.Close()
	}
}

func (g *Gateway) writePrompts(e *exposition) {
	s := g.prompts.Stats()
	e.family("prompts_total", "counter", "Prompts by where their tokens are from.")
	for i, n := range s.Resolved {
		e.count(n, "source", prompt.Source(i).String()) //nolint:gosec // of an array of them
	}
	e.family("prompts_unknown_total", "counter", "Prompts without tokens, by reason: they are placed by load alone.")
	for i, n := range s.Skipped {
		e.count(n, "reason", prompt.Reasons[i])
	}
	e.counter("tokenize_calls_total", "Questions for tokens put to workers.", s.Calls)
	e.counter("tokenize_failed_total", "Of them, those without an answer.", s.Failed)
	e.counter("tokenize_bytes_total", "Bytes of their bodies.", s.SentBytes)
	e.one("tokenize_seconds_total", "counter", "Time that they took.", s.Asking.Seconds())
	e.counter("tokenize_shared_total", "Requests that waited for another one's question.", s.Shared)
	e.one("tokenize_cache_entries", "gauge", "Prompts whose tokens are kept.", float64(s.Entries))
	e.one("tokenize_cache_bytes", "gauge", "Memory of them.", float64(s.Bytes))
	e.counter("tokenize_cache_evicted_total", "Prompts that made room for others.", s.Evictions)
	e.family("tokenize_joined_total", "counter", "Prompts joined of a known begin and an end that was asked for, held against the engine's answer for the whole, by result.")
	e.count(s.Compared-s.Differences, "result", "equal")
	e.count(s.Differences, "result", "different")
	e.family("tokenize_confirmed_total", "counter", "Answers that say how many tokens the prompt had, by whether the gateway had as many.")
	e.count(s.Confirmed, "result", "equal")
	e.count(s.Mismatches, "result", "different")
	e.one("tokenizer_local", "gauge", "1: a tokenizer in this process answers for text.", oneIf(s.LocalOn))
}
