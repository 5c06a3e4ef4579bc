// SPDX-License-Identifier: Apache-2.0

package logsink

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// What flaps writes a few lines and then one a period, the newest, and counts the
// rest; what rarely changes is told each time.
func TestChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out guarded
		c := NewChanges(NewLogger(&out, "text", slog.LevelInfo).With("rank", 3))
		lines := func() []string {
			synctest.Wait()
			return strings.Split(strings.TrimSpace(out.take()), "\n")
		}
		for i := range 1000 {
			c.Tell(slog.LevelWarn, fmt.Sprint("change ", i))
			c.Tell(slog.LevelDebug, "nobody wants this")
		}
		if got := lines(); len(got) != changeBurst || !strings.Contains(got[0], `msg="change 0" rank=3`) {
			t.Errorf("1000 changes at once: %d lines, the first %q, want %d", len(got), got[0], changeBurst)
		}
		time.Sleep(changePeriod)
		if got := lines(); len(got) != 1 || !strings.Contains(got[0], `"change 999" rank=3 changes_left_out=989`) {
			t.Errorf("a period later: %q, want the newest change and that 989 were left out", got)
		}
		for range 60 {
			c.Tell(slog.LevelInfo, "flaps")
			time.Sleep(time.Second)
		}
		if got := lines(); len(got) > 7 {
			t.Errorf("a minute of a change each second: %d lines, want one in ten", len(got))
		}
		time.Sleep(time.Hour)
		lines()
		for i := range 20 {
			c.Tell(slog.LevelInfo, "seldom", "n", i)
			time.Sleep(changePeriod)
		}
		if got := lines(); len(got) != 20 || strings.Contains(strings.Join(got, ""), "left_out") {
			t.Errorf("20 changes, each a period apart: %q", got)
		}
		for range 20 {
			c.Tell(slog.LevelInfo, "the end")
		}
		c.Close()
		lines()
		time.Sleep(time.Hour)
		if got := lines(); got[0] != "" {
			t.Errorf("after it was closed: %q", got)
		}
	})
}

// guarded is a buffer that a timer's goroutine writes to.
type guarded struct {
	mu  sync.Mutex
	out bytes.Buffer
}

func (g *guarded) Write(b []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.out.Write(b)
}

func (g *guarded) take() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	defer g.out.Reset()
	return g.out.String()
}
