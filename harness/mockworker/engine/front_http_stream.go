// SPDX-License-Identifier: Apache-2.0

// Before: front_http_answer.go, which has a piece of an answer. After: the client.

package engine

import (
	"encoding/json"
	"net/http"
	"strconv"
)

// stream writes an answer as server-sent events, as engines do: one for each token.
//
// Concurrency: under its reply's mutex.
type stream struct {
	w     http.ResponseWriter
	flush http.Flusher
	head  []byte // of every event, up to the choices
	buf   []byte
}

// newStream sends the headers: the client knows then that its request was taken.
func newStream(w http.ResponseWriter, a *reply) *stream {
	s := &stream{w: w}
	s.flush, _ = w.(http.Flusher)
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	w.Header().Set("Cache-Control", "no-cache")
	w.WriteHeader(http.StatusOK)
	object := "text_completion"
	if a.chat {
		object = "chat.completion.chunk"
	}
	s.head = append(s.head, `data: {"id":`...)
	s.head = appendText(s.head, []byte(a.id))
	s.head = append(s.head, `,"object":"`+object+`","created":`...)
	s.head = strconv.AppendInt(s.head, a.created, 10)
	s.head = append(s.head, `,"model":`...)
	s.head = appendText(s.head, []byte(a.model))
	s.head = append(s.head, `,"choices":[`...)
	if s.flush != nil {
		s.flush.Flush()
	}
	return s
}

// send writes what buf has.
func (s *stream) send() error {
	_, err := s.w.Write(s.buf)
	s.buf = s.buf[:0]
	if err == nil && s.flush != nil {
		s.flush.Flush()
	}
	return err
}

// piece sends what is new of a choice, if that is anything.
func (s *stream) piece(a *reply, c *choice) error {
	text := a.ready(c)
	if len(text) == 0 && c.finish == "" && !a.q.TokenIDs {
		return nil
	}
	if a.chat && !c.begun {
		s.open(c)
		s.buf = append(s.buf, `"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]`...)
		s.close(a)
	}
	s.open(c)
	if a.chat {
		s.buf = append(s.buf, `"delta":{"content":`...)
		s.buf = append(appendText(s.buf, text), '}')
	} else {
		s.buf = append(s.buf, `"text":`...)
		s.buf = appendText(s.buf, text)
	}
	scores, err := json.Marshal(a.logprobs(c))
	if err != nil {
		return err
	}
	s.buf = append(append(append(s.buf, `,"logprobs":`...), scores...), `,"finish_reason":`...)
	if c.finish == "" {
		s.buf = append(s.buf, "null"...)
	} else {
		s.buf = append(s.buf, `"`+c.finish+`","stop_reason":`...)
		reason, err := json.Marshal(c.reason)
		if err != nil {
			return err
		}
		s.buf = append(s.buf, reason...)
	}
	if a.q.TokenIDs {
		if !c.begun {
			s.buf = appendIDs(append(s.buf, `,"prompt_token_ids":`...), c.prompt.tokens)
		}
		s.buf = appendIDs(append(s.buf, `,"token_ids":`...), c.tokens[c.told:])
		c.told = len(c.tokens)
	}
	s.buf = append(s.buf, "}]"...)
	c.begun = true
	s.close(a)
	return s.send()
}

// open begins an event of a choice.
func (s *stream) open(c *choice) {
	s.buf = append(s.buf, s.head...)
	s.buf = append(s.buf, `{"index":`...)
	s.buf = append(strconv.AppendInt(s.buf, int64(c.index), 10), ',')
}

// close ends an event whose choices are written.
func (s *stream) close(a *reply) {
	if o := a.q.StreamOptions; o != nil && o.Continuous {
		s.usage(a)
	}
	s.buf = append(s.buf, "}\n\n"...)
}

func (s *stream) usage(a *reply) {
	u := a.used()
	s.buf = append(s.buf, `,"usage":{"prompt_tokens":`...)
	s.buf = strconv.AppendInt(s.buf, int64(u.Prompt), 10)
	s.buf = append(s.buf, `,"total_tokens":`...)
	s.buf = strconv.AppendInt(s.buf, int64(u.Total), 10)
	s.buf = append(s.buf, `,"completion_tokens":`...)
	s.buf = strconv.AppendInt(s.buf, int64(u.Completion), 10)
	s.buf = append(s.buf, `,"prompt_tokens_details":{"cached_tokens":`...)
	s.buf = strconv.AppendInt(s.buf, int64(u.Details.Cached), 10)
	s.buf = append(s.buf, "}}"...)
}

// end sends what comes after the last piece.
func (s *stream) end(a *reply, err error) {
	if err != nil {
		body, merr := json.Marshal(refused(err).body())
		if merr != nil {
			return
		}
		s.buf = append(append(append(s.buf, "data: "...), body...), "\n\n"...)
	} else if o := a.q.StreamOptions; o != nil && o.Usage {
		s.buf = append(append(s.buf, s.head...), ']')
		s.usage(a)
		s.buf = append(s.buf, "}\n\n"...)
	}
	s.buf = append(s.buf, "data: [DONE]\n\n"...)
	_ = s.send() // a client that left needs no end
}

// appendText appends text as a string of JSON.
func appendText(dst, text []byte) []byte {
	for _, c := range text {
		if c < ' ' || c > '~' || c == '"' || c == '\\' {
			b, err := json.Marshal(string(text))
			if err != nil {
				return append(dst, `""`...)
			}
			return append(dst, b...)
		}
	}
	return append(append(append(dst, '"'), text...), '"')
}

func appendIDs(dst []byte, tokens []uint32) []byte {
	dst = append(dst, '[')
	for i, t := range tokens {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = strconv.AppendUint(dst, uint64(t), 10)
	}
	return append(dst, ']')
}
