// SPDX-License-Identifier: Apache-2.0

package lookuppb

import (
	"context"
	"errors"
	"strings"
)

// errToken is of a token that no header can carry. It does not show it.
var errToken = errors.New("the token must be of printable ASCII characters, without spaces")

// Bearer gives each RPC of a client the token that it returns then; "": none. It is a
// credentials.PerRPCCredentials.
//
// Concurrency: any goroutine, as long as what it calls allows that.
type Bearer func() (token string, err error)

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (b Bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	token, err := b()
	token = strings.TrimSpace(token) // a file's last line ends, too
	if err != nil || token == "" {
		return nil, err
	}
	if strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return nil, errToken
	}
	return map[string]string{"authorization": "Bearer " + token}, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials: whether a token
// may go in the clear, as within one machine, is for the caller to say.
func (Bearer) RequireTransportSecurity() bool { return false }
