// SPDX-License-Identifier: Apache-2.0

package indexsrv

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"kindex/internal/secure/securetest"
)

// startPeer is an address that answers for /state what serve does, and notes the
// authorizations that it was shown.
func startPeer(t *testing.T, serve http.HandlerFunc) (url string, shown func() []string) {
	t.Helper()
	var mu sync.Mutex
	var seen []string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		seen = append(seen, r.Header.Get("Authorization"))
		mu.Unlock()
		serve(w, r)
	}))
	t.Cleanup(s.Close)
	return s.URL, func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(seen)
	}
}

// drip answers with what begins like a state, a byte now and then, until the client
// has had enough.
func drip(w http.ResponseWriter, r *http.Request) {
	for i := 0; r.Context().Err() == nil; i++ {
		b := []byte("KINDEXST\x01\x00\x00\x00\x00\x00\x00\x00")
		_, _ = w.Write(b[min(i, len(b)-1):][:1]) // a client that is gone
		_ = http.NewResponseController(w).Flush()
		select {
		case <-time.After(5 * time.Millisecond):
		case <-r.Context().Done():
		}
	}
}

// TestSlowPeers: peers that say nothing, or next to nothing, cost a new host the peer
// timeout at most, and leave the next ones their share of it.
func TestSlowPeers(t *testing.T) {
	never, _ := startPeer(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	dripping, _ := startPeer(t, drip)
	h, log := startLogged(t, func(c *Config) { c.Peers, c.PeerTimeout = never+","+dripping, 200*time.Millisecond })
	waitFor(t, "begun", func() bool { return h.beginning.Load() == nil })
	if n := strings.Count(log.String(), "too little, for too long"); n != 2 || !strings.Contains(log.String(), "given up") {
		t.Errorf("log:\n%s", log)
	}

	good := startTestHost(t, nil)
	good.register(reg("1", "m", ""))
	for _, slow := range []string{never, dripping} {
		h := startTestHost(t, func(c *Config) { c.Peers, c.PeerTimeout = slow+","+good.url, 4*time.Second })
		waitFor(t, "the copy", func() bool { return slices.Equal(h.ids(), []string{"1"}) })
	}
}

// TestPeerOfNoUse: of an answer that is no state no more is read than shows it, and
// nobody is followed elsewhere.
func TestPeerOfNoUse(t *testing.T) {
	elsewhere, asked := startPeer(t, drip)
	moved, _ := startPeer(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, elsewhere+"/state", http.StatusFound)
	})
	endless, _ := startPeer(t, func(w http.ResponseWriter, r *http.Request) {
		for b := make([]byte, 1<<16); r.Context().Err() == nil; {
			if _, err := w.Write(b); err != nil {
				return
			}
		}
	})
	h, log := startLogged(t, func(c *Config) { c.Peers, c.PeerTimeout = moved+","+endless, 2*time.Second })
	waitFor(t, "begun", func() bool { return h.beginning.Load() == nil })
	if n := len(asked()); n > 0 {
		t.Errorf("followed %d times", n)
	}
	for _, want := range []string{"302", "it is no state of an index host"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("no %q in the log:\n%s", want, log)
		}
	}
}

// TestPeerToken: the token for peers is shown to those that are configured, or named
// by a caller who may do everything; not to an address of a weaker caller's choice.
func TestPeerToken(t *testing.T) {
	refuse := func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusUnauthorized) }
	configured, shownConfigured := startPeer(t, refuse)
	file := securetest.WriteFile(t, filepath.Join(t.TempDir(), "peer"), []byte("peer-secret-token\n"))
	g := startSecure(t, func(c *Config) {
		c.TokenFile, c.PeerTokenFile, c.Peers, c.PeerTimeout = tokenFile(t), file, configured, 50*time.Millisecond
	})
	waitFor(t, "begun", func() bool { return g.beginning.Load() == nil })
	const whole = "Bearer peer-secret-token"
	if got := shownConfigured(); len(got) == 0 || got[0] != whole {
		t.Errorf("the configured peer was shown %q", got)
	}
	for _, c := range []struct{ token, want string }{{"writer-token", ""}, {"admin-token-1", whole}} {
		url, shown := startPeer(t, refuse)
		if a := g.send(g.url, "POST", "/register_peer", c.token, `{"url":"`+url+`"}`); a.code != 201 {
			t.Fatalf("%s: %d %s", c.token, a.code, a.text)
		}
		waitFor(t, "asked", func() bool { return len(shown()) > 0 })
		for _, got := range shown() {
			if got != c.want {
				t.Errorf("registered with %s: shown %q, want %q", c.token, got, c.want)
			}
		}
	}
	waitFor(t, "why not", func() bool { return strings.Contains(g.logged.String(), "is not shown peer-token-file") })
}

// TestPeerWithoutStateDir: a host whose state directory takes nothing copies all the
// same.
func TestPeerWithoutStateDir(t *testing.T) {
	good := startTestHost(t, nil)
	good.register(reg("1", "m", ""))
	dir := filepath.Join(t.TempDir(), "state")
	h := startTestHost(t, keptIn(dir, nil))
	h.ready()
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	h.want("POST", "/register_peer", `{"url":"`+good.url+`"}`, 201, `{"status":"ok"}`)
	waitFor(t, "the copy", func() bool { return slices.Equal(h.ids(), []string{"1"}) })
}
