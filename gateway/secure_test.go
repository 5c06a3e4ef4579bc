// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"kindex/internal/secure/securetest"
)

// TestTLS: certificates are asked for both ways, plain HTTP is told what is spoken here,
// and a stream passes as it does in the clear.
func TestTLS(t *testing.T) {
	ours, theirs := securetest.New(t, "ours"), securetest.New(t, "theirs")
	dir := t.TempDir()
	cert, key := ours.Pair(dir, "gateway")
	s := startGateway(t, func(c *Config) {
		c.TLSCert, c.TLSKey = cert, key
		c.TLSClientCA = securetest.WriteFile(t, filepath.Join(dir, "ca.pem"), ours.PEM)
	}, mocks(t, 1, "", time.Millisecond)[0])
	later := time.Now().Add(time.Hour)
	ask := func(c *tls.Config, body string) (string, error) {
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: c}, Timeout: 20 * time.Second}
		defer client.CloseIdleConnections()
		req, err := http.NewRequestWithContext(context.Background(), http.MethodPost, s.url+"/v1/completions", strings.NewReader(body))
		if err != nil {
			return "", err
		}
		resp, err := client.Do(req)
		if err != nil {
			return "", err
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		return fmt.Sprint(resp.StatusCode, " ", string(b)), err
	}
	if got, err := ask(ours.Client(ours, later), promptBody(1, 20, 5, `,"stream":true`)); err != nil || !strings.HasPrefix(got, "200 ") || !strings.Contains(got, "data: [DONE]") {
		t.Errorf("a good certificate: %q, %v", got, err)
	}
	for name, c := range map[string]*tls.Config{
		"no certificate": ours.Client(nil, later), "another authority's": ours.Client(theirs, later), "an expired one": ours.Client(ours, time.Now().Add(-time.Minute)),
	} {
		if got, err := ask(c, promptBody(1, 20, 1, "")); err == nil {
			t.Errorf("%s: answered %q", name, got)
		}
	}
	resp, err := http.Get(strings.Replace(s.url, "https:", "http:", 1) + "/health") //nolint:noctx // a test
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusBadRequest {
		t.Errorf("plain HTTP: %d, want 400", resp.StatusCode)
	}
	eventually(t, func() string {
		if n := strings.Count(s.log.String(), "reason=handshake"); n < 3 {
			return fmt.Sprintf("%d refusals are in the log, want 4", n)
		}
		return ""
	})
}

// TestTraceWhole: a request through the gateway has all its spans, below the caller's,
// and the engine is handed the try's.
func TestTraceWhole(t *testing.T) {
	r, addr := startReceiver(t)
	s := startGateway(t, func(c *Config) { c.OTLPEndpoint, c.OTLPInsecure, c.OTLPRatio = addr, true, 0 }, mocks(t, 1, "", 0)[0])
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	for _, traceparent := range []string{parent, ""} { // the second is not sampled
		req, err := http.NewRequestWithContext(context.Background(), http.MethodPost, s.url+"/v1/completions", strings.NewReader(promptBody(1, 40, 1, "")))
		if err != nil {
			t.Fatal(err)
		}
		if traceparent != "" {
			req.Header.Set("Traceparent", traceparent)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Fatalf("answered %d", resp.StatusCode)
		}
	}
	s.end() // sends what waits
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, name := range []string{"request", "tokenise", "lookup", "decide", "upstream"} {
		span := r.spans[name]
		if span == nil {
			t.Errorf("no span %s of %d", name, r.all)
			continue
		}
		if got := hexOf(span.GetTraceId()); got != parent[3:35] {
			t.Errorf("%s is of the trace %s", name, got)
		}
	}
	if r.all != 5 {
		t.Errorf("%d spans, want 5: a request without a context is sampled by the ratio, 0", r.all)
	}
	if got := r.attr("upstream", "kindex.cached_tokens"); got != "0" {
		t.Errorf("upstream: %q cached tokens, want 0", got)
	}
}

// TestAccessLog: a line for each request, and a file that was moved away is made anew.
func TestAccessLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "access")
	s := startGateway(t, func(c *Config) { c.AccessLog = path }, mocks(t, 1, "", 0)[0])
	if got := s.ask("POST", s.url+"/v1/completions", "", promptBody(1, 40, 1, "")); got.code != 200 {
		t.Fatalf("%+v", got)
	}
	if got := s.ask("POST", s.url+"/v1/completions", "", `{"model":"nobody","prompt":[1]}`); got.code != 404 {
		t.Fatalf("%+v", got)
	}
	eventually(t, func() string {
		text := read(t, path)
		for _, want := range []string{`"path":"/v1/completions","status":200`, `"prompt_tokens":40`, `"status":404,"code":"model_not_found","model":"nobody"`, `"id":"req-`} {
			if !strings.Contains(text, want) {
				return want + " is missing in " + text
			}
		}
		return ""
	})
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	if err := s.access.reopen(); err != nil {
		t.Fatal(err)
	}
	s.ask("POST", s.url+"/v1/completions", "", promptBody(1, 40, 1, ""))
	eventually(t, func() string {
		if !strings.Contains(read(t, path), `"status":200`) {
			return "nothing in the new file"
		}
		return ""
	})
}
