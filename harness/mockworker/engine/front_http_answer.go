// SPDX-License-Identifier: Apache-2.0

// Before: front_http_parse.go, which has a request. After: fleet.go, which runs it;
// front_http_stream.go for the way back.

package engine

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

// reply is the answer to one completion in the making.
//
// Concurrency: mu guards what choices get once they run.
type reply struct {
	chat    bool
	id      string
	model   string
	created int64
	q       *generation
	stops   []string
	hold    int // bytes of text that may be the begin of a stop
	choices []choice

	words tokenizer

	mu  sync.Mutex
	out pieces // nil: the answer is one piece
}

// pieces is where an answer goes piece by piece.
type pieces interface {
	// piece sends what is new of a choice, if that is anything. The reply's mutex is held.
	piece(a *reply, c *choice) error
}

// choice is one answer of a reply.
type choice struct {
	index  int
	prompt promptText
	run    *run

	tokens []uint32
	text   []byte // all of it
	sent   int    // bytes of text
	told   int    // tokens
	scored int    // tokens whose probabilities were sent
	begun  bool   // the role was sent
	cached int
	finish string
	reason any // the stop that matched: a text or a token; nil: none did
}

func (f *HTTPFront) completions(w http.ResponseWriter, r *http.Request) {
	var q generation
	if err := f.read(w, r, &q); err != nil {
		tell(w, err)
		return
	}
	var prompts []promptText
	var err error
	switch {
	case len(q.Embeds) > 0 && !absent(q.Prompt):
		err = refuse("prompt_embeds", "prompt_embeds: go in the place of a prompt")
	case len(q.Embeds) > 0:
		prompts = make([]promptText, 1)
		prompts[0], err = embedded(q.Embeds)
	default:
		prompts, err = f.words.prompts(q.Prompt)
	}
	q.Prompt, q.Embeds = nil, nil
	if err != nil {
		tell(w, err)
		return
	}
	f.generate(w, r, &q, false, prompts)
}

func (f *HTTPFront) chat(w http.ResponseWriter, r *http.Request) {
	var q generation
	err := f.read(w, r, &q)
	var all []message
	if err == nil {
		all, err = plainMessages(q.Messages)
	}
	if err != nil {
		tell(w, err)
		return
	}
	tokens, items := f.words.chat(all, true)
	f.generate(w, r, &q, true, []promptText{{tokens: tokens, items: items}})
}

// generate answers a request of either kind.
func (f *HTTPFront) generate(w http.ResponseWriter, r *http.Request, q *generation, chat bool, prompts []promptText) {
	a, err := f.begin(r, q, chat, prompts)
	if err != nil {
		tell(w, err)
		return
	}
	w.Header().Set(clientIDKey, strings.TrimPrefix(strings.TrimPrefix(a.id, "cmpl-"), "chatcmpl-"))
	var s *stream
	if q.Stream {
		s = newStream(w, a)
		a.out = s
	}
	err = a.follow(r.Context())
	switch {
	case r.Context().Err() != nil: // nobody is there any more
	case s != nil:
		s.end(a, err)
	case err != nil:
		tell(w, err)
	default:
		say(w, http.StatusOK, a.whole())
	}
}

// begin checks a request and begins its choices.
func (f *HTTPFront) begin(r *http.Request, q *generation, chat bool, prompts []promptText) (*reply, error) {
	stops, err := q.check(chat)
	if err != nil {
		return nil, err
	}
	lora, model, err := f.adapter(q.Model)
	if err != nil {
		return nil, err
	}
	rank, err := f.pinned(r, q.Rank)
	if err != nil {
		return nil, err
	}
	prefix, where := "cmpl-", "prompt"
	if chat {
		prefix, where = "chatcmpl-", "messages"
	}
	for i := range prompts {
		if err := f.fits(len(prompts[i].tokens), q.most(), where); err != nil {
			return nil, err
		}
	}
	id, client := ids(r, prefix)
	a := &reply{chat: chat, id: id, model: model, created: time.Now().Unix(), q: q, stops: stops, words: f.words}
	return a, f.launch(a, prompts, origin{id: id, client: client, model: model}, &Request{LoRA: lora, Salt: q.Salt, Session: q.Session, Stops: q.StopTokens, Rank: rank})
}

// launch begins an answer's choices, all like the given request.
func (f *HTTPFront) launch(a *reply, prompts []promptText, from origin, like *Request) (err error) {
	for _, s := range a.stops {
		a.hold = max(a.hold, len(s)-1)
	}
	a.choices = make([]choice, len(prompts)*a.q.choices())
	for i := range a.choices {
		c := &a.choices[i]
		c.index, c.prompt = i, prompts[i/a.q.choices()]
		t, q := from, *like
		if len(a.choices) > 1 {
			t.id = fmt.Sprintf("%s-%d", from.id, i)
		}
		if q.ID == "" {
			q.ID = fmt.Sprintf("%s-%d", t.id, f.engine.named.Add(1))
		} else if len(a.choices) > 1 {
			q.ID = fmt.Sprintf("%s-%d", q.ID, i)
		}
		q.Tokens, q.Items, q.Embeds, q.MaxTokens = c.prompt.tokens, c.prompt.items, c.prompt.embeds, f.most(len(c.prompt.tokens), a.q.most())
		q.Report = a.q.Extra.Report == "full" && f.engine.cfg.Engine == VLLM && f.engine.cfg.since(26)
		if c.run, err = f.worker.begin(q, t); err != nil {
			for k := range i {
				a.choices[k].run.abort()
			}
			return err
		}
	}
	return nil
}

