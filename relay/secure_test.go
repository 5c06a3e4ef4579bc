// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"

	relayv1 "kindex/proto/kindex/relay/v1"
)

// authority signs certificates for tests.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func newAuthority(t *testing.T, name string) *authority {
	t.Helper()
	a := &authority{t: t}
	a.cert, a.key, a.pem, _ = a.issue(name, true)
	return a
}

// issue returns a certificate that a signed, or its own.
func (a *authority) issue(name string, isCA bool) (*x509.Certificate, *ecdsa.PrivateKey, []byte, []byte) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		a.t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, BasicConstraintsValid: true, IsCA: isCA,
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	parent, signer := template, key
	if a.cert != nil {
		parent, signer = a.cert, a.key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		a.t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	return cert, key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER})
}

// pair writes a certificate and its key, with a time of change that is not the
// last one's.
func (a *authority) pair(dir, name string) (cert, key string) {
	a.t.Helper()
	_, _, certPEM, keyPEM := a.issue(name, false)
	return writeFile(a.t, filepath.Join(dir, "cert.pem"), certPEM), writeFile(a.t, filepath.Join(dir, "key.pem"), keyPEM)
}

func writeFile(t *testing.T, path string, text []byte) string {
	t.Helper()
	old, statErr := os.Stat(path)
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if statErr == nil {
		later := old.ModTime().Add(2 * time.Second)
		if err := os.Chtimes(path, later, later); err != nil {
			t.Fatal(err)
		}
	}
	return path
}

func (a *authority) pool() *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(a.cert)
	return p
}

// client returns dial options of a client that trusts a, with a certificate of by
// unless that is nil.
func (a *authority) client(by *authority) grpc.DialOption {
	c := &tls.Config{RootCAs: a.pool(), MinVersion: tls.VersionTLS13}
	if by != nil {
		_, _, certPEM, keyPEM := by.issue("client", false)
		pair, err := tls.X509KeyPair(certPEM, keyPEM)
		if err != nil {
			a.t.Fatal(err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return grpc.WithTransportCredentials(credentials.NewTLS(c))
}

func quiet(error) {}

func testTokens(t *testing.T, text string) *tokens {
	t.Helper()
	tok, err := newTokens(writeFile(t, filepath.Join(t.TempDir(), "tokens"), []byte(text)), quiet)
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
	a, other := newAuthority(t, "ours"), newAuthority(t, "theirs")
	files := tlsFiles{}
	files.cert, files.key = a.pair(dir, "relay")
	files.clientCA = writeFile(t, filepath.Join(dir, "ca.pem"), a.pem)
	told := make(chan error, 10)
	cfg, err := files.config(func(err error) { told <- err }, "h2")
	if err != nil {
		t.Fatal(err)
	}
	o := rigOptions()
	o.tls = cfg
	g := newRig(t, EngineConfig{}, o, &served{})
	ctx := testContext(t)
	if err := describe1(ctx, g.dial(a.client(a))); err != nil {
		t.Errorf("a good certificate: %v", err)
	}
	wantCode(t, "no certificate", describe1(ctx, g.dial(a.client(nil))), codes.Unavailable)
	wantCode(t, "another authority's certificate", describe1(ctx, g.dial(a.client(other))), codes.Unavailable)
	wantCode(t, "no TLS", describe1(ctx, g.conn), codes.Unavailable)
	old := &tls.Config{RootCAs: a.pool(), MaxVersion: tls.VersionTLS12, MinVersion: tls.VersionTLS12}
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
	writeFile(t, files.key, []byte("nonsense"))
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
	if err := reread(func() error { return describe1(ctx, g.dial(a.client(a))) }); err == nil {
		t.Error("a key that is none is taken")
	}
	if err := describe1(ctx, g.dial(a.client(a))); err != nil {
		t.Errorf("after a bad change: %v", err)
	}
	// Another authority takes over, for the server and its clients.
	_, _, certPEM, keyPEM := other.issue("relay", false)
	writeFile(t, files.cert, certPEM)
	writeFile(t, files.key, keyPEM)
	writeFile(t, files.clientCA, other.pem)
	if err := reread(func() error { return describe1(ctx, g.dial(other.client(other))) }); err != nil {
		t.Errorf("a good change: %v", err)
	}
	if err := describe1(ctx, g.dial(other.client(other))); err != nil {
		t.Errorf("after a good change: %v", err)
	}
	wantCode(t, "the old authority's client", describe1(ctx, g.dial(other.client(a))), codes.Unavailable)
}

// TestTokens: good ones, wrong ones, none; the file that changes.
func TestTokens(t *testing.T) {
	o := rigOptions()
	o.tokens = testTokens(t, "# of gateways\nfirst-token-1\n\nsecond-token\r\n")
	g := newRig(t, EngineConfig{}, o, &served{})
	with := func(header string) error {
		ctx := testContext(t)
		if header != "" {
			ctx = metadata.AppendToOutgoingContext(ctx, "authorization", header)
		}
		return describe1(ctx, g.conn)
	}
	for _, header := range []string{"Bearer first-token-1", "bearer second-token", "Bearer  second-token "} {
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

	path := o.tokens.file.paths[0]
	writeFile(t, path, []byte("third-token-3\n"))
	o.tokens.file.next.Store(0)
	wantCode(t, "a token that was taken out", with("Bearer first-token-1"), codes.Unauthenticated)
	if err := with("Bearer third-token-3"); err != nil {
		t.Errorf("a token that was put in: %v", err)
	}
	for _, bad := range []string{"", "# nothing\n", "short\n", "two words here\n"} {
		writeFile(t, path, []byte(bad))
		if _, err := readTokens(path); err == nil {
			t.Errorf("%q is taken for a list of tokens", bad)
		}
		o.tokens.file.next.Store(0)
		if err := with("Bearer third-token-3"); err != nil {
			t.Errorf("after a bad change to %q: %v", bad, err)
		}
	}
}
