// SPDX-License-Identifier: Apache-2.0

package settings

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"os"
)

// maxFile bounds a file of certificates, keys or tokens, in bytes. Chosen, not
// measured.
const maxFile = 1 << 20

// ReadFile returns a file of certificates, keys or tokens. A longer one than any
// such file is refused and not read to its end.
func ReadFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // read only: nothing can be lost
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(b) > maxFile {
		err = fmt.Errorf("%s: over %d bytes, no such file is that long", path, maxFile)
	}
	return b, err
}

// ReadKeyPair returns the certificate of one PEM file with the key of another. An
// error names the file.
func ReadKeyPair(cert, key string) (tls.Certificate, error) {
	certText, err := ReadFile(cert)
	if err != nil {
		return tls.Certificate{}, err
	}
	keyText, err := ReadFile(key)
	if err != nil {
		return tls.Certificate{}, err
	}
	pair, err := tls.X509KeyPair(certText, keyText)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("%s with %s: %w", cert, key, err)
	}
	return pair, nil
}

// ReadToken returns the one token of a file, of any length. Empty lines and lines
// that begin with # are left out. No error repeats a token.
func ReadToken(path string) (string, error) {
	text, err := ReadFile(path)
	if err != nil {
		return "", err
	}
	var found []byte
	tokens, n := 0, 0
	for line := range bytes.Lines(text) {
		n++
		token := bytes.TrimSpace(line)
		switch {
		case len(token) == 0 || token[0] == '#':
		case bytes.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }):
			return "", fmt.Errorf("%s:%d: a token must be one word a line, of printable ASCII", path, n)
		default:
			found = token
			tokens++
		}
	}
	switch {
	case tokens == 0:
		return "", fmt.Errorf("%s: no token in it: it must have one", path)
	case tokens > 1:
		return "", fmt.Errorf("%s: %d tokens in it: it must have one", path, tokens)
	}
	return string(found), nil
}
