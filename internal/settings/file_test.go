// SPDX-License-Identifier: Apache-2.0

package settings

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestTokenFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	for _, c := range []struct{ text, want, bad string }{
		{"first-token\n", "first-token", ""},
		{"  first-token\r\n\n", "first-token", ""},
		{"# ours\nt", "t", ""},
		{"# ours\nsecret-1\n\n\tsecret-2", "", ": 2 tokens in it"},
		{"", "", ": no token in it"},
		{"# only this\n \n", "", ": no token in it"},
		{"secret with blanks\n", "", ":1: a token must be one word a line"},
		{"secret\u00e9secret\n", "", ":1: a token must be one word a line"},
		{"secret\x00secret\n", "", ":1: a token must be one word a line"},
		{strings.Repeat("x", maxFile+1), "", ": over 1048576 bytes"},
	} {
		if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		shown := c.text[:min(len(c.text), 40)]
		got, err := ReadToken(path)
		switch {
		case c.bad == "" && (err != nil || got != c.want):
			t.Errorf("%q is read as %q, %v, want %q", shown, got, err, c.want)
		case c.bad != "" && (err == nil || !strings.HasPrefix(err.Error(), path+c.bad)):
			t.Errorf("%q: %v, want an error that begins with the file and %q", shown, err, c.bad)
		case err != nil && (strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "\n")):
			t.Errorf("%q: the error repeats it, or has more than one line: %v", shown, err)
		}
	}
	if _, err := ReadFile("/dev/zero"); err == nil {
		t.Error("a file without an end is read")
	}
}
