// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"kindex/gateway/fleet"
)

// worker returns a ready worker at url.
func worker(url, key string) *fleet.Worker {
	w := &fleet.Worker{Spec: &fleet.Spec{URL: url}}
	w.SetTerms(&fleet.Terms{APIKey: key})
	w.SetState(fleet.Ready)
	return w
}

// client returns one that ends with the test.
func client(t *testing.T, o Options) *Client {
	c := New(o)
	t.Cleanup(c.Close)
	return c
}

// kindOf returns what kind of fault err is.
func kindOf(err error) Kind {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Kind
	}
	return 0
}

func TestGetPost(t *testing.T) {
	var remotes []string
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		remotes = append(remotes, q.RemoteAddr)
		body, _ := io.ReadAll(q.Body)
		w.WriteHeader(http.StatusTeapot)
		fmt.Fprintf(w, "%s %s %s %s", q.Method, q.URL, q.Header.Get("Authorization"), body)
	}))
	defer srv.Close()
	c := client(t, Options{})
	w := worker(srv.URL+"/below/", "secret")
	status, body, err := c.Get(t.Context(), w, "/a?b=c", 1<<10)
	if want := "GET /below/a?b=c Bearer secret "; err != nil || status != http.StatusTeapot || string(body) != want {
		t.Errorf("got %d %q %v, want %q", status, body, err, want)
	}
	status, body, err = c.Post(t.Context(), w, "/d", []byte(`{"e":1}`), 1<<10)
	if want := `POST /below/d Bearer secret {"e":1}`; err != nil || status != http.StatusTeapot || string(body) != want {
		t.Errorf("got %d %q %v, want %q", status, body, err, want)
	}
	if len(remotes) != 2 || remotes[0] != remotes[1] {
		t.Errorf("came from %v, want one connection", remotes)
	}
	for _, size := range []int{100, 100_000} { // with a length and in chunks
		if _, _, err := c.Post(t.Context(), w, "/d", []byte(strings.Repeat("x", size)), 99); kindOf(err) != TooLarge {
			t.Errorf("a body of over %d bytes: %v", size, err)
		}
	}
}

func TestConnectFails(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	url := "http://" + ln.Addr().String()
	ln.Close()
	c := client(t, Options{})
	if _, _, err := c.Get(t.Context(), worker(url, ""), "/", 10); kindOf(err) != Connect {
		t.Errorf("nobody listens: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := c.Get(ctx, worker(url, ""), "/", 10); kindOf(err) != Canceled {
		t.Errorf("canceled: %v", err)
	}
}
