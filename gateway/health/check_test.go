// SPDX-License-Identifier: Apache-2.0

package health

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	grpchealth "google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"kindex/gateway/fleet"
	"kindex/harness/mockworker/engine"
)

func at(url string) *fleet.Worker {
	return fleet.NewWorker("w", &fleet.Spec{URL: url, Models: []string{"m"}, Ranks: 1})
}

// ask checks a worker once.
func ask(t *testing.T, w *fleet.Worker, edit func(*Options)) error {
	t.Helper()
	o := DefaultOptions()
	if edit != nil {
		edit(&o)
	}
	to := targetOf(w, &o)
	defer to.close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	return to.check(ctx, w, o.ProbeConnect, true)
}

// listen has f serve each connection, and returns where.
func listen(t *testing.T, f func(net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			f(c)
			_ = c.Close()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done
	})
	return l.Addr().String()
}

// TestAnswers has each kind of answer be told from the others.
func TestAnswers(t *testing.T) {
	answer := func(text string) func(net.Conn) {
		return func(c net.Conn) {
			_, _ = c.Read(make([]byte, 4<<10))
			_, _ = io.WriteString(c, text)
		}
	}
	unwell := errors.New("another error")
	for _, test := range []struct {
		name  string
		serve func(net.Conn)
		want  error // nil: it passes
	}{
		{"200", answer("HTTP/1.1 200 OK\r\n\r\n"), nil},
		{"204", answer("HTTP/1.1 204 No Content\r\n\r\n"), nil},
		{"200 of HTTP/1.0 without a reason", answer("HTTP/1.0 200\r\n\r\n"), nil},
		{"429", answer("HTTP/1.1 429 Too Many Requests\r\n\r\n"), errFull},
		{"503", answer("HTTP/1.1 503 Service Unavailable\r\n\r\n"), unwell},
		{"404", answer("HTTP/1.1 404 Not Found\r\n\r\n"), unwell},
		{"301", answer("HTTP/1.1 301 Moved\r\n\r\n"), unwell},
		{"no HTTP", answer("SSH-2.0-OpenSSH_9.6\r\n"), unwell},
		{"no line", answer(strings.Repeat("x", 10_000)), unwell},
		{"a line cut off", answer("HTTP/1.1 20"), unwell},
		{"a status of letters", answer("HTTP/1.1 2xx OK\r\n\r\n"), unwell},
		{"closed", func(net.Conn) {}, errConnect}, // a proxy whose engine is dead
		{"closed after the request", func(c net.Conn) { _, _ = c.Read(make([]byte, 4<<10)) }, errConnect},
	} {
		err := ask(t, at("http://"+listen(t, test.serve)), nil)
		known := errors.Is(err, errFull) || errors.Is(err, errConnect) || errors.Is(err, errOurs)
		switch {
		case test.want == nil && err != nil:
			t.Errorf("%s: %v, want it to pass", test.name, err)
		case errors.Is(test.want, unwell) && (err == nil || known):
			t.Errorf("%s: %v, want that it is unwell", test.name, err)
		case test.want != nil && !errors.Is(test.want, unwell) && !errors.Is(err, test.want):
			t.Errorf("%s: %v, want %v", test.name, err, test.want)
		}
	}
}

// TestAsks has a probe ask for the right path of the right host, with the worker's key,
// and have the connection closed.
func TestAsks(t *testing.T) {
	var got *http.Request
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = r
		if r.Header.Get("Authorization") != "Bearer sesame" {
			w.WriteHeader(http.StatusUnauthorized)
		}
	}))
	defer s.Close()
	w := at(s.URL + "/engines/7/")
	if err := ask(t, w, nil); err == nil || !strings.Contains(err.Error(), "401") {
		t.Errorf("without a key: %v, want 401", err)
	}
	terms := *w.Terms()
	terms.APIKey = "sesame"
	w.SetTerms(&terms)
	if err := ask(t, w, nil); err != nil {
		t.Error(err)
	}
	if got.URL.Path != "/engines/7/health" || got.Host != strings.TrimPrefix(s.URL, "http://") || !got.Close {
		t.Errorf("asked for %s of %s, to be closed: %v", got.URL.Path, got.Host, got.Close)
	}
	if err := ask(t, w, func(o *Options) { o.ProbePath = "/ping" }); err != nil || got.URL.Path != "/engines/7/ping" {
		t.Errorf("asked for %s (%v), want /engines/7/ping", got.URL.Path, err)
	}
}

