// SPDX-License-Identifier: Apache-2.0

// Before: resolve.go, with a text. After: a tokenizer in this process, once it has been
// proved; until then engines.

package prompt

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"kindex/gateway/fleet"
	"kindex/gateway/openai"
)

// How the tokenizer in this process stands with a pool.
const (
	localUnknown int32 = iota
	localProving
	localProved
	localRefuted
)

// retryProof is how long a proof waits that no engine answered.
const retryProof = 2 * time.Second

// localOn reports whether the tokenizer in this process answers q; where nobody knows
// yet whether it may, the proof begins.
func (r *Resolver) localOn(q *question, c *openai.Call) bool {
	if r.o.Local == nil || q.chat {
		return false
	}
	s := q.state
	switch s.local.Load() {
	case localProved:
		return true
	case localUnknown:
		if s.proving.Load() <= fleet.Now() {
			r.prove(q.pool, s, []byte(c.Model))
		}
	}
	return false
}

// Prove has the tokenizer in this process held against the engines of a pool, in the
// background. Requests do it as well; earlier is better.
func (r *Resolver) Prove(pool *fleet.Pool) {
	if s := r.state(pool, false); r.o.Local != nil && s.local.Load() == localUnknown {
		r.prove(pool, s, []byte(pool.Model))
	}
}

func (r *Resolver) prove(pool *fleet.Pool, s *poolState, model []byte) {
	if !s.local.CompareAndSwap(localUnknown, localProving) {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return
	}
	r.flying.Go(func() {
		ctx, cancel := context.WithTimeout(r.base, 2*r.o.Timeout)
		defer cancel()
		err := r.proof(ctx, pool, model)
		switch {
		case err == nil:
			s.local.Store(localProved)
			r.o.Log.Info("the local tokenizer answers for prompts of text: it agrees with the engines'", "model", pool.Model, "texts", len(awkward))
		case errors.Is(err, errUnsupported), errors.Is(err, errDiffers), errors.Is(err, errRefused):
			r.refute(s, pool.Model, err.Error())
		default:
			s.proving.Store(fleet.Now() + int64(retryProof))
			s.local.Store(localUnknown)
		}
	})
}

// refute leaves the tokenizer in this process for good, for one pool.
func (r *Resolver) refute(s *poolState, model, why string) {
	if s.local.Swap(localRefuted) != localRefuted {
		r.o.Log.Warn("the local tokenizer is not used: it cannot be shown to be the engines' own", "model", model, "why", why)
	}
}

var errDiffers = errors.New("it differs")

// ownTexts is how many texts of a tokenizer's own vocabulary are compared.
const ownTexts = 24

// proof compares the tokens of each awkward text, and of some of its own vocabulary.
func (r *Resolver) proof(ctx context.Context, pool *fleet.Pool, model []byte) error {
	q := &question{pool: pool, model: model}
	for _, text := range append(slices.Clone(awkward), r.o.Local.Texts(ownTexts)...) {
		for _, special := range []bool{true, false} {
			want, err := r.ask(ctx, pool, false, q.textBody([]byte(text), fmt.Appendf(nil, `"add_special_tokens":%t,`, special)))
			if err != nil {
				return err
			}
			got, err := r.o.Local.Encode(nil, []byte(text), special)
			if err != nil {
				return fmt.Errorf("%w: %.40q: %w", errDiffers, text, err)
			}
			if !slices.Equal(got, want) {
				return fmt.Errorf("%w at %.40q: %d tokens, the engine has %d", errDiffers, text, len(got), len(want))
			}
		}
	}
	return nil
}

// encode has the tokenizer in this process answer q, which keeps its own text.
func (r *Resolver) encode(p *Prompt, q *question) {
	own := &flight{done: make(chan struct{})}
	r.run(r.base, q, own)
	if own.tokens == nil {
		r.none(p, own.why)
		return
	}
	r.found(p, own.tokens, Local)
	if q.state.locals.Add(1)%auditEach == 0 {
		r.audit(q, own.tokens)
	}
}

// auditEach is how many prompts the tokenizer in this process has for each that an
// engine is asked for as well.
const auditEach = 64

// audit has an engine asked for a prompt that was found in this process, in the
// background.
func (r *Resolver) audit(q *question, tokens []uint32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	size := int64(len(q.text))
	if r.closed || r.under > 0 && r.under+size > maxUnder {
		return
	}
	r.under += size
	r.flying.Go(func() {
		ctx, cancel := context.WithTimeout(r.base, r.o.Timeout)
		defer cancel()
		want, err := r.ask(ctx, q.pool, false, q.textBody(q.text, q.options))
		if err == nil && !slices.Equal(want, tokens) {
			r.cache.drop(q.key)
			r.refute(q.state, q.pool.Model, "an engine has other tokens for a prompt")
		}
		r.mu.Lock()
		r.under -= size
		r.mu.Unlock()
	})
}

// awkward are texts in which tokenizers differ: white space, runs, numbers, contractions,
// scripts, marks that combine, what looks like a special token, and NUL.
var awkward = []string{
	"a", " a", "  a", "a ", "a  ", "\n", "\n\n", " \n \n  x", "\t\ta\r\nb\r\n\r\n", "a\u00a0b\u2003c\u3000d",
	"Hello, world! I'm you're WE'LL they'd'VE it''s", "1234567890 12 345 6,789.01 1e-9 ½ ² ٣٤٥", "snake_case camelCase HTTPServer2go x1y2z3",
	"if (a != b) { return a->b[c] << 2; } // `code` ~~~ ### --- === ...", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "!!!!!!!!!!!!????????........,,,,,,,,--------",
	"naïve café e\u0301 a\u030a Ångström ﬁ ① Ⅳ K", "Привет, мир. Γειά σου. שלום עולם مرحبا بالعالم", "नमस्ते दुनिया สวัสดีชาวโลก", "你好，世界。こんにちは世界 안녕하세요 세계", "한국어 ᄒ\u1161\u11ab",
	"😀👩‍👩‍👧‍👦🏳️‍🌈🇩🇪 ❤️", "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 \U0010FFFD\uFFFD\uFEFF\u200b\u200d", "a\x00b \x00\x00 c", "\x01\x02\x1b[0m\x7f",
	"<|im_start|>user\nhi<|im_end|>\n", "<s>[INST] x [/INST]</s><unk><pad>", "<|endoftext|> <|begin_of_text|> <bos><eos> <|eot_id|>", "< |im_start| > <|not_a_token|>", "a<|im_end|>b <|im_end|> c",
	"The quick brown fox jumps over the lazy dog. " + strings.Repeat("Lorem ipsum dolor sit amet, consectetur adipiscing elit. ", 8),
}
