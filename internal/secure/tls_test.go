// SPDX-License-Identifier: Apache-2.0

package secure

import (
	"crypto/tls"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"kindex/internal/secure/securetest"
)

// TestWatchedLinks: files that are swapped behind a link count as changed, even
// where length and time are the same.
func TestWatchedLinks(t *testing.T) {
	dir := t.TempDir()
	for _, v := range []string{"a", "b"} {
		if err := os.Mkdir(filepath.Join(dir, v), 0o700); err != nil {
			t.Fatal(err)
		}
		securetest.WriteFile(t, filepath.Join(dir, v, "text"), []byte(v))
	}
	info, err := os.Stat(filepath.Join(dir, "a", "text"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(filepath.Join(dir, "b", "text"), info.ModTime(), info.ModTime()); err != nil {
		t.Fatal(err)
	}
	link := func(to string) {
		t.Helper()
		if err := errors.Join(os.Symlink(to, filepath.Join(dir, "next")), os.Rename(filepath.Join(dir, "next"), filepath.Join(dir, "now"))); err != nil {
			t.Fatal(err)
		}
	}
	link("a")
	path := filepath.Join(dir, "now", "text")
	told := 0
	w, err := newWatched([]string{path}, func() (*string, error) {
		b, err := os.ReadFile(path)
		s := string(b)
		return &s, err
	}, func(error) { told++ })
	if err != nil {
		t.Fatal(err)
	}
	want := func(text string, n int) {
		t.Helper()
		w.next.Store(0)
		if got := *w.get(); got != text || told != n {
			t.Errorf("got %q, told %d times, want %q, %d", got, told, text, n)
		}
	}
	want("a", 0)
	link("b")
	want("b", 1)
	want("b", 1)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	want("b", 2)
	want("b", 2)
}

// TestTLSFaults: which files do not go together.
func TestTLSFaults(t *testing.T) {
	dir := t.TempDir()
	a := securetest.New(t, "ours")
	cert, key := a.Pair(dir, "server")
	ca := securetest.WriteFile(t, filepath.Join(dir, "ca.pem"), a.PEM)
	for _, c := range []struct {
		files TLSFiles
		want  []string
	}{
		{TLSFiles{}, nil},
		{TLSFiles{cert, key, ""}, nil},
		{TLSFiles{cert, key, ca}, nil},
		{TLSFiles{cert, "", ""}, []string{"tls-cert and tls-key: both"}},
		{TLSFiles{"", "", ca}, []string{"the-ca: it needs tls-cert"}},
		{TLSFiles{cert, cert, ""}, []string{"tls: "}},
		{TLSFiles{cert, key, key}, []string{"the-ca: " + key + ": no certificate in it"}},
	} {
		got := c.files.Faults("the-ca")
		if len(got) != len(c.want) {
			t.Errorf("%v: got %v, want %v", c.files, got, c.want)
			continue
		}
		for i := range got {
			if !strings.HasPrefix(got[i].Error(), c.want[i]) {
				t.Errorf("%v: got %v, want %v", c.files, got[i], c.want[i])
			}
		}
	}
	cfg, err := (TLSFiles{cert, key, ca}).Config(nil, "h2")
	if err != nil {
		t.Fatal(err)
	}
	one, err := cfg.GetConfigForClient(nil)
	if err != nil || one.MinVersion != tls.VersionTLS13 || one.ClientAuth != tls.RequireAndVerifyClientCert || !one.SessionTicketsDisabled {
		t.Errorf("got %+v, %v: want TLS 1.3, a client's certificate and no resumption", one, err)
	}
}
