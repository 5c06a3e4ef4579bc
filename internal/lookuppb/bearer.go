// SPDX-License-Identifier: Apache-2.0

package lookuppb

import "context"

// Bearer gives each RPC of a client the token that it returns then; "": none. It is a
// credentials.PerRPCCredentials.
//
// Concurrency: any goroutine, as long as what it calls allows that.
type Bearer func() (token string, err error)

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (b Bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	token, err := b()
	if err != nil || token == "" {
		return nil, err
	}
	return map[string]string{"authorization": "Bearer " + token}, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials: whether a token
// may go in the clear, as within one machine, is for the caller to say.
func (Bearer) RequireTransportSecurity() bool { return false }