// TestAsksTLS has a certificate that nobody vouches for be no connection.
func TestAsksTLS(t *testing.T) {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	defer s.Close()
	roots := x509.NewCertPool()
	roots.AddCert(s.Certificate())
	if err := ask(t, at(s.URL), func(o *Options) { o.TLS = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12} }); err != nil {
		t.Error(err)
	}
	if err := ask(t, at(s.URL), nil); !errors.Is(err, errConnect) {
		t.Errorf("%v, want no connection", err)
	}
}

// TestNoAnswer has a probe end with its time, of a worker that accepts and says nothing
// and of one whose TLS does not begin.
func TestNoAnswer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0") // the system accepts for it
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	for _, scheme := range []string{"http", "https", "grpc", "grpcs"} {
		o := DefaultOptions()
		w := at(scheme + "://" + l.Addr().String())
		to := targetOf(w, &o)
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		if err := to.check(ctx, w, time.Second, true); err == nil || errors.Is(err, errConnect) || ctx.Err() == nil {
			t.Errorf("%s: %v, want that its time is over", scheme, err)
		}
		cancel()
		to.close()
	}
}

// TestRefuses has a closed port and a bad URL say what they are.
func TestRefuses(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	_ = l.Close()
	for _, scheme := range []string{"http", "https", "grpc", "grpcs"} {
		if err := ask(t, at(scheme+"://"+addr), nil); !errors.Is(err, errConnect) {
			t.Errorf("%s: %v, want no connection", scheme, err)
		}
	}
	for _, url := range []string{"ftp://x", "grpc://x", "http://%zz"} {
		if err := ask(t, at(url), nil); err == nil || errors.Is(err, errConnect) {
			t.Errorf("%s: %v, want another error", url, err)
		}
	}
}

// TestAsksRPC has each engine's own health service be found, and the common one.
func TestAsksRPC(t *testing.T) {
	f, err := engine.OpenFleet(engine.Config{Engine: engine.VLLM, GRPC: "127.0.0.1:0", Pub: "tcp://127.0.0.1:0"}, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	g, err := engine.OpenFleet(engine.Config{Engine: engine.SGLang, GRPC: "127.0.0.1:0", Pub: "tcp://127.0.0.1:0"}, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	common, says := grpc.NewServer(), grpchealth.NewServer()
	healthpb.RegisterHealthServer(common, says)
	go func() { _ = common.Serve(l) }()
	defer common.Stop()

	for _, addr := range []string{f.Workers()[0].GRPC(), g.Workers()[0].GRPC(), l.Addr().String()} {
		for _, kind := range []string{"", fleet.VLLM, fleet.SGLang} {
			w := fleet.NewWorker("w", &fleet.Spec{URL: "grpc://" + addr, Engine: kind, Ranks: 1})
			if err := ask(t, w, nil); err != nil {
				t.Errorf("%s as %q: %v", addr, kind, err)
			}
		}
	}
	says.SetServingStatus("", healthpb.HealthCheckResponse_NOT_SERVING)
	if err := ask(t, at("grpc://"+l.Addr().String()), nil); err == nil || errors.Is(err, errConnect) {
		t.Errorf("not serving: %v, want that it is unwell", err)
	}
}

// TestKeepsRPC has a well worker's connection be kept, and one that was cut be replaced.
func TestKeepsRPC(t *testing.T) {
	f, err := engine.OpenFleet(engine.Config{Engine: engine.VLLM, GRPC: "127.0.0.1:0", Pub: "tcp://127.0.0.1:0"}, 1)
	if err != nil {
		t.Fatal(err)
	}
	w, o := at("grpc://"+f.Workers()[0].GRPC()), DefaultOptions()
	to := targetOf(w, &o).(*rpcTarget)
	defer to.close()
	check := func(fresh bool) error {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		return to.check(ctx, w, time.Second, fresh)
	}
	var seen []*grpc.ClientConn
	for _, fresh := range []bool{false, false, true, false} {
		if err := check(fresh); err != nil {
			t.Fatal(err)
		}
		seen = append(seen, to.kept)
	}
	if seen[0] != seen[1] || seen[1] == seen[2] || seen[2] != seen[3] {
		t.Errorf("connections %p, want the first kept and the third a new one", seen)
	}
	f.Close()
	if err := check(false); err == nil {
		t.Error("a dead worker passes")
	}
	if to.kept != nil {
		t.Error("a dead connection is kept")
	}
}
