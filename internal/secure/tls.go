// SPDX-License-Identifier: Apache-2.0

// Before: connections. After: gRPC and HTTP.

package secure

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"

	"kindex/internal/settings"
)

// TLSFiles are the certificate of a server, its key, and the authorities whose
// clients it takes: all of it is read again when it changes.
type TLSFiles struct {
	Cert, Key, ClientCA string // paths, of PEM; Cert "": no TLS; ClientCA "": any client
}

// Config returns the configuration of a server that speaks the given protocols,
// TLS 1.3 alone. told is called with what came of each later reading, on the
// goroutine of whoever asked. A connection keeps what it began with.
func (f TLSFiles) Config(told func(error), protocols ...string) (*tls.Config, error) {
	paths := []string{f.Cert, f.Key}
	if f.ClientCA != "" {
		paths = append(paths, f.ClientCA)
	}
	files, err := newWatched(paths, func() (*tls.Config, error) { return f.read(protocols) }, told)
	if err != nil {
		return nil, err
	}
	c := f.base(protocols)
	c.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return files.get(), nil }
	return c, nil
}

// base is what no file says. A session is never resumed where clients show
// certificates: a resumed one would live on after its authority was taken out.
func (f TLSFiles) base(protocols []string) *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS13, NextProtos: protocols, SessionTicketsDisabled: f.ClientCA != ""}
}

// read returns the configuration that the files give now.
func (f TLSFiles) read(protocols []string) (*tls.Config, error) {
	cert, err := settings.ReadKeyPair(f.Cert, f.Key)
	if err != nil {
		return nil, err
	}
	c := f.base(protocols)
	c.Certificates = []tls.Certificate{cert}
	if f.ClientCA != "" {
		if c.ClientCAs, err = ReadAuthorities(f.ClientCA); err != nil {
			return nil, err
		}
		c.ClientAuth = tls.RequireAndVerifyClientCert
	}
	return c, nil
}

// Faults returns what is wrong with the files, in the words of the settings that
// name them; clientCA is what the last of them is called.
func (f TLSFiles) Faults(clientCA string) []error {
	var faults []error
	switch {
	case (f.Cert == "") != (f.Key == ""):
		faults = append(faults, errors.New("tls-cert and tls-key: both must be given, or neither"))
	case f.Cert == "" && f.ClientCA != "":
		faults = append(faults, errors.New(clientCA+": it needs tls-cert and tls-key"))
	case f.Cert != "":
		if _, err := (TLSFiles{Cert: f.Cert, Key: f.Key}).read(nil); err != nil {
			faults = append(faults, fmt.Errorf("tls: %w", err))
		}
	}
	if f.ClientCA != "" {
		if _, err := ReadAuthorities(f.ClientCA); err != nil {
			faults = append(faults, fmt.Errorf("%s: %w", clientCA, err))
		}
	}
	return faults
}

// ReadAuthorities returns the authorities whose certificates are in the PEM file at
// path.
func ReadAuthorities(path string) (*x509.CertPool, error) {
	text, err := settings.ReadFile(path)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s: no certificate in it: it must be PEM", path)
	}
	return pool, nil
}
