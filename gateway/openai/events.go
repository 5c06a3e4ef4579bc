// SPDX-License-Identifier: Apache-2.0

// Before: the bytes of a stream, as they come from an engine. After: the router, which
// hears of tokens and of the usage; the client, who gets the bytes as they are.

package openai

import (
	"bytes"

	"kindex/internal/jsonscan"
)

const (
	// maxEvent bounds what is kept of an event that has not ended in one read.
	maxEvent = 256 << 10
	// keptTail is what is kept of the end of one that is longer: engines write what an
	// event cost behind what it says.
	keptTail = 16 << 10
)

// Seen is what whole events of a stream ended in the bytes just scanned.
type Seen struct {
	Events int  // whole events that have data: comments do not count
	Output int  // of them, those that carry output
	Usage  bool // one told the usage: see [EventScanner.Usage]
	Error  bool // one is an error of the engine
	Done   bool // the engine said that this was all: [DONE]
	Whole  int  // bytes up to the end of the last whole event; 0: none ended here
}

// EventScanner follows a stream of server-sent events while its bytes pass by, cut
// anywhere. The zero value is ready.
//
// Concurrency: one goroutine. Cost: about 1 ns a byte; nothing is copied of an event
// that comes in one read, and of another one at most 256 KiB are kept.
type EventScanner struct {
	buf      []byte // of the event that has not ended
	join     []byte // the data of one that is on several lines
	returned bool   // the line that has not ended begins with a carriage return
	open     bool   // and has more than that
	cut      bool   // buf has the event's end alone
	done     bool
	usage    Usage
	scan     jsonscan.Scanner
}

// Reset begins a new stream; the scanner keeps its memory.
func (s *EventScanner) Reset() { *s = EventScanner{buf: s.buf[:0], join: s.join[:0], scan: s.scan} }

// Usage returns the newest usage that an event told. A stream that tells it with each
// event, as SGLang's /generate does, tells that of one of its choices each time.
func (s *EventScanner) Usage() Usage { return s.usage }

// Done reports whether the engine said that the stream was complete.
func (s *EventScanner) Done() bool { return s.done }

// Mid reports whether bytes came after the last whole event: a stream that ends here
// was cut.
func (s *EventScanner) Mid() bool { return s.cut || len(s.buf) > 0 }

// Scan takes the next bytes. It keeps none of b.
func (s *EventScanner) Scan(b []byte) (seen Seen) {
	from, i := 0, 0
	for {
		n := bytes.IndexByte(b[i:], '\n')
		if n < 0 {
			break
		}
		empty := !s.open && (n == 0 || n == 1 && b[i] == '\r' && !s.returned)
		i, s.open, s.returned = i+n+1, false, false
		if !empty {
			continue
		}
		event := b[from:i]
		if s.Mid() {
			s.keep(event)
			event = s.buf
		}
		s.event(event, &seen)
		s.buf, s.cut = s.buf[:0], false
		from, seen.Whole = i, i
	}
	switch rest := b[i:]; {
	case len(rest) == 0:
	case string(rest) == "\r" && !s.returned:
		s.returned = true
	default:
		s.open = true
	}
	s.keep(b[from:])
	return seen
}

// keep adds to the event that has not ended.
func (s *EventScanner) keep(b []byte) {
	if len(s.buf)+len(b) > maxEvent {
		s.cut = true
		if len(b) >= keptTail {
			s.buf, b = s.buf[:0], b[len(b)-keptTail:]
		} else if over := len(s.buf) + len(b) - keptTail; over > 0 {
			s.buf = append(s.buf[:0], s.buf[min(over, len(s.buf)):]...)
		}
	}
	s.buf = append(s.buf, b...)
}

// event reads one whole event.
func (s *EventScanner) event(event []byte, seen *Seen) {
	if s.cut {
		// Too long for anything but output, and its begin is gone.
		seen.Events++
		seen.Output++
		if u := (Usage{}); tailUsage(bytes.TrimRight(event, "\r\n"), &u) && u.Known {
			s.usage, seen.Usage = u, true
		}
		return
	}
	var data []byte
	lines := 0
	for len(event) > 0 {
		line, rest, _ := bytes.Cut(event, newline)
		event = rest
		line = bytes.TrimSuffix(line, carriage)
		value, ok := bytes.CutPrefix(line, dataName)
		switch {
		case !ok:
			if bytes.HasPrefix(line, eventName) && string(bytes.TrimSpace(line[len(eventName):])) == "error" {
				seen.Error = true
			}
			continue
		case lines == 1:
			s.join = append(s.join[:0], data...)
			fallthrough
		case lines > 1:
			s.join = append(append(s.join, '\n'), value...)
			data = s.join
		default:
			data = value
		}
		lines++
	}
	if lines > 0 {
		seen.Events++
		s.data(bytes.TrimSpace(data), seen)
	}
}

var newline, carriage, dataName, eventName = []byte("\n"), []byte("\r"), []byte("data:"), []byte("event:")

// data reads the data of one event.
func (s *EventScanner) data(data []byte, seen *Seen) {
	if string(data) == "[DONE]" {
		seen.Done, s.done = true, true
		return
	}
	var a answer
	s.scan.ResetDeep(data, maxDepth)
	if a.read(&s.scan) != nil {
		seen.Output++ // whatever it is, the engine has said something
		return
	}
	if a.output {
		seen.Output++
	}
	seen.Error = seen.Error || a.failed
	if a.usage.Known {
		s.usage, seen.Usage = a.usage, true
	}
}
