// SPDX-License-Identifier: Apache-2.0

// Before: a client or a gateway that speaks SGLang's own API. After:
// front_http_answer.go, which runs what OpenAI's API would.

package engine

import (
	"encoding/json"
	"errors"
	"net/http"
	"time"
)

// sglangRequest is the body of SGLang's /generate, as far as it is understood.
type sglangRequest struct {
	Text     json.RawMessage `json:"text"`      // one or a list
	InputIDs json.RawMessage `json:"input_ids"` // the same, as token ids
	Sampling json.RawMessage `json:"sampling_params"`
	Stream   bool            `json:"stream"`
	ID       json.RawMessage `json:"rid"` // one; a list for a list of prompts is refused
	Probs    bool            `json:"return_logprob"`
	Likely   int             `json:"top_logprobs_num"`
	LoRA     string          `json:"lora_path"`
	Salt     string          `json:"cache_salt"`
	Session  string          `json:"session_id"`
	Rank     *int            `json:"data_parallel_rank"`
	Images   json.RawMessage `json:"image_data"`
	Embeds   json.RawMessage `json:"input_embeds"`
}

// sglangSampling is how an answer is drawn, as far as that matters here.
type sglangSampling struct {
	MaxTokens   *int            `json:"max_new_tokens"`
	Stop        json.RawMessage `json:"stop"`
	StopTokens  []uint32        `json:"stop_token_ids"`
	N           *int            `json:"n"`
	Temperature *float64        `json:"temperature"`
	TopP        *float64        `json:"top_p"`
}

// generation returns what the request would be in OpenAI's terms.
func (q *sglangRequest) generation() (*generation, error) {
	var s sglangSampling
	if !absent(q.Sampling) && json.Unmarshal(q.Sampling, &s) != nil {
		return nil, refuse("sampling_params", "sampling_params: must be one object, of numbers and stops, for all prompts")
	}
	g := &generation{
		Model: q.LoRA, Stream: q.Stream, N: s.N, MaxTokens: s.MaxTokens, Stop: s.Stop, StopTokens: s.StopTokens, Temperature: s.Temperature, TopP: s.TopP,
		Salt: q.Salt, Session: q.Session, Rank: q.Rank, likely: -1,
	}
	switch {
	case !absent(q.Images), !absent(q.Embeds):
		return nil, refuse("image_data", "image_data, input_embeds: not understood here: send images as a chat")
	case q.Likely < 0 || q.Likely > maxLikely:
		return nil, refuse("top_logprobs_num", "top_logprobs_num: must be 0 to %d, got %d", maxLikely, q.Likely)
	case !absent(q.Text) && !absent(q.InputIDs), absent(q.Text) && absent(q.InputIDs):
		return nil, refuse("text", "text, input_ids: one of them must be given")
	}
	return g, nil
}

// native answers SGLang's /generate.
func (f *HTTPFront) native(w http.ResponseWriter, r *http.Request) {
	var q sglangRequest
	err := f.read(w, r, &q)
	var a *nativeReply
	if err == nil {
		a, err = f.beginNative(r, &q)
	}
	if err != nil {
		tell(w, err)
		return
	}
	if q.Stream {
		a.w = w
		a.flush, _ = w.(http.Flusher)
		a.out = a
		w.Header().Set("Content-Type", "text/event-stream")
		w.WriteHeader(http.StatusOK)
		if a.flush != nil {
			a.flush.Flush()
		}
	}
	err = a.follow(r.Context())
	switch {
	case r.Context().Err() != nil: // nobody is there any more
	case q.Stream:
		if err != nil {
			_ = a.event(refused(err).body())
		}
		_, _ = w.Write([]byte("data: [DONE]\n\n"))
	case err != nil:
		tell(w, err)
	case a.alone:
		say(w, http.StatusOK, a.state(&a.choices[0], false))
	default:
		all := make([]map[string]any, len(a.choices))
		for i := range all {
			all[i] = a.state(&a.choices[i], false)
		}
		say(w, http.StatusOK, all)
	}
}

// nativeReply is the answer to one /generate.
type nativeReply struct {
	*reply
	began time.Time
	alone bool // one prompt, one choice, not as a list
	probs bool
	most  int // tokens that might have come, told with each
	w     http.ResponseWriter
	flush http.Flusher
}

