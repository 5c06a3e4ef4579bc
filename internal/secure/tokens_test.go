// SPDX-License-Identifier: Apache-2.0

package secure

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"kindex/internal/secure/securetest"
)

func write(t *testing.T, text string) string {
	t.Helper()
	return securetest.WriteFile(t, filepath.Join(t.TempDir(), "tokens"), []byte(text))
}

var (
	roled = TokenForm{Server: "host"}
	bare  = TokenForm{Server: "relay", Bare: RoleRead}
)

// TestTokenFile: what lines mean, and which are refused; no refusal repeats what
// may be a secret.
func TestTokenFile(t *testing.T) {
	for _, c := range []struct {
		form TokenForm
		text string
		want map[string]Caller // by token
		bad  string            // part of the refusal
	}{
		{roled, "# ours\nread  first-token gateway-1\r\n\nwrite second-token\n\tadmin\tthird-token ops", map[string]Caller{
			"first-token": {"gateway-1", RoleRead}, "second-token": {"line-4", RoleWrite}, "third-token": {"ops", RoleAdmin},
		}, ""},
		{bare, "first-token\nwrite second-token name\n", map[string]Caller{
			"first-token": {"line-1", RoleRead}, "second-token": {"name", RoleWrite},
		}, ""},
		{bare, "read-token\nadmin-admin", map[string]Caller{"read-token": {"line-1", RoleRead}, "admin-admin": {"line-2", RoleRead}}, ""},
		{roled, "", nil, "no token in it"},
		{roled, "# read first-token", nil, "no token in it"},
		{roled, "sesame-open", nil, ":1: a line must be ROLE TOKEN [NAME]"},
		{roled, "admin", nil, ":1: a line must be ROLE TOKEN [NAME]"},
		{roled, "Admin sesame-open", nil, ":1: a line must be ROLE TOKEN [NAME]"},
		{roled, "sesame-open admin", nil, ":1: a line must be ROLE TOKEN [NAME]"},
		{roled, "none sesame-open", nil, ":1: a line must be ROLE TOKEN [NAME]"},
		{roled, "read sesame-open a b", nil, ":1: a line must be ROLE TOKEN [NAME]"},
		{roled, "read sesame-open\nread sesame", nil, ":2: a token must have 8 bytes"},
		{roled, "read sesame-open\n\nadmin sesame-open", nil, ":3: the token of line 1 again"},
		{roled, "read sesame-öpen", nil, ":1: a token must be one word of printable ASCII"},
		{roled, "read sesame-\x00open", nil, ":1: a token must be one word of printable ASCII"},
		{roled, "read sesame-open " + strings.Repeat("n", maxName+1), nil, ":1: a token's name"},
		{bare, "sesame-open open-sesame", nil, ":1: a line must be TOKEN, or ROLE TOKEN [NAME]"},
		{bare, "sesame", nil, ":1: a token must have 8 bytes"},
		{roled, strings.Repeat("#", 1<<20) + "\n", nil, "over 1048576 bytes"},
	} {
		tok, err := c.form.ReadTokens(write(t, c.text), nil)
		if c.bad != "" {
			if err == nil || !strings.Contains(err.Error(), c.bad) || strings.Contains(err.Error(), "esame") {
				t.Errorf("%.60q: got %v, want %q", c.text, err, c.bad)
			}
			continue
		}
		if err != nil {
			t.Errorf("%.60q: %v", c.text, err)
			continue
		}
		for secret, want := range c.want {
			if got, err := tok.Check([]byte("Bearer " + secret)); err != nil || got != want {
				t.Errorf("%.60q: %s: got %v, %v, want %v", c.text, secret, got, err, want)
			}
		}
		for _, wrong := range []string{"first-toke", "first-token1", "admin", "gateway-1", "# ours", ""} {
			if got, err := tok.Check([]byte("Bearer " + wrong)); !errors.Is(err, ErrWrongToken) || !strings.Contains(err.Error(), "not one of this "+c.form.Server+"'s") {
				t.Errorf("%.60q: %q: got %v, %v", c.text, wrong, got, err)
			}
		}
		for _, none := range []string{"", "first-token", "Basic first-token", "Bearer"} {
			if got, err := tok.Check([]byte(none)); !errors.Is(err, ErrNoToken) {
				t.Errorf("%.60q: %q: got %v, %v", c.text, none, got, err)
			}
		}
	}
}

// TestTokensAgain: a changed file counts, a broken one leaves what was there in
// force and is told of once.
func TestTokensAgain(t *testing.T) {
	path := write(t, "read first-token\n")
	var told []error
	tok, err := roled.ReadTokens(path, func(err error) { told = append(told, err) })
	if err != nil {
		t.Fatal(err)
	}
	check := func(what, secret string, want Role, tellings int) {
		t.Helper()
		tok.file.next.Store(0)
		if got, _ := tok.Check([]byte("Bearer " + secret)); got.Role != want {
			t.Errorf("%s: %s is %v, want %v", what, secret, got.Role, want)
		}
		if len(told) != tellings {
			t.Errorf("%s: told %v, want %d", what, told, tellings)
		}
	}
	check("at first", "first-token", RoleRead, 0)
	securetest.WriteFile(t, path, []byte("write second-token\n"))
	check("changed", "second-token", RoleWrite, 1)
	check("changed", "first-token", RoleNone, 1)
	for i, bad := range []string{"", "second-token", "write short"} {
		securetest.WriteFile(t, path, []byte(bad))
		check("broken", "second-token", RoleWrite, 2+i)
		check("broken, still", "second-token", RoleWrite, 2+i)
		if err := told[1+i]; err == nil || !strings.Contains(err.Error(), path) || strings.Contains(err.Error(), "second") {
			t.Errorf("%q: told %v", bad, err)
		}
	}
	securetest.WriteFile(t, path, []byte("admin second-token\n"))
	check("mended", "second-token", RoleAdmin, 5)
	if told[4] != nil {
		t.Errorf("mended: told %v", told[4])
	}
}

// TestCheckAllocations: a good token costs none.
func TestCheckAllocations(t *testing.T) {
	tok, err := roled.ReadTokens(write(t, "read first-token\nwrite a-rather-long-token-0123456789012345678901234567890123456789\n"), nil)
	if err != nil {
		t.Fatal(err)
	}
	header := []byte("bearer a-rather-long-token-0123456789012345678901234567890123456789")
	if n := testing.AllocsPerRun(100, func() { _, err = tok.Check(header) }); n > 0 || err != nil {
		t.Errorf("%v allocations, %v", n, err)
	}
}
