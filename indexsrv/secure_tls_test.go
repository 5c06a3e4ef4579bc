// SPDX-License-Identifier: Apache-2.0

package indexsrv

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"kindex/internal/logsink"
	"kindex/internal/secure"
	"kindex/internal/secure/securetest"
)

// startTLS starts a host that speaks TLS and asks clients for certificates of a.
func startTLS(t *testing.T, a *securetest.Authority, change func(*Config)) (g *secureHost, dir string) {
	t.Helper()
	dir = t.TempDir()
	cert, key := a.Pair(dir, "host")
	ca := securetest.WriteFile(t, filepath.Join(dir, "ca.pem"), a.PEM)
	g = startSecure(t, func(c *Config) {
		c.TLSCert, c.TLSKey, c.TLSClientCA = cert, key, ca
		if change != nil {
			change(c)
		}
	})
	g.url = "https://" + g.Addr().String()
	return g, dir
}

func later() time.Time { return time.Now().Add(time.Hour) }

// ask asks with a connection of its own.
func (g *secureHost) ask(c *tls.Config, path, token string) (answer, error) {
	was := g.client
	defer func() { g.client = was }()
	g.client = tlsClient(c)
	resp, err := g.client.Get(g.url + "/health") //nolint:noctx // bounded by the client
	if err != nil {
		return answer{}, err
	}
	_ = resp.Body.Close()
	return g.send(g.url, "GET", path, token, ""), nil
}

// TestTLSRefusals: who is turned away in the handshake, and what the log and the
// metrics say of it.
func TestTLSRefusals(t *testing.T) {
	a, other := securetest.New(t, "ours"), securetest.New(t, "theirs")
	g, _ := startTLS(t, a, nil)
	waitFor(t, "the log to say where it serves", func() bool { return strings.Contains(g.logged.String(), "https://"+g.Addr().String()) })
	if got, err := g.ask(a.Client(a, later()), "/workers", ""); err != nil || got.code != 200 {
		t.Fatalf("a good certificate: %v, %v", got, err)
	}
	if got, err := g.ask(a.Client(a, later()), "/health", ""); err != nil || got.code != 200 {
		t.Fatalf("a good certificate: %v, %v", got, err)
	}
	old := a.Client(a, later())
	old.MinVersion, old.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	for _, c := range []struct {
		name   string
		client *tls.Config
		why    refusalReason
		detail string
	}{
		{"no certificate", a.Client(nil, later()), reasonNoCertificate, "didn't provide a certificate"},
		{"an expired certificate", a.Client(a, time.Now().Add(-time.Minute)), reasonCertificate, "expired"},
		{"another authority's", a.Client(other, later()), reasonCertificate, "unknown authority"},
		{"TLS 1.2", old, reasonTLSVersion, "unsupported versions"},
		{"a client that trusts another authority", other.Client(a, later()), reasonHandshake, "certificate"},
	} {
		g.forgive()
		before := g.refusals(c.why)
		if got, err := g.ask(c.client, "/workers", ""); err == nil {
			t.Errorf("%s: %v, want it refused", c.name, got)
		}
		waitFor(t, c.name+" to be counted", func() bool { return g.refusals(c.why) == before+1 })
		waitFor(t, c.name+" to be audited", func() bool {
			if len(g.audits()) == 0 {
				return false
			}
			l := g.lastAudit()
			return l.Reason == c.why.String() && l.Action == "connect" && l.Via == "http" && strings.Contains(l.Detail, c.detail) && strings.HasPrefix(l.Remote, "127.0.0.1:")
		})
	}
	addr := g.Addr().String()
	for _, text := range []string{"GET /workers HTTP/1.1\r\nHost: x\r\n\r\n", "POST /register HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n" + strings.Repeat("x", 50_000)} {
		if got := rawAnswer(t, addr, text); !strings.HasPrefix(got, "HTTP/1.1 400 ") || !strings.Contains(got, "ask it by https") {
			t.Errorf("plain HTTP: got %q", got)
		}
	}
	if got := rawAnswer(t, addr, "\x00\x00\x00\x00 nothing that anybody speaks"); strings.Contains(got, "HTTP") {
		t.Errorf("noise: got %q", got)
	}
	waitFor(t, "plain connections to be counted", func() bool { return g.refusals(reasonPlaintext) == 3 })
	// A probe of the port that says nothing is no refusal.
	before := g.gate.audit.total()
	for range 3 {
		if c, err := net.Dial("tcp", addr); err != nil || c.Close() != nil {
			t.Fatal(err)
		}
	}
	if got, err := g.ask(a.Client(a, later()), "/workers", ""); err != nil || got.code != 200 {
		t.Fatalf("after all that: %v, %v", got, err)
	}
	if n := g.gate.audit.total(); n != before {
		t.Errorf("%d refusals are counted of probes", n-before)
	}
	if strings.Contains(g.logged.String(), `"panic"`) {
		t.Errorf("a panic:\n%s", g.logged)
	}
}

// total is how many were turned away.
func (u *audit) total() (n uint64) {
	for i := range u.refusals {
		n += u.refusals[i].Load()
	}
	return n
}

