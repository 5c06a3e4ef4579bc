// SPDX-License-Identifier: Apache-2.0

// Before: RPCs and HTTP requests. After: the services.

package secure

import (
	"bytes"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"strings"

	"kindex/internal/settings"
)

const (
	// minToken is the length of the shortest token, in bytes: a shorter one is a
	// mistake.
	minToken = 8
	maxName  = 64 // bytes of a token's name
	// maxTokens bounds the tokens of a file, since each request is held against all
	// of them.
	maxTokens = 1024
)

// Tokens are the bearer tokens of a file, one a line: "ROLE TOKEN [NAME]", where
// the name is what logs call it by. Empty lines and lines that begin with # are
// left out. The file is read again when it changes.
//
// Concurrency: any goroutine.
type Tokens struct {
	file   *watched[[]token]
	server string
}

type token struct {
	hash   [sha256.Size]byte
	caller Caller
}

// TokenForm is what a server takes in its file of tokens.
type TokenForm struct {
	// Server is what refusals call the server, such as "relay".
	Server string
	// Bare is the role of a token that stands alone in its line; RoleNone refuses
	// such lines.
	Bare Role
}

// ReadTokens reads the file at path; told is called with what came of each later
// reading, on the goroutine of whoever asked. No error repeats a token.
func (f TokenForm) ReadTokens(path string, told func(error)) (*Tokens, error) {
	file, err := newWatched([]string{path}, func() (*[]token, error) { return f.read(path) }, told)
	if err != nil {
		return nil, err
	}
	return &Tokens{file, f.Server}, nil
}

// read returns what the file says now.
func (f TokenForm) read(path string) (*[]token, error) {
	text, err := settings.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var tokens []token
	lineOf := map[[sha256.Size]byte]int{}
	n := 0
	for line := range bytes.Lines(text) {
		n++
		line = bytes.TrimSpace(line)
		if len(line) == 0 || line[0] == '#' {
			continue
		}
		t, err := f.line(line)
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", path, n, err)
		}
		if first, ok := lineOf[t.hash]; ok {
			return nil, fmt.Errorf("%s:%d: the token of line %d again: each must stand in one line", path, n, first)
		}
		lineOf[t.hash] = n
		if t.caller.Name == "" {
			t.caller.Name = fmt.Sprintf("line-%d", n)
		}
		if tokens = append(tokens, t); len(tokens) > maxTokens {
			return nil, fmt.Errorf("%s:%d: over %d tokens", path, n, maxTokens)
		}
	}
	if len(tokens) == 0 {
		return nil, fmt.Errorf("%s: no token in it: it must have one a line", path)
	}
	return &tokens, nil
}

// line reads one line that is not empty.
func (f TokenForm) line(line []byte) (token, error) {
	if bytes.ContainsFunc(line, func(r rune) bool { return r < ' ' && r != '\t' || r > '~' }) {
		return token{}, errors.New("a token must be one word of printable ASCII")
	}
	var t token
	words := bytes.Fields(line)
	secret := words[0]
	if len(words) > 1 || f.Bare == RoleNone {
		role, ok := parseRole(string(words[0]))
		if !ok || len(words) < 2 || len(words) > 3 {
			if f.Bare != RoleNone {
				return token{}, errors.New("a line must be TOKEN, or ROLE TOKEN [NAME] with a role of read, write or admin")
			}
			return token{}, errors.New("a line must be ROLE TOKEN [NAME] with a role of read, write or admin")
		}
		secret, t.caller.Role = words[1], role
	} else {
		t.caller.Role = f.Bare
	}
	if len(secret) < minToken {
		return token{}, fmt.Errorf("a token must have %d bytes or more", minToken)
	}
	if len(words) == 3 {
		if len(words[2]) > maxName {
			return token{}, fmt.Errorf("a token's name must have %d bytes at most", maxName)
		}
		t.caller.Name = string(words[2])
	}
	t.hash = sha256.Sum256(secret)
	return t, nil
}

// Fault returns why the file at path cannot be read; nil: it can.
func (f TokenForm) Fault(path string) error {
	_, err := f.read(path)
	return err
}

// What a caller is told that has no token, and one that has a wrong one, is of one
// of these kinds. The secret itself is repeated nowhere.
var (
	ErrNoToken    = errors.New("no token")
	ErrWrongToken = errors.New("wrong token")
)

// refusal is one line for the caller, of a kind.
type refusal struct {
	text string
	kind error
}

func (r *refusal) Error() string { return r.text }
func (r *refusal) Unwrap() error { return r.kind }

// Check returns whose token an authorization header has. Hashes are compared, all
// of them, so that the time tells nothing of a token. It does not keep header.
//
// Errors: of kind ErrNoToken or ErrWrongToken, one line that may be shown.
// Cost: a SHA-256 of the token and 32 bytes for each token of the file; no
// allocation where the token is good.
func (t *Tokens) Check(header []byte) (Caller, error) {
	scheme, given, ok := bytes.Cut(header, []byte(" "))
	if !ok || !strings.EqualFold(string(scheme), "bearer") {
		return Caller{}, &refusal{`authorization: must be "Bearer TOKEN", this ` + t.server + ` asks for a token`, ErrNoToken}
	}
	hash := sha256.Sum256(bytes.TrimSpace(given))
	found := -1
	tokens := *t.file.get()
	for i := range tokens {
		found = subtle.ConstantTimeSelect(subtle.ConstantTimeCompare(hash[:], tokens[i].hash[:]), i, found)
	}
	if found < 0 {
		return Caller{}, &refusal{"authorization: the token is not one of this " + t.server + "'s", ErrWrongToken}
	}
	return tokens[found].caller, nil
}
