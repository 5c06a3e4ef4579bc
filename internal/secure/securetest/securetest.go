// SPDX-License-Identifier: Apache-2.0

// Package securetest makes certificates for tests, and files that change.
package securetest

import (
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
)

// Authority signs certificates.
type Authority struct {
	PEM []byte // its own certificate

	t    testing.TB
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// New returns an authority of that name, signed by itself.
func New(t testing.TB, name string) *Authority {
	t.Helper()
	a := &Authority{t: t}
	var der []byte
	a.cert, a.key, der = a.sign(name, true, time.Now().Add(time.Hour))
	a.PEM = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return a
}

// sign returns a certificate for this machine that a has signed, or its own.
func (a *Authority) sign(name string, isCA bool, until time.Time) (*x509.Certificate, *ecdsa.PrivateKey, []byte) {
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
		NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: until,
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
	return cert, key, der
}

// Issue returns a certificate that ends at until, and its key, both as PEM.
func (a *Authority) Issue(name string, until time.Time) (cert, key []byte) {
	a.t.Helper()
	_, private, der := a.sign(name, false, until)
	keyDER, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		a.t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER})
}

// Pair writes a certificate that lasts and its key into dir, where they stand
// beside or in place of the last ones, and returns their paths.
func (a *Authority) Pair(dir, name string) (cert, key string) {
	a.t.Helper()
	certPEM, keyPEM := a.Issue(name, time.Now().Add(time.Hour))
	return WriteFile(a.t, filepath.Join(dir, "cert.pem"), certPEM), WriteFile(a.t, filepath.Join(dir, "key.pem"), keyPEM)
}

// Client returns what a client needs that trusts a, and shows a certificate of by
// that ends at until, unless by is nil.
func (a *Authority) Client(by *Authority, until time.Time) *tls.Config {
	a.t.Helper()
	c := &tls.Config{RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS13}
	c.RootCAs.AddCert(a.cert)
	if by != nil {
		certPEM, keyPEM := by.Issue("client", until)
		pair, err := tls.X509KeyPair(certPEM, keyPEM)
		if err != nil {
			a.t.Fatal(err)
		}
		// A client of Go's shows none where the server asks for another authority's.
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
	}
	return c
}

// WriteFile writes a file, with a time of change that is not the last one's.
func WriteFile(t testing.TB, path string, text []byte) string {
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
