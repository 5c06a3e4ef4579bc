// SPDX-License-Identifier: Apache-2.0

// Before: resolve.go, with a call. After: flight.go.

package prompt

import (
	"bytes"

	"kindex/gateway/fleet"
	"kindex/gateway/openai"
	"kindex/internal/jsonscan"
	"kindex/internal/lookup"
)

// question is a prompt whose tokens are wanted, with all that is sent to find them. It
// has copies of what it needs of the request, which may be over before it is.
type question struct {
	pool    *fleet.Pool
	state   *poolState
	chat    bool
	partly  bool // of a chat, the turns are those before what is not text; role is whose it is in
	special bool // of a text
	role    []byte

	model   []byte // as the client gave it, "": none
	options []byte // members, each with a comma behind it
	text    []byte
	turns   [][]byte // messages

	root key
	keys []key // of the prompt's begins: steps of a text, turns of a chat
	key  key   // of the whole
}

// kinds of roots.
const (
	ofText byte = iota
	ofChat
	ofStem // the turns of a chat before what is not text
)

// prepare returns the keys of a call's prompt: what can be known without a copy.
func prepare(q *question, c *openai.Call, pool *fleet.Pool, turns []openai.Turn, scratch []byte) []byte {
	q.pool = pool
	scratch = c.AppendOptions(scratch[:0])
	kind := ofText
	switch {
	case q.partly:
		kind = ofStem
	case q.chat:
		kind = ofChat
	}
	model := append(scratch, c.Model...)
	q.root = root(kind, []byte(pool.Model), []byte(pool.Base), model[len(scratch):], scratch)
	if !q.chat {
		q.keys, q.key = texts(q.keys[:0], q.root, c.Text)
		return model
	}
	k := q.root
	for i, t := range turns {
		k = k.then(c.Body[t.From:t.To], i+1)
		q.keys = append(q.keys, k)
	}
	q.key = k
	return model
}

// keep makes q's own copies of what the call has.
func (q *question) keep(c *openai.Call, turns []openai.Turn) {
	q.model, q.options = []byte(c.Model), c.AppendOptions(nil)
	q.special = !bytes.Contains(q.options, []byte("false")) // a text has the one option add_special_tokens
	if !q.chat {
		q.text = bytes.Clone(c.Text)
		return
	}
	if len(turns) == 0 {
		return
	}
	first := turns[0].From
	all := bytes.Clone(c.Body[first:turns[len(turns)-1].To])
	q.turns = make([][]byte, len(turns))
	for i, t := range turns {
		q.turns[i] = all[t.From-first : t.To-first]
	}
}

// head appends the begin of a question's body: the model and the options.
func (q *question) head(dst []byte, options []byte) []byte {
	dst = append(dst, '{')
	if len(q.model) > 0 {
		dst = append(dst, `"model":`...)
		dst = append(lookup.AppendJSONString(dst, q.model), ',')
	}
	return append(dst, options...)
}

// chatBody returns the question for the tokens of messages.
func (q *question) chatBody(turns [][]byte) []byte {
	n := len(q.options) + len(q.model) + 64
	for _, t := range turns {
		n += len(t) + 1
	}
	b := append(q.head(make([]byte, 0, n), q.options), `"messages":[`...)
	for i, t := range turns {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, t...)
	}
	return append(b, "]}"...)
}

// textBody returns the question for the tokens of a text.
func (q *question) textBody(text []byte, options []byte) []byte {
	b := q.head(make([]byte, 0, len(text)+len(text)/8+len(options)+64), options)
	b = append(b, `"prompt":`...)
	return append(lookup.AppendJSONString(b, text), '}')
}

// plain are the options of a window: it is the middle of a prompt.
var plain = []byte(`"add_special_tokens":false,`)

// userTurn reports whether a message is a user's: where a conversation may begin.
func userTurn(turn []byte) bool { return string(roleOf(turn)) == "user" }

// roleOf returns a message's role, as it is written.
func roleOf(turn []byte) []byte {
	var role []byte
	var s jsonscan.Scanner
	s.Reset(turn)
	_ = s.Object([]jsonscan.Field{{Name: "role", Read: func(string) (err error) {
		role, err = s.RawText()
		return err
	}}})
	return role
}
