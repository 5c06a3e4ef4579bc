// SPDX-License-Identifier: Apache-2.0

package indexsrv

import (
	"context"
	"crypto/tls"
	"errors"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"kindex/indexclient"
	"kindex/internal/kv"
	"kindex/internal/lookup"
	"kindex/internal/secure/securetest"
)

// secureAsk asks at with a client of its own.
func secureAsk(t *testing.T, at string, o indexclient.Options) (a lookup.Answer, err error) {
	t.Helper()
	c, err := indexclient.Dial(t.Context(), at, o)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	err = c.Lookup(ctx, &lookup.Query{Model: "m", Tokens: tokens(1, 8)}, &a)
	return a, err
}

func tokenOf(s string) func() (string, error) { return func() (string, error) { return s, nil } }

// TestClientSecure: the client of this repository, over TLS with certificates of both
// sides and a token: who may is answered, who may not is told why.
func TestClientSecure(t *testing.T) {
	a, other := securetest.New(t, "ours"), securetest.New(t, "theirs")
	g, _ := startTLS(t, a, withGRPC(func(c *Config) { c.TokenFile = tokenFile(t) }))
	if err := g.Register(t.Context(), Registration{Instance: NumberID(1), Model: "m", BlockSize: 4, Endpoint: "tcp://127.0.0.1:21001"}); err != nil {
		t.Fatal(err)
	}
	g.put(g.rank("m", "", "1", 0), kv.TierDevice, "", "", 1, tokens(1, 8), nil)
	at := g.GRPCAddr().String()
	missing := errors.New("no token is there")
	for name, c := range map[string]struct {
		tls   *tls.Config
		token func() (string, error)
		kind  error
		words string
	}{
		"certificate and token":    {a.Client(a, later()), tokenOf("reader-token"), nil, ""},
		"no token":                 {a.Client(a, later()), nil, indexclient.ErrDenied, `"Bearer TOKEN"`},
		"a wrong token":            {a.Client(a, later()), tokenOf("wrong-token"), indexclient.ErrDenied, "not one of this host's"},
		"a token that is not read": {a.Client(a, later()), func() (string, error) { return "", missing }, indexclient.ErrDenied, missing.Error()},
		"a token with its line":    {a.Client(a, later()), tokenOf("reader-token\n"), nil, ""},
		"a token of two lines":     {a.Client(a, later()), tokenOf("reader-token\nwriter-token"), indexclient.ErrDenied, "must be of printable ASCII characters"},
		// A client that is turned away after its handshake may see no more than the end.
		"no certificate":         {a.Client(nil, later()), tokenOf("reader-token"), indexclient.ErrUnavailable, ""},
		"an expired certificate": {a.Client(a, time.Now().Add(-time.Minute)), tokenOf("reader-token"), indexclient.ErrUnavailable, ""},
		"another authority's":    {a.Client(other, later()), tokenOf("reader-token"), indexclient.ErrUnavailable, ""},
		"a host of another's":    {other.Client(a, later()), tokenOf("reader-token"), indexclient.ErrUnavailable, "certificate"},
		"no TLS":                 {nil, tokenOf("reader-token"), indexclient.ErrUnavailable, ""},
	} {
		for _, unary := range []bool{true, false} {
			got, err := secureAsk(t, at, indexclient.Options{TLS: c.tls, Token: c.token, Unary: unary})
			if lookup.KindOf(err) != c.kind || c.kind != nil && !strings.Contains(err.Error(), c.words) || strings.Contains(errorText(err), "reader-token") {
				t.Errorf("%s, unary %v: %v, want %v with %q", name, unary, err, c.kind, c.words)
			}
			if c.kind == nil && (len(got.Matches) != 1 || got.Matches[0].Device != 2) {
				t.Errorf("%s, unary %v: %+v", name, unary, got)
			}
			if err != nil && strings.ContainsAny(err.Error(), "\r\n") {
				t.Errorf("%s, unary %v: %q is not one line", name, unary, err)
			}
		}
	}
	c, err := indexclient.Dial(t.Context(), at, indexclient.Options{TLS: a.Client(a, later()), Token: tokenOf("reader-token"), Timeout: 20 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if ws, err := c.Workers(t.Context(), lookup.Filter{}); err != nil || len(ws) != 1 {
		t.Errorf("workers: %+v, %v", ws, err)
	}
	seen := errors.New("seen")
	if err := c.Watch(t.Context(), lookup.Filter{}, func(u *lookup.Update) error {
		if !u.Whole || len(u.Workers) != 1 {
			t.Errorf("a watch begins with %+v", u)
		}
		return seen
	}); !errors.Is(err, seen) {
		t.Errorf("a watch: %v", err)
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// TestClientTokenRotates: a client goes on over a change of tokens, and one whose
// token was taken away does not, also where its stream has stood since before.
func TestClientTokenRotates(t *testing.T) {
	a := securetest.New(t, "ours")
	tokens := securetest.WriteFile(t, filepath.Join(t.TempDir(), "tokens"), []byte("read first-token gateway\n"))
	g, _ := startTLS(t, a, withGRPC(func(c *Config) { c.TokenFile = tokens }))
	if err := g.Register(t.Context(), Registration{Instance: NumberID(1), Model: "m", BlockSize: 4, Endpoint: "tcp://127.0.0.1:21001"}); err != nil {
		t.Fatal(err)
	}
	var token atomic.Pointer[string]
	first, second := "first-token", "second-token"
	token.Store(&first)
	o := indexclient.Options{TLS: a.Client(a, later()), Token: func() (string, error) { return *token.Load(), nil }, Timeout: 20 * time.Second}
	renewed, err := indexclient.Dial(t.Context(), g.GRPCAddr().String(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer renewed.Close()
	o.Token = tokenOf("first-token")
	old, err := indexclient.Dial(t.Context(), g.GRPCAddr().String(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	ask := func(c indexclient.Client) error {
		var a lookup.Answer
		return c.Lookup(t.Context(), &lookup.Query{Model: "m"}, &a)
	}
	if err := errors.Join(ask(renewed), ask(old)); err != nil {
		t.Fatal(err)
	}
	token.Store(&second)
	securetest.WriteFile(t, tokens, []byte("read second-token gateway\n"))
	waitFor(t, "the old token's end", func() bool { return errors.Is(ask(old), indexclient.ErrDenied) })
	if err := ask(renewed); err != nil {
		t.Errorf("with the new token: %v", err)
	}
}

// TestClientCertificateEnds: a gRPC connection does not outlive its client's
// certificate, and a client that has a new one by then goes on.
func TestClientCertificateEnds(t *testing.T) {
	a := securetest.New(t, "ours")
	g, _ := startTLS(t, a, withGRPC(nil))
	if err := g.Register(t.Context(), Registration{Instance: NumberID(1), Model: "m", BlockSize: 4, Endpoint: "tcp://127.0.0.1:21001"}); err != nil {
		t.Fatal(err)
	}
	soon := a.Client(a, time.Now().Add(3*time.Second))
	fresh := a.Client(a, later())
	var shown atomic.Int32
	renewing := soon.Clone()
	renewing.GetClientCertificate = func(r *tls.CertificateRequestInfo) (*tls.Certificate, error) {
		if shown.Add(1) == 1 {
			return soon.GetClientCertificate(r)
		}
		return fresh.GetClientCertificate(r)
	}
	var clients [2]indexclient.Client
	for i, c := range []*tls.Config{soon, renewing} {
		client, err := indexclient.Dial(t.Context(), g.GRPCAddr().String(), indexclient.Options{TLS: c, Timeout: 20 * time.Second, RetryDelay: time.Millisecond, RetryMax: 10 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		clients[i] = client
	}
	ask := func(c indexclient.Client) error {
		var a lookup.Answer
		return c.Lookup(t.Context(), &lookup.Query{Model: "m"}, &a)
	}
	if err := errors.Join(ask(clients[0]), ask(clients[1])); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the certificate's end", func() bool { return ask(clients[0]) != nil })
	waitFor(t, "the new certificate", func() bool { return ask(clients[1]) == nil && shown.Load() > 1 })
	if err := ask(clients[0]); !errors.Is(err, indexclient.ErrUnavailable) {
		t.Errorf("with a certificate that is over: %v", err)
	}
}