// beginNative checks a request and begins its choices.
func (f *HTTPFront) beginNative(r *http.Request, q *sglangRequest) (*nativeReply, error) {
	g, err := q.generation()
	if err != nil {
		return nil, err
	}
	raw := q.Text
	if absent(raw) {
		raw = q.InputIDs
	}
	prompts, err := f.words.prompts(raw)
	if err != nil {
		return nil, err
	}
	stops, err := g.check(false)
	if err != nil {
		return nil, err
	}
	lora, model, err := f.adapter(g.Model)
	if err != nil {
		return nil, err
	}
	rank, err := f.pinned(r, g.Rank)
	if err != nil {
		return nil, err
	}
	for i := range prompts {
		if err := f.fits(len(prompts[i].tokens), g.most(), "input"); err != nil {
			return nil, err
		}
	}
	id := ""
	if !absent(q.ID) && (json.Unmarshal(q.ID, &id) != nil || id == "" || len(id) > maxID) {
		return nil, refuse("rid", "rid: must be one text of 1 to %d bytes", maxID)
	}
	client := id
	if id == "" {
		id = random()
	}
	a := &nativeReply{
		reply: &reply{id: id, model: model, created: time.Now().Unix(), q: g, stops: stops, words: f.words},
		began: time.Now(), alone: len(prompts)*g.choices() == 1 && !listed(raw), probs: q.Probs, most: q.Likely,
	}
	return a, f.launch(a.reply, prompts, origin{id: id, client: client, model: model}, &Request{
		ID: id, LoRA: lora, Salt: g.Salt, Session: g.Session, Stops: g.StopTokens, Rank: rank,
	})
}

// listed reports whether prompts were a list of them.
func listed(raw json.RawMessage) bool {
	var all []json.RawMessage
	return json.Unmarshal(raw, &all) == nil && len(all) > 0 && (all[0][0] == '"' || all[0][0] == '[')
}

// state tells how a choice stands: all of it, and so does each event of a stream.
// partly leaves out what may still be cut off.
func (a *nativeReply) state(c *choice, partly bool) map[string]any {
	text := string(c.text)
	if partly {
		text = string(c.text[:c.sent])
	}
	meta := map[string]any{
		"id": a.id, "finish_reason": nil, "prompt_tokens": len(c.prompt.tokens), "completion_tokens": len(c.tokens), "cached_tokens": c.cached,
		"weight_version": "default",
	}
	if len(a.choices) > 1 {
		meta["id"] = c.run.id
	}
	switch c.finish {
	case "":
	case filled:
		meta["finish_reason"] = map[string]any{"type": "length", "length": len(c.tokens)}
	case aborted:
		meta["finish_reason"] = map[string]any{"type": "abort", "message": "Abort before prefill or in the queue", "status_code": nil, "err_type": nil}
	default:
		meta["finish_reason"] = map[string]any{"type": "stop", "matched": c.reason}
	}
	if c.finish != "" {
		meta["e2e_latency"] = time.Since(a.began).Seconds()
	}
	if a.probs {
		own, top := [][]any{}, [][][]any{}
		for i, token := range c.tokens {
			log, others := a.words.score(i, token, a.most)
			own = append(own, []any{log, token, nil})
			likely := [][]any{}
			for _, o := range others {
				likely = append(likely, []any{o.log, o.token, nil})
			}
			top = append(top, likely)
		}
		meta["output_token_logprobs"], meta["input_token_logprobs"] = own, [][]any{}
		if a.most > 0 {
			meta["output_top_logprobs"], meta["input_top_logprobs"] = top, [][]any{}
		}
	}
	out := map[string]any{"text": text, "output_ids": append([]uint32{}, c.tokens...), "meta_info": meta}
	if !a.alone {
		out["index"] = c.index
	}
	return out
}

// piece sends how a choice stands.
func (a *nativeReply) piece(_ *reply, c *choice) error {
	a.ready(c)
	return a.event(a.state(c, true))
}

// event sends one event of a stream.
func (a *nativeReply) event(v any) error {
	b, err := json.Marshal(v)
	if err == nil {
		_, err = a.w.Write(append(append([]byte("data: "), b...), "\n\n"...))
	}
	if a.flush != nil {
		a.flush.Flush()
	}
	return err
}

// abortRequest answers SGLang's /abort_request: whatever it names is gone afterwards.
func (f *HTTPFront) abortRequest(w http.ResponseWriter, r *http.Request) {
	var q struct {
		ID  string `json:"rid"`
		All bool   `json:"abort_all"`
	}
	err := f.read(w, r, &q)
	if err == nil && q.ID == "" && !q.All {
		err = errors.New("rid: missing: name a request, or abort_all")
	}
	if err != nil {
		tell(w, err)
		return
	}
	f.engine.abortWhere(func(id string) bool { return q.All || begins(id, q.ID) })
	w.WriteHeader(http.StatusOK)
}

// begins reports whether a request is the one of a name, or a choice of it.
func begins(id, name string) bool {
	return id == name || len(id) > len(name) && id[:len(name)] == name && id[len(name)] == '-'
}
