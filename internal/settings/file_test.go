// SPDX-License-Identifier: Apache-2.0

package settings

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestTokenFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens")
	for _, c := range []struct {
		text string
		want []string
		all  string // what is wrong with it as a list
		one  string // and as one token
	}{
		{"first-token\n", []string{"first-token"}, "", ""},
		{"  first-token\r\n\n", []string{"first-token"}, "", ""},
		{"# ours\nfirst-token\n\n\tsecond-token", []string{"first-token", "second-token"}, "", ": 2 tokens in it"},
		{"", nil, ": no token in it", ": no token in it"},
		{"# only this\n \n", nil, ": no token in it", ": no token in it"},
		{"first-token\nshort\n", nil, ":2: a token must have 8 bytes or more", ": 2 tokens in it"},
		{"secret with blanks\n", nil, ":1: a token must be one word a line", ":1: a token must be one word a line"},
		{"secret\u00e9secret\n", nil, ":1: a token must be one word a line", ":1: a token must be one word a line"},
		{"secret\x00secret\n", nil, ":1: a token must be one word a line", ":1: a token must be one word a line"},
		{strings.Repeat("x", maxFile+1), nil, ": over 1048576 bytes", ": over 1048576 bytes"},
	} {
		if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		shown := c.text[:min(len(c.text), 40)]
		wrong := func(as string, err error, want string) {
			t.Helper()
			switch {
			case want == "" && err != nil:
				t.Errorf("%q as %s: %v", shown, as, err)
			case want != "" && (err == nil || !strings.HasPrefix(err.Error(), path+want)):
				t.Errorf("%q as %s: %v, want an error that begins with the file and %q", shown, as, err, want)
			case err != nil && (strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "\n")):
				t.Errorf("%q as %s: the error repeats it, or has more than one line: %v", shown, as, err)
			}
		}
		all, err := ReadTokens(path, 8)
		wrong("a list", err, c.all)
		one, oneErr := ReadToken(path)
		wrong("one", oneErr, c.one)
		if !slices.Equal(all, c.want) || c.one == "" && one != c.want[0] {
			t.Errorf("%q is read as %q and %q, want %q", shown, all, one, c.want)
		}
	}
	if _, err := ReadFile("/dev/zero"); err == nil {
		t.Error("a file without an end is read")
	}
}