// TestTLSWithTokens: a certificate and a token are both asked for, and both named.
func TestTLSWithTokens(t *testing.T) {
	a := securetest.New(t, "ours")
	g, _ := startTLS(t, a, func(c *Config) { c.TokenFile = tokenFile(t); c.AdminListen = "127.0.0.1:0" })
	g.client = tlsClient(a.Client(a, later()))
	if got := g.send(g.url, "GET", "/workers", "", ""); got.code != 401 {
		t.Errorf("no token: %d %s", got.code, got.text)
	}
	if l := g.lastAudit(); l.Who != "CN=client" {
		t.Errorf("audited as %+v, want the certificate's subject", l)
	}
	if got := g.send(g.url, "GET", "/workers", "reader-token", ""); got.code != 200 {
		t.Errorf("both: %d %s", got.code, got.text)
	}
	if got := g.send("https://"+g.gate.adminAddr(), "POST", "/register", "writer-token", reg("1", "m", "")); got.code != 201 {
		t.Errorf("the admin address: %d %s", got.code, got.text)
	}
	if l := g.lastAudit(); l.Who != "deployer" || l.Certificate != "CN=client" || l.Result != "ok" {
		t.Errorf("audited as %+v, want token and certificate", l)
	}
	if got := rawAnswer(t, g.gate.adminAddr(), "GET /metrics HTTP/1.1\r\n\r\n"); !strings.Contains(got, "https") {
		t.Errorf("plain HTTP at the admin address: %q", got)
	}
}

// TestCertificatesRotate: server's and clients' authority change without a restart,
// and a broken file leaves what was read in force.
func TestCertificatesRotate(t *testing.T) {
	a, other := securetest.New(t, "ours"), securetest.New(t, "theirs")
	g, dir := startTLS(t, a, nil)
	good := func(trusts, by *securetest.Authority) bool {
		got, err := g.ask(trusts.Client(by, later()), "/workers", "")
		return err == nil && got.code == 200
	}
	if !good(a, a) || good(other, other) {
		t.Fatal("before the change")
	}
	securetest.WriteFile(t, filepath.Join(dir, "key.pem"), []byte("nonsense"))
	waitFor(t, "the fault to be told", func() bool {
		if !good(a, a) {
			t.Fatal("with a broken key nobody is served")
		}
		return strings.Contains(g.logged.String(), "certificates cannot be read again")
	})
	other.Pair(dir, "host")
	securetest.WriteFile(t, filepath.Join(dir, "ca.pem"), other.PEM)
	waitFor(t, "the new certificates", func() bool { return good(other, other) })
	if good(a, a) || good(other, a) {
		t.Error("the old authority's client is let in")
	}
	if n := strings.Count(g.logged.String(), "certificates cannot be read again"); n != 1 {
		t.Errorf("told %d times of one fault:\n%s", n, g.logged)
	}
}

// TestExpiredMeanwhile: a connection does not outlive its certificate.
func TestExpiredMeanwhile(t *testing.T) {
	a := securetest.New(t, "ours")
	g, _ := startTLS(t, a, nil)
	c, err := tls.Dial("tcp", g.Addr().String(), a.Client(a, time.Now().Add(2*time.Second)))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	answered := func() string {
		if _, err := io.WriteString(c, "GET /workers HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 4096)
		n, err := c.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		return string(b[:n])
	}
	if got := answered(); !strings.HasPrefix(got, "HTTP/1.1 200 ") {
		t.Fatalf("at first: %q", got)
	}
	time.Sleep(2100 * time.Millisecond)
	if got := answered(); !strings.HasPrefix(got, "HTTP/1.1 401 ") || !strings.Contains(got, "has expired since") || g.refusals(reasonCertificate) != 1 {
		t.Errorf("after its time: %q", got)
	}
}

// TestSlowHandshake: whoever begins one and does not go on is cut off, counted, and
// holds up nobody.
func TestSlowHandshake(t *testing.T) {
	a := securetest.New(t, "ours")
	cert, key := a.Issue("host", later())
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	u := &audit{log: slog.New(slog.DiscardHandler), lines: logsink.NewLimiter()}
	failed := func(remote net.Addr, err error) { u.handshake(remote, "http", err) }
	l := &secure.Listener{Listener: ln, Config: &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair}}, Failed: failed, Limit: 50 * time.Millisecond}
	defer l.Close()
	ended := make(chan error, 2)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			conn, ok := c.(*secure.Conn)
			if !ok {
				ended <- fmt.Errorf("a connection of type %T", c)
				return
			}
			go func() {
				err := conn.Handshake()
				if _, end := conn.Read(make([]byte, 1)); err != nil && !errors.Is(end, io.EOF) {
					err = fmt.Errorf("a failed connection reads as %w", end)
				}
				ended <- err
			}()
		}
	}()
	for _, first := range []string{"", "\x16\x03\x01\x02\x00"} {
		c, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(c, first); err != nil {
			t.Fatal(err)
		}
		if err := <-ended; err == nil {
			t.Errorf("%q: the handshake is done", first)
		}
		_ = c.Close()
	}
	if n := u.refusals[reasonHandshakeTime].Load(); n != 2 {
		t.Errorf("%d are counted, want 2", n)
	}
}

// TestCertificateName: an identity in a URI comes before the subject.
func TestCertificateName(t *testing.T) {
	for want, c := range map[string]*x509.Certificate{
		"":              {},
		"CN=client":     {Subject: pkix.Name{CommonName: "client"}},
		"spiffe://d/gw": {Subject: pkix.Name{CommonName: "client"}, URIs: []*url.URL{{Scheme: "spiffe", Host: "d", Path: "/gw"}}},
	} {
		if got := secure.CertificateName(c); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
