// SPDX-License-Identifier: Apache-2.0

// Before: the transports, which have an answer. After: the router, which compares what
// it expected.

package openai

import (
	"bytes"
	"encoding/json"
)

// Usage is what an answer says that it cost, in tokens: of all prompts and answers of
// the request together.
type Usage struct {
	Known       bool // the answer said it
	CachedKnown bool // and how much of the prompt came out of a cache
	Prompt      int64
	Cached      int64
	Completion  int64
}

type anyAnswer struct {
	Choices []json.RawMessage `json:"choices"`
	Error   json.RawMessage   `json:"error"`
	Usage   *struct {
		Prompt     int64 `json:"prompt_tokens"`
		Completion int64 `json:"completion_tokens"`
		Details    *struct {
			Cached *int64 `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	} `json:"usage"`
	Meta *struct {
		Prompt     int64  `json:"prompt_tokens"`
		Completion int64  `json:"completion_tokens"`
		Cached     *int64 `json:"cached_tokens"`
	} `json:"meta_info"`
}

func (a *anyAnswer) into(u *Usage) {
	if v := a.Usage; v != nil {
		*u = Usage{Known: true, Prompt: v.Prompt, Completion: v.Completion}
		if v.Details != nil && v.Details.Cached != nil {
			u.CachedKnown, u.Cached = true, *v.Details.Cached
		}
	}
	if v := a.Meta; v != nil {
		*u = Usage{Known: true, Prompt: v.Prompt, Completion: v.Completion}
		if v.Cached != nil {
			u.CachedKnown, u.Cached = true, *v.Cached
		}
	}
}

// ScanUsage reads the usage out of a whole answer; one that tells none leaves u.Known
// false.
func ScanUsage(body []byte, u *Usage) {
	*u = Usage{}
	var a anyAnswer
	if json.Unmarshal(body, &a) == nil {
		a.into(u)
	}
}

// Seen is what whole events of a stream ended in the bytes just scanned.
type Seen struct {
	Events int  // whole events, comments aside
	Output int  // of them, those that carry output
	Usage  bool // one told the usage: see [EventScanner.Usage]
	Error  bool // one is an error of the engine
	Done   bool // the engine said that this was all: [DONE]
	Whole  int  // bytes up to the end of the last whole event; 0: none ended here
}

// EventScanner follows a stream of server-sent events while its bytes pass by, cut
// anywhere.
//
// Concurrency: one goroutine.
type EventScanner struct {
	usage Usage
	buf   []byte
	done  bool
}

// Reset begins a new stream.
func (s *EventScanner) Reset() { *s = EventScanner{buf: s.buf[:0]} }

// Scan takes the next bytes. It keeps none of b.
func (s *EventScanner) Scan(b []byte) (seen Seen) {
	for i, c := range b {
		s.buf = append(s.buf, c)
		if !bytes.HasSuffix(s.buf, []byte("\n\n")) && !bytes.HasSuffix(s.buf, []byte("\r\n\r\n")) {
			continue
		}
		seen.Whole = i + 1
		data, ok := bytes.CutPrefix(bytes.TrimSpace(s.buf), []byte("data:"))
		if ok {
			seen.Events++
			s.event(bytes.TrimSpace(data), &seen)
		}
		s.buf = s.buf[:0]
	}
	return seen
}

func (s *EventScanner) event(data []byte, seen *Seen) {
	if string(data) == "[DONE]" {
		seen.Done, s.done = true, true
		return
	}
	var a anyAnswer
	if json.Unmarshal(data, &a) != nil {
		return
	}
	if len(a.Error) > 0 {
		seen.Error = true
	}
	if len(a.Choices) > 0 || a.Meta != nil {
		seen.Output++
	}
	if a.Usage != nil || a.Meta != nil {
		a.into(&s.usage)
		seen.Usage = true
	}
}

// Usage returns the newest usage that an event told.
func (s *EventScanner) Usage() Usage { return s.usage }

// Done reports whether the engine said that the stream was complete.
func (s *EventScanner) Done() bool { return s.done }

// Mid reports whether bytes came after the last whole event: a stream that ends here
// was cut.
func (s *EventScanner) Mid() bool { return len(s.buf) > 0 }
