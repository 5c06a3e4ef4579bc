// SPDX-License-Identifier: Apache-2.0

package indexsrv

import (
	"testing"
	"time"
)

// TestLimiter: bursts, the rate after, each address by itself, all together.
func TestLimiter(t *testing.T) {
	l := newLimiter()
	now := time.Unix(1_800_000_000, 0)
	written := func(address string, tries int) (n int, told uint64) {
		for range tries {
			if skipped, ok := l.allow(address, now); ok {
				n++
				told += skipped
			}
		}
		return n, told
	}
	if n, _ := written("a", 100); n != lineBurst {
		t.Errorf("a burst: %d lines, want %d", n, lineBurst)
	}
	now = now.Add(3 * time.Second)
	if n, told := written("a", 100); n != 3*linesASecond || told != 100-lineBurst {
		t.Errorf("3 s later: %d lines that tell of %d, want %d and %d", n, told, 3*linesASecond, 100-lineBurst)
	}
	now = now.Add(time.Hour)
	all := 0
	for i := range 1000 {
		n, _ := written(string(rune('0'+i)), 10)
		all += n
	}
	if all != allLinesBurst {
		t.Errorf("from 1,000 addresses: %d lines, want %d", all, allLinesBurst)
	}
	now = now.Add(-time.Hour) // a clock that is set back gives nothing
	if n, _ := written("b", 10); n != 0 {
		t.Errorf("a clock set back: %d lines", n)
	}
}

// TestFlood: a client that is refused without end leaves few lines, and is counted.
func TestFlood(t *testing.T) {
	const tries = 500
	g := startSecure(t, func(c *Config) { c.TokenFile = tokenFile(t) })
	for range tries {
		if a := g.send(g.url, "POST", "/register", "wrong-token", "{}"); a.code != 401 {
			t.Fatalf("%d %s", a.code, a.text)
		}
	}
	began := len(g.audits())
	if began < lineBurst || began > lineBurst+20 || g.refusals(reasonWrongToken) != tries {
		t.Errorf("%d lines and %d counted of %d refusals", began, g.refusals(reasonWrongToken), tries)
	}
	if n := g.gate.audit.suppressed.Load(); n != tries-uint64(began) {
		t.Errorf("%d lines were left out, want %d", n, tries-began)
	}
	waitFor(t, "a line that tells of the others", func() bool {
		g.send(g.url, "POST", "/register", "wrong-token", "{}")
		return g.lastAudit().Suppressed > 0
	})
	// What changes something has its line all the same.
	if a := g.send(g.url, "POST", "/register", "writer-token", reg("1", "m", "")); a.code != 201 {
		t.Fatalf("%d %s", a.code, a.text)
	}
	if l := g.lastAudit(); l.Who != "deployer" || l.Result != "ok" {
		t.Errorf("a change after the flood: %+v", l)
	}
}
