// SPDX-License-Identifier: Apache-2.0

package logsink

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"
)

// gateWriter blocks until its gate is opened.
type gateWriter struct {
	gate chan struct{}
	mu   sync.Mutex
	b    bytes.Buffer
}

func (g *gateWriter) Write(p []byte) (int, error) {
	<-g.gate
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.b.Write(p)
}

// TestLogNeverBlocks: with a sink that takes nothing, logging goes on at once;
// what found no room is counted and told when the sink takes lines again.
func TestLogNeverBlocks(t *testing.T) {
	out := &gateWriter{gate: make(chan struct{})}
	sink := New(out, "json", 8)
	log := NewLogger(sink, "json", slog.LevelInfo)
	begun := time.Now()
	for i := range 10_000 {
		log.Info("line", "i", i)
	}
	if took := time.Since(begun); took > 2*time.Second {
		t.Errorf("10,000 lines into a blocked sink took %s", took)
	}
	// One line is in the writer's hands, eight wait.
	if got := sink.Dropped(); got < 10_000-9 || got > 10_000-8 {
		t.Errorf("%d lines dropped, want 9,991 or 9,992", got)
	}
	close(out.gate)
	sink.Close()
	lines := strings.Split(strings.TrimSpace(out.b.String()), "\n")
	told := 0
	for _, l := range lines {
		var rec struct {
			Msg   string
			Count int
		}
		if err := json.Unmarshal([]byte(l), &rec); err != nil {
			t.Errorf("%s: %v", l, err)
		}
		told += rec.Count
	}
	if told != int(sink.Dropped()) {
		t.Errorf("the log tells of %d dropped lines, %d were", told, sink.Dropped())
	}
	log.Info("after the end") // lost, and nothing worse
	if got := sink.Dropped(); got != uint64(told)+1 {
		t.Errorf("a line after Close is not counted: %d", got)
	}
}

// TestLogCloseBounded: a sink that is stuck for good does not keep the program.
func TestLogCloseBounded(t *testing.T) {
	out := &gateWriter{gate: make(chan struct{})}
	sink := New(out, "text", 8)
	NewLogger(sink, "text", slog.LevelInfo).Info("stuck")
	begun := time.Now()
	sink.Close()
	if took := time.Since(begun); took > 2*flushWait {
		t.Errorf("closing took %s, the bound is %s", took, flushWait)
	}
	close(out.gate)
	<-sink.done
}

// TestLogParallel: lines stay whole.
func TestLogParallel(t *testing.T) {
	var out bytes.Buffer
	sink := New(&out, "json", 10_000)
	log := NewLogger(sink, "json", slog.LevelInfo)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 500 {
				log.Info("x", "long", strings.Repeat("y", 200))
			}
		})
	}
	wg.Wait()
	sink.Close()
	n := 0
	for l := range strings.Lines(out.String()) {
		if !json.Valid([]byte(l)) {
			t.Fatalf("a torn line: %s", l)
		}
		n++
	}
	if n != 4_000 || sink.Dropped() != 0 {
		t.Errorf("%d lines, %d dropped, want 4,000 and none", n, sink.Dropped())
	}
}
