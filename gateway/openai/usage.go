// SPDX-License-Identifier: Apache-2.0

// Before: the transports, which have an answer. After: the router, which compares what
// it expected.

package openai

import (
	"bytes"

	"kindex/internal/jsonscan"
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

// add takes the cost of one of several answers to it.
func (u *Usage) add(v Usage) {
	if !v.Known {
		return
	}
	if u.Known {
		v.CachedKnown = v.CachedKnown && u.CachedKnown
	}
	u.Known, u.CachedKnown = true, v.CachedKnown
	u.Prompt, u.Cached, u.Completion = u.Prompt+v.Prompt, u.Cached+v.Cached, u.Completion+v.Completion
}

// ScanUsage reads the usage out of a whole answer; one that tells none leaves u.Known
// false. Of a list of answers it is the sum.
//
// Cost: that of what stands from the usage on, which engines write near the end; a
// whole pass where it stands elsewhere.
func ScanUsage(body []byte, u *Usage) {
	*u = Usage{}
	var s jsonscan.Scanner
	s.ResetDeep(body, maxDepth)
	switch s.Space() {
	case '{':
		if tailUsage(body, u) || !bytes.Contains(body, usageName) && !bytes.Contains(body, metaName) {
			return
		}
		var a answer
		if a.read(&s) == nil && s.End() == nil {
			*u = a.usage
		}
	case '[':
		s.Take('[')
		for first := true; ; first = false {
			done, err := s.Next(first, ']')
			var a answer
			if err == nil && !done {
				err = a.read(&s)
			}
			switch {
			case err != nil:
				*u = Usage{}
				return
			case done:
				return
			}
			u.add(a.usage)
		}
	}
}

var usageName, metaName = []byte(`"usage"`), []byte(`"meta_info"`)

// tailUsage reads the usage from the last place that has its name, where that is a
// member of the object itself: what follows it then ends exactly with the text, which
// no deeper one's can. A string has no bare quotes, so that the name is never part of
// one: before it stands a comma or a brace.
func tailUsage(body []byte, u *Usage) bool {
	at, meta := bytes.LastIndex(body, usageName), false
	past := at + len(usageName)
	if at < 0 {
		at, meta = bytes.LastIndex(body, metaName), true
		past = at + len(metaName)
	}
	if at < 0 {
		return false
	}
	if before := bytes.TrimRight(body[:at], " \t\r\n"); len(before) == 0 || before[len(before)-1] != ',' && before[len(before)-1] != '{' {
		return false
	}
	var s jsonscan.Scanner
	s.ResetDeep(body, maxDepth)
	s.Seek(past)
	if s.Colon() != nil {
		return false
	}
	var a answer
	if readCost(&s, &a.usage, meta) != nil {
		return false
	}
	for {
		done, err := s.Next(false, '}')
		if err != nil {
			return false
		}
		if done {
			break
		}
		if _, err := s.RawText(); err != nil || s.Colon() != nil || s.Skip(maxDepth-1) != nil {
			return false
		}
	}
	if s.End() != nil {
		return false
	}
	*u = a.usage
	return true
}

// answer is what an answer, or one event of it, says.
type answer struct {
	usage  Usage
	output bool // it carries output
	failed bool // it is an error
}

// read reads an answer, which is an object.
func (a *answer) read(s *jsonscan.Scanner) error {
	return eachMember(s, func(key []byte) error {
		var has bool
		var err error
		switch string(key) {
		case "usage":
			return readCost(s, &a.usage, false)
		case "meta_info":
			return readCost(s, &a.usage, true)
		case "choices":
			return a.choices(s)
		case "text", "output_ids":
			has, err = something(s)
			a.output = a.output || has
		case "error":
			has, err = something(s)
			a.failed = a.failed || has
		case "object":
			if s.Space() == '"' {
				kind, err := s.RawText()
				a.failed = a.failed || string(kind) == "error"
				return err
			}
			return s.Skip(maxDepth - 1)
		default:
			return s.Skip(maxDepth - 1)
		}
		return err
	})
}

// choices reads the answers of one event.
func (a *answer) choices(s *jsonscan.Scanner) error {
	if s.Space() != '[' {
		return s.Skip(maxDepth - 1)
	}
	s.Take('[')
	for first := true; ; first = false {
		done, err := s.Next(first, ']')
		if done || err != nil {
			return err
		}
		if err := eachMember(s, func(key []byte) error {
			var has bool
			var err error
			switch string(key) {
			case "text", "token_ids", "finish_reason":
				has, err = something(s)
			case "delta", "message":
				return eachMember(s, func(key []byte) error {
					if string(key) == "role" {
						return s.Skip(maxDepth - 4)
					}
					has, err := something(s)
					a.output = a.output || has
					return err
				})
			default:
				err = s.Skip(maxDepth - 3)
			}
			a.output = a.output || has
			return err
		}); err != nil {
			return err
		}
	}
}

// eachMember calls read at each member's value of an object; a value of another kind
// is read over.
func eachMember(s *jsonscan.Scanner, read func(key []byte) error) error {
	if s.Space() != '{' {
		return s.Skip(maxDepth - 3)
	}
	s.Take('{')
	for first := true; ; first = false {
		done, err := s.Next(first, '}')
		if done || err != nil {
			return err
		}
		key, err := s.RawText()
		if err == nil {
			err = s.Colon()
		}
		if err == nil {
			err = read(key)
		}
		if err != nil {
			return err
		}
	}
}

// something reads over a value, and reports whether it is more than null, false, "",
// [] and {}.
func something(s *jsonscan.Scanner) (bool, error) {
	switch c := s.Space(); c {
	case 'n', 'f':
		return false, s.Skip(maxDepth - 4)
	case '"':
		t, err := s.RawText()
		return len(t) > 0, err
	case '[', '{':
		from := s.Offset()
		err := s.Skip(maxDepth - 4)
		return s.Offset() > from+2, err
	}
	return true, s.Skip(maxDepth - 4)
}

// readCost reads a usage, or SGLang's meta_info where meta is set: there the cached
// tokens stand beside the others.
func readCost(s *jsonscan.Scanner, u *Usage, meta bool) error {
	if s.Space() != '{' {
		return s.Skip(maxDepth - 1)
	}
	*u = Usage{}
	return eachMember(s, func(key []byte) error {
		var err error
		switch string(key) {
		case "prompt_tokens":
			return readTokens(s, &u.Prompt, &u.Known)
		case "completion_tokens":
			return readTokens(s, &u.Completion, &u.Known)
		case "cached_tokens":
			if meta {
				return readTokens(s, &u.Cached, &u.CachedKnown)
			}
			err = s.Skip(maxDepth - 2)
		case "prompt_tokens_details":
			return eachMember(s, func(key []byte) error {
				if string(key) == "cached_tokens" {
					return readTokens(s, &u.Cached, &u.CachedKnown)
				}
				return s.Skip(maxDepth - 3)
			})
		default:
			err = s.Skip(maxDepth - 2)
		}
		return err
	})
}

// readTokens reads a number of tokens; known is set where it is one.
func readTokens(s *jsonscan.Scanner, n *int64, known *bool) error {
	v, ok, err := s.Integer(0, 1<<62)
	if ok {
		*n, *known = int64(v), true
	}
	return err
}
