// SPDX-License-Identifier: Apache-2.0

package indexsrv

import (
	"testing"

	"kindex/internal/logsink"
)

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
	if began < logsink.LineBurst || began > logsink.LineBurst+20 || g.refusals(reasonWrongToken) != tries {
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
