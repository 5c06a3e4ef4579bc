// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"kindex/internal/logsink"
)

// Each change of a rank is one line that names it; a rank that flaps does not fill
// the log.
func TestChangesAreLogged(t *testing.T) {
	var out bytes.Buffer
	e, ps := openTest(t, 2, func(c *EngineConfig) { c.Log = logsink.NewLogger(&out, "text", slog.LevelInfo) })
	logged := func(want ...string) {
		t.Helper()
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		out.Reset()
		for _, w := range want {
			found := false
			for _, l := range lines {
				found = found || strings.Contains(l, w) && strings.Contains(l, "engine=w0 rank=1")
			}
			if !found {
				t.Errorf("no line of rank 1 says %q:\n%s", w, strings.Join(lines, "\n"))
			}
		}
	}
	p := ps[1]
	p.connect()
	feedChain(p, 0, 2)
	logged(`level=INFO msg="stream active"`)
	feedChain(p, 5, 6)
	for range 20 {
		p.pass(time.Second)
	}
	logged(`level=WARN msg="batches lost"`, "from=3 to=4 why=", `level=WARN msg="stream degraded" `)
	p.kept = nil
	p.publish(0, payload(100, clearAll()))
	logged(`msg="content begins anew"`, "publisher restarted", `level=INFO msg="stream active"`)
	p.disconnect()
	logged(`level=WARN msg="stream degraded"`)
	for range 200 {
		p.connect()
		p.disconnect()
	}
	if n := strings.Count(out.String(), "\n"); n > 20 {
		t.Errorf("a rank that flapped 200 times wrote %d lines", n)
	}
	e.Close()
}
