// SPDX-License-Identifier: Apache-2.0

// Before: RPCs and HTTP requests. After: the services.

package relay

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"kindex/internal/settings"
)

// minToken is the length of the shortest token, in bytes: a shorter one is a mistake.
const minToken = 8

// tokens are the bearer tokens of a file: one a line, empty lines and lines that
// begin with # left out. The file is read again when it changes.
//
// Concurrency: any goroutine.
type tokens struct {
	file *watched[[][sha256.Size]byte]
}

func newTokens(path string, told func(error)) (*tokens, error) {
	file, err := newWatched([]string{path}, func() (*[][sha256.Size]byte, error) { return readTokens(path) }, told)
	return &tokens{file}, err
}

// readTokens returns the hashes of a file's tokens.
func readTokens(path string) (*[][sha256.Size]byte, error) {
	tokens, err := settings.ReadTokens(path, minToken)
	if err != nil {
		return nil, err
	}
	hashes := make([][sha256.Size]byte, 0, len(tokens))
	for _, token := range tokens {
		hashes = append(hashes, sha256.Sum256([]byte(token)))
	}
	return &hashes, nil
}

// What a caller is told that has no token, and one that has a wrong one. The
// secret itself is repeated nowhere.
var (
	errNoToken    = errors.New("authorization: must be \"Bearer TOKEN\", this relay asks for a token")
	errWrongToken = errors.New("authorization: the token is not one of this relay's")
)

// check returns why an authorization header is refused. Hashes are compared, all
// of them, so that the time tells nothing of a token.
func (t *tokens) check(header string) error {
	scheme, token, ok := strings.Cut(header, " ")
	if !ok || !strings.EqualFold(scheme, "bearer") {
		return errNoToken
	}
	given := sha256.Sum256([]byte(strings.TrimSpace(token)))
	found := 0
	for _, h := range *t.file.get() {
		found |= subtle.ConstantTimeCompare(given[:], h[:])
	}
	if found == 0 {
		return errWrongToken
	}
	return nil
}

// checkRPC returns why a caller is refused, as a status. Health checks are open:
// a probe has no token, and they say nothing but that the relay lives.
func (t *tokens) checkRPC(ctx context.Context, method string) error {
	if t == nil || strings.HasPrefix(method, "/grpc.health.v1.Health/") {
		return nil
	}
	header := ""
	if values := metadata.ValueFromIncomingContext(ctx, "authorization"); len(values) > 0 {
		header = values[0]
	}
	if err := t.check(header); err != nil {
		return status.Error(codes.Unauthenticated, err.Error())
	}
	return nil
}
