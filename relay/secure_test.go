// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"crypto/tls"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"

	"kindex/internal/secure"
	"kindex/internal/secure/securetest"
	relayv1 "kindex/proto/kindex/relay/v1"
)

// dialer returns dial options of a client that trusts a, with a certificate of by
// unless that is nil.
func dialer(a, by *securetest.Authority) grpc.DialOption {
	return grpc.WithTransportCredentials(credentials.NewTLS(a.Client(by, time.Now().Add(time.Hour))))
}

// writeFile is short for securetest's.
func writeFile(t testing.TB, path string, text []byte) string {
	t.Helper()
	return securetest.WriteFile(t, path, text)
}

func quiet(error) {}

func testTokens(t *testing.T, text string) *secure.Tokens {
	t.Helper()
	tok, err := tokenForm.ReadTokens(writeFile(t, filepath.Join(t.TempDir(), "tokens"), []byte(text)), quiet)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

func describe1(ctx context.Context, conn *grpc.ClientConn) error {
	_, err := relayv1.NewRelayServiceClient(conn).Describe(ctx, &relayv1.DescribeRequest{})
	return err
}

// TestTLS: TLS 1.3 alone, certificates that are read again, clients that must
// show one.
func TestTLS(t *testing.T) {
	dir := t.TempDir()
	a, other := securetest.New(t, "ours"), securetest.New(t, "theirs")
	files := secure.TLSFiles{}
	files.Cert, files.Key = a.Pair(dir, "relay")
	files.ClientCA = writeFile(t, filepath.Join(dir, "ca.PEM"), a.PEM)
	told := make(chan error, 10)
	cfg, err := files.Config(func(err error) { told <- err }, "h2")
	if err != nil {
		t.Fatal(err)
	}
	o := rigOptions()
	o.tls = cfg
	g := newRig(t, EngineConfig{}, o, &served{})
	ctx := testContext(t)
	if err := describe1(ctx, g.dial(dialer(a, a))); err != nil {
		t.Errorf("a good certificate: %v", err)
	}
	wantCode(t, "no certificate", describe1(ctx, g.dial(dialer(a, nil))), codes.Unavailable)
	wantCode(t, "another authority's certificate", describe1(ctx, g.dial(dialer(a, other))), codes.Unavailable)
	wantCode(t, "no TLS", describe1(ctx, g.conn), codes.Unavailable)
	old := a.Client(a, time.Now().Add(time.Hour))
	old.MinVersion, old.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	if conn, err := tls.Dial("tcp", g.e.listen, old); err == nil {
		_ = conn.Close()
		t.Error("TLS 1.2 is taken")
	}
	for g.e.stats.handshakes.Load() < 4 { // a client knows before the server
		if ctx.Err() != nil {
			t.Fatalf("%d failed handshakes are counted, want 4 or more", g.e.stats.handshakes.Load())
		}
		time.Sleep(time.Millisecond)
	}

	// What was read stays in force when it cannot be read again.
	writeFile(t, files.Key, []byte("nonsense"))
	reread := func(do func() error) error {
		for range 40 {
			_ = do()
			select {
			case err := <-told:
				return err
			case <-time.After(100 * time.Millisecond):
			}
		}
		t.Fatal("changed files were not read again")
		return nil
	}
	if err := reread(func() error { return describe1(ctx, g.dial(dialer(a, a))) }); err == nil {
		t.Error("a key that is none is taken")
	}
	if err := describe1(ctx, g.dial(dialer(a, a))); err != nil {
		t.Errorf("after a bad change: %v", err)
	}
	// Another authority takes over, for the server and its clients.
	certPEM, keyPEM := other.Issue("relay", time.Now().Add(time.Hour))
	writeFile(t, files.Cert, certPEM)
	writeFile(t, files.Key, keyPEM)
	writeFile(t, files.ClientCA, other.PEM)
	if err := reread(func() error { return describe1(ctx, g.dial(dialer(other, other))) }); err != nil {
		t.Errorf("a good change: %v", err)
	}
	if err := describe1(ctx, g.dial(dialer(other, other))); err != nil {
		t.Errorf("after a good change: %v", err)
	}
	wantCode(t, "the old authority's client", describe1(ctx, g.dial(dialer(other, a))), codes.Unavailable)
}

// TestTokens: good ones, wrong ones, none; a role is no hindrance.
func TestTokens(t *testing.T) {
	o := rigOptions()
	o.tokens = testTokens(t, "# of gateways\nfirst-token-1\n\nsecond-token\r\nadmin third-token-3 ops\n")
	g := newRig(t, EngineConfig{}, o, &served{})
	with := func(header string) error {
		ctx := testContext(t)
		if header != "" {
			ctx = metadata.AppendToOutgoingContext(ctx, "authorization", header)
		}
		return describe1(ctx, g.conn)
	}
	for _, header := range []string{"Bearer first-token-1", "bearer second-token", "Bearer  second-token ", "Bearer third-token-3"} {
		if err := with(header); err != nil {
			t.Errorf("%q: %v", header, err)
		}
	}
	wantCode(t, "none", with(""), codes.Unauthenticated, "Bearer TOKEN")
	wantCode(t, "another scheme", with("Basic first-token-1"), codes.Unauthenticated, "Bearer TOKEN")
	for _, header := range []string{"Bearer first-token-", "Bearer first-token-12", "Bearer # of gateways", "Bearer "} {
		wantCode(t, header, with(header), codes.Unauthenticated, "not one of this relay's")
	}
	_, err := g.peer(testContext(t), 0).Recv()
	wantCode(t, "a stream without a token", err, codes.Unauthenticated)
	if _, err := healthpb.NewHealthClient(g.conn).Check(testContext(t), &healthpb.HealthCheckRequest{}); err != nil {
		t.Errorf("a health check without a token: %v", err)
	}
	if n := g.e.stats.denied.Load(); n != 7 {
		t.Errorf("%d RPCs are counted as denied, want 7", n)
	}
}
