// SPDX-License-Identifier: Apache-2.0

// Before: client.go, which reads. After: record.go.

package openloop

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"
)

// maxEvent bounds one line of an answer, in bytes.
const maxEvent = 1 << 20

// maxErrorName bounds what is kept of an error's name.
const maxErrorName = 48

var errLongLine = errors.New("an event is too long")

// answer reads one streamed answer's events into its record.
//
// Concurrency: one goroutine.
type answer struct {
	rec   *Record
	gaps  *histogram
	part  []byte // of a line that is not whole yet
	ended bool   // [DONE] came
	said  []byte // the error's own text
}

// feed takes what was read at now, lines of any length and cut anywhere.
func (a *answer) feed(data []byte, now time.Duration) error {
	for len(data) > 0 {
		i := bytes.IndexByte(data, '\n')
		if i < 0 {
			if len(a.part)+len(data) > maxEvent {
				return errLongLine
			}
			a.part = append(a.part, data...)
			return nil
		}
		line := data[:i]
		if len(a.part) > 0 {
			if len(a.part)+i > maxEvent {
				return errLongLine
			}
			a.part = append(a.part, line...)
			line = a.part
		}
		a.line(bytes.TrimSuffix(line, []byte{'\r'}), now)
		a.part = a.part[:0]
		data = data[i+1:]
	}
	return nil
}

func (a *answer) line(line []byte, now time.Duration) {
	data, ok := bytes.CutPrefix(line, []byte("data:"))
	if !ok {
		return // an event's name, a comment, an end
	}
	data = bytes.TrimLeft(data, " ")
	switch {
	case string(data) == "[DONE]":
		a.ended = true
	case a.rec.ID != "" && plain(data):
		a.text(now)
	default:
		a.event(data, now)
	}
}

// plain reports whether an event is a piece of text and nothing else. Within JSON's
// strings a quote is always escaped, so a key that is found is a key.
func plain(data []byte) bool {
	for _, key := range [...]string{`"text":"`, `"content":"`} {
		if i := bytes.Index(data, []byte(key)); i >= 0 {
			rest := data[i+len(key):]
			return len(rest) > 0 && rest[0] != '"' && data[len(data)-1] == '}' && nothing(data, `"finish_reason"`) && nothing(data, `"usage"`) && nothing(data, `"error"`)
		}
	}
	return false
}

// nothing reports whether a key is not there, or is null.
func nothing(data []byte, key string) bool {
	i := bytes.Index(data, []byte(key))
	return i < 0 || bytes.HasPrefix(data[i+len(key):], []byte(":null"))
}

// text notes a piece of text.
func (a *answer) text(now time.Duration) {
	r := a.rec
	if r.Pieces++; r.Pieces == 1 {
		r.First = now
	} else {
		gap := now - r.Last
		a.gaps.add(gap)
		r.Longest = max(r.Longest, gap)
	}
	r.Last = now
}

// event is one event of any form.
type event struct {
	ID      string `json:"id"`
	Choices []struct {
		Text   string  `json:"text"`
		Finish *string `json:"finish_reason"`
		Delta  struct {
			Content   string `json:"content"`
			Thought   string `json:"reasoning_content"`
			Reasoning string `json:"reasoning"` // the same under a newer name
		} `json:"delta"`
	} `json:"choices"`
	Usage *struct {
		Prompt     *int `json:"prompt_tokens"`
		Completion *int `json:"completion_tokens"`
		Details    *struct {
			Cached *int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	} `json:"usage"`
	Error json.RawMessage `json:"error"`
}

func (a *answer) event(data []byte, now time.Duration) {
	var e event
	r := a.rec
	if err := json.Unmarshal(data, &e); err != nil {
		r.Error = errProtocol
		a.said = bytes.Clone(data)
		return
	}
	if len(e.Error) > 0 && string(e.Error) != "null" {
		r.Error = "error " + errorName(e.Error)
		a.said = e.Error
		return
	}
	if r.ID == "" {
		r.ID = e.ID
	}
	for i := range e.Choices {
		c := &e.Choices[i]
		if c.Text != "" || c.Delta.Content != "" || c.Delta.Thought != "" || c.Delta.Reasoning != "" {
			a.text(now)
		}
		if c.Finish != nil && *c.Finish != "" {
			r.Finish = *c.Finish
			if r.Pieces == 0 { // an answer whose only token has no text
				a.text(now)
			}
		}
	}
	if u := e.Usage; u != nil {
		set(&r.Prompt, u.Prompt)
		set(&r.Completion, u.Completion)
		if u.Details != nil {
			set(&r.Cached, u.Details.Cached)
		}
	}
}

func set(to, from *int) {
	if from != nil && *from >= 0 {
		*to = *from
	}
}

// errorName is the shortest thing that tells an error's kind.
func errorName(raw json.RawMessage) string {
	var e struct {
		Code any    `json:"code"`
		Type string `json:"type"`
	}
	name := "unnamed"
	if json.Unmarshal(raw, &e) == nil {
		switch c := e.Code.(type) {
		case float64:
			name = strconv.Itoa(int(c))
		case string:
			name = c
		default:
			if e.Type != "" {
				name = e.Type
			}
		}
	}
	return fmt.Sprintf("%.*s", maxErrorName, name)
}
