// SPDX-License-Identifier: Apache-2.0

// Before: a client or a gateway that speaks OpenAI's API. After: fleet.go, which runs
// it.

package engine

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"math"
	"net/http"
)

const (
	maxDimensions = 4_096
	dimensions    = 64 // where nobody names a number
)

// embedding is one of an answer.
type embedding struct {
	Object string `json:"object"`
	Index  int    `json:"index"`
	Vector any    `json:"embedding"` // numbers, or their bytes as base64
}

// embeddings answers with made-up vectors of length 1, equal for equal prompts: there
// is no model. Each prompt is computed as one that a token is drawn for, so that it
// takes its time, its blocks and its turn.
func (f *HTTPFront) embeddings(w http.ResponseWriter, r *http.Request) {
	var q struct {
		Model      string          `json:"model"`
		Input      json.RawMessage `json:"input"`
		Form       string          `json:"encoding_format"`
		Dimensions *int            `json:"dimensions"`
		Salt       string          `json:"cache_salt"`
		Rank       *int            `json:"data_parallel_rank"`
	}
	err := f.read(w, r, &q)
	n := dimensions
	if q.Dimensions != nil {
		n = *q.Dimensions
	}
	switch {
	case err != nil:
	case absent(q.Input):
		err = refuse("input", "input: missing: give a text, a list of texts, or token ids")
	case n < 1 || n > maxDimensions:
		err = refuse("dimensions", "dimensions: must be 1 to %d, got %d", maxDimensions, n)
	case q.Form != "" && q.Form != "float" && q.Form != "base64":
		err = refuse("encoding_format", "encoding_format: %q: must be float or base64", q.Form)
	}
	var lora, model string
	if err == nil {
		lora, model, err = f.adapter(q.Model)
	}
	rank := -1
	if err == nil {
		rank, err = f.pinned(r, q.Rank)
	}
	var prompts []promptText
	if err == nil {
		prompts, err = f.words.prompts(q.Input)
	}
	if err != nil {
		tell(w, err)
		return
	}
	id, client := ids(r, "embd-")
	a := &reply{id: id, model: model, q: &generation{MaxTokens: new(int), likely: -1}, words: f.words}
	*a.q.MaxTokens = 1
	for i := range prompts {
		if err = f.fits(len(prompts[i].tokens), 1, "input"); err != nil {
			tell(w, err)
			return
		}
	}
	if err = f.launch(a, prompts, origin{id: id, client: client, model: model}, &Request{LoRA: lora, Salt: q.Salt, Rank: rank}); err == nil {
		err = a.follow(r.Context())
	}
	if err != nil {
		tell(w, err)
		return
	}
	all := make([]embedding, len(prompts))
	for i := range prompts {
		v := vector(prompts[i].tokens, n)
		if all[i] = (embedding{"embedding", i, v}); q.Form == "base64" {
			all[i].Vector = packed(v)
		}
	}
	u := a.used()
	say(w, http.StatusOK, map[string]any{
		"id": id, "object": "list", "data": all, "model": model,
		"usage": map[string]any{"prompt_tokens": u.Prompt, "total_tokens": u.Prompt, "completion_tokens": 0, "prompt_tokens_details": u.Details},
	})
}

// embed is the embeddings' call of either gRPC contract.
func (w *Worker) embed(ctx context.Context, id string, tokens []uint32, rank int) ([]float32, error) {
	if len(tokens) == 0 {
		return nil, errNoTokens
	}
	if err := w.answer(ctx, Request{ID: id, Tokens: tokens, MaxTokens: 1, Rank: rank}, 1, func(uint32, Output, []uint32) error { return nil }); err != nil {
		return nil, err
	}
	return vector(tokens, dimensions), nil
}

// vector makes up a prompt's.
func vector(tokens []uint32, n int) []float32 {
	state := uint64(len(tokens))
	for _, t := range tokens {
		state = mix(state ^ uint64(t))
	}
	out := make([]float32, n)
	sum := 0.0
	for i := range out {
		state = mix(state)
		x := float64(state>>11)/(1<<52) - 1
		out[i] = float32(x)
		sum += x * x
	}
	for i := range out {
		out[i] /= float32(math.Sqrt(sum))
	}
	return out
}

// packed returns a vector's bytes as base64.
func packed(v []float32) string {
	var b []byte
	for _, x := range v {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(x))
	}
	return base64.StdEncoding.EncodeToString(b)
}
