// SPDX-License-Identifier: Apache-2.0

package logsink

import (
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// flushWait bounds how long closing waits for a sink that does not drain.
const flushWait = time.Second

// Sink is an [io.Writer] that never waits for the writer behind it: lines are
// queued and written by a goroutine of its own; a line that finds the queue full
// is dropped and counted. A terminal, pipe or journal that stalls costs log
// lines and nothing else.
//
// Concurrency: any goroutine. Cost: one allocation and one copy a line.
type Sink struct {
	out     io.Writer
	direct  *slog.Logger // above out, used by drain alone
	lines   chan []byte
	dropped atomic.Uint64
	done    chan struct{} // closed when the last line is written

	mu     sync.RWMutex // guards closed against sends on a closed channel
	closed bool
}

// New returns a sink before out that holds up to depth lines. Its own
// words have the given format.
func New(out io.Writer, format string, depth int) *Sink {
	s := &Sink{
		out:    out,
		direct: NewLogger(out, format, slog.LevelWarn),
		lines:  make(chan []byte, max(depth, 1)),
		done:   make(chan struct{}),
	}
	go s.drain()
	return s
}

// Write queues one line. It never blocks and never fails.
func (s *Sink) Write(line []byte) (int, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closed {
		s.dropped.Add(1)
		return len(line), nil
	}
	select {
	case s.lines <- append([]byte(nil), line...):
	default:
		s.dropped.Add(1)
	}
	return len(line), nil
}

// Dropped counts the lines that found no room, or no sink any more.
func (s *Sink) Dropped() uint64 { return s.dropped.Load() }

// Close writes what is queued and ends the sink. It gives up after a second when
// the writer behind does not take it; what is left then is lost.
func (s *Sink) Close() {
	s.mu.Lock()
	if !s.closed {
		s.closed = true
		close(s.lines)
	}
	s.mu.Unlock()
	t := time.NewTimer(flushWait)
	defer t.Stop()
	select {
	case <-s.done:
	case <-t.C:
	}
}

// drain writes lines, and says in the log itself how many were dropped since it
// last could.
func (s *Sink) drain() {
	defer close(s.done)
	var told uint64
	for line := range s.lines {
		if n := s.dropped.Load(); n != told {
			s.direct.Warn("log lines dropped", "count", n-told)
			told = n
		}
		// There is nobody to tell that the log cannot be written.
		_, _ = s.out.Write(line)
	}
}

// NewLogger returns a logger in one of [Formats] above w.
func NewLogger(w io.Writer, format string, level slog.Leveler) *slog.Logger {
	o := &slog.HandlerOptions{Level: level}
	if format == "json" {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}

// Formats are the log formats, the default first.
var Formats = []string{"text", "json"}