// fits refuses a prompt and an answer that are longer than the context.
func (f *HTTPFront) fits(prompt, most int, where string) error {
	n := f.engine.cfg.ContextLength
	switch {
	case prompt >= n:
		return refuse(where, "This model's maximum context length is %d tokens. However, your request has %d input tokens. Please reduce the length of the %s.", n, prompt, where)
	case prompt+most > n:
		return refuse(where, "This model's maximum context length is %d tokens. However, you requested %d tokens (%d in the %s, %d in the completion). Please reduce the length of the %s or completion.",
			n, prompt+most, prompt, where, most, where)
	}
	return nil
}

// most returns how many tokens are generated where a client said that many, or
// nothing.
func (f *HTTPFront) most(prompt, said int) int {
	if said > 0 {
		return said
	}
	return min(f.engine.cfg.MaxTokens, f.engine.cfg.ContextLength-prompt)
}

// follow waits for every choice's end.
func (a *reply) follow(ctx context.Context) error {
	return sideBySide(ctx, len(a.choices), func(ctx context.Context, i int) error {
		c := &a.choices[i]
		return c.run.follow(ctx, func(o Output) error { return a.take(c, o) })
	})
}

// take adds an output to its choice, and sends what can be sent.
//
// Errors: errMatched, once a text came that ends the answer; the client's going.
func (a *reply) take(c *choice, o Output) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(c.tokens) == 0 && a.q.Echo {
		c.text = append(c.text, c.prompt.text...)
		if c.prompt.text == "" {
			c.text = append(c.text, tokenizer{}.text(c.prompt.tokens)...)
		}
	}
	c.cached, c.finish = o.Cached, o.Finish
	if o.Finish != aborted {
		c.tokens = append(c.tokens, o.Token)
		from := len(c.text)
		if from > 0 || !a.chat {
			c.text = append(c.text, ' ')
		}
		c.text = append(c.text, word(o.Token)...)
		a.match(c, from)
	}
	if o.Finish == stopped && c.reason == nil {
		c.reason = o.Token
	}
	var err error
	if a.out != nil {
		err = a.out.piece(a, c)
	}
	if err == nil && c.finish != o.Finish {
		err = errMatched
	}
	return err
}

// match ends a choice whose text has a stop that ends past from.
func (a *reply) match(c *choice, from int) {
	at, found := -1, ""
	for _, s := range a.stops {
		first := max(from-len(s)+1, 0)
		if i := bytes.Index(c.text[first:], []byte(s)); i >= 0 && (at < 0 || first+i < at) {
			at, found = first+i, s
		}
	}
	if at < 0 {
		return
	}
	if a.q.IncludeStop {
		at += len(found)
	}
	c.text, c.finish, c.reason = c.text[:at], stopped, found
}

// ready returns the text of a choice that can be sent.
func (a *reply) ready(c *choice) []byte {
	past := len(c.text)
	if c.finish == "" {
		past = max(past-a.hold, c.sent)
		for past > c.sent && past < len(c.text) && !utf8.RuneStart(c.text[past]) {
			past--
		}
	}
	if past <= c.sent {
		return nil
	}
	out := c.text[c.sent:past]
	c.sent = past
	return out
}

// usage is what an answer cost, in tokens.
type usage struct {
	Prompt     int          `json:"prompt_tokens"`
	Total      int          `json:"total_tokens"`
	Completion int          `json:"completion_tokens"`
	Details    usageDetails `json:"prompt_tokens_details"`
}

type usageDetails struct {
	Cached int `json:"cached_tokens"`
}

// used returns what the choices cost so far: each prompt counts once.
func (a *reply) used() usage {
	var u usage
	for i := range a.choices {
		c := &a.choices[i]
		if i%a.q.choices() == 0 {
			u.Prompt += len(c.prompt.tokens)
			u.Details.Cached += c.cached
		}
		u.Completion += len(c.tokens)
	}
	u.Total = u.Prompt + u.Completion
	return u
}

// wholeChoice is a choice of an answer in one piece.
type wholeChoice struct {
	Index        int           `json:"index"`
	Text         *string       `json:"text,omitempty"`
	Message      *wholeMessage `json:"message,omitempty"`
	Logprobs     any           `json:"logprobs"`
	Finish       string        `json:"finish_reason"`
	Reason       any           `json:"stop_reason"`
	Tokens       []uint32      `json:"token_ids,omitempty"`
	PromptTokens []uint32      `json:"prompt_token_ids,omitempty"`
}

type wholeMessage struct {
	Role    string  `json:"role"`
	Content string  `json:"content"`
	Refusal *string `json:"refusal"`
}

// whole returns the answer in one piece.
func (a *reply) whole() any {
	out := struct {
		ID      string        `json:"id"`
		Object  string        `json:"object"`
		Created int64         `json:"created"`
		Model   string        `json:"model"`
		Choices []wholeChoice `json:"choices"`
		Usage   usage         `json:"usage"`
	}{a.id, "text_completion", a.created, a.model, make([]wholeChoice, len(a.choices)), a.used()}
	if a.chat {
		out.Object = "chat.completion"
	}
	for i := range a.choices {
		c := &a.choices[i]
		to := &out.Choices[i]
		text := string(c.text)
		to.Index, to.Finish, to.Reason = c.index, c.finish, c.reason
		to.Logprobs = a.logprobs(c)
		if a.chat {
			to.Message = &wholeMessage{Role: "assistant", Content: text}
		} else {
			to.Text = &text
		}
		if a.q.TokenIDs {
			to.Tokens, to.PromptTokens = c.tokens, c.prompt.tokens
		}
	}
	return out
}
