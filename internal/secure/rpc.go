// SPDX-License-Identifier: Apache-2.0

// Before: gRPC connections and RPCs. After: the services.

package secure

import (
	"context"
	"crypto/tls"
	"net"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// HealthMethod reports whether an RPC is a health check. Those are open: a probe
// has no token, and they say nothing but that the server lives.
func HealthMethod(method string) bool { return strings.HasPrefix(method, "/grpc.health.v1.Health/") }

// Authorization returns an RPC's authorization header, for Check; nil: it has none.
func Authorization(ctx context.Context) []byte {
	if values := metadata.ValueFromIncomingContext(ctx, "authorization"); len(values) > 0 {
		return []byte(values[0])
	}
	return nil
}

// CheckRPC returns whose token an RPC carries.
//
// Errors: as of Check.
func (t *Tokens) CheckRPC(ctx context.Context) (Caller, error) { return t.Check(Authorization(ctx)) }

// Unauthenticated is a refusal of Check as a status.
func Unauthenticated(err error) error { return status.Error(codes.Unauthenticated, err.Error()) }

// Credentials are c for a gRPC server. A connection ends with its client's certificate.
// failed is told of each handshake that does
// not end well, with the address it came from, on the connection's goroutine.
func Credentials(c *tls.Config, failed func(remote net.Addr, err error)) credentials.TransportCredentials {
	return watchedTLS{credentials.NewTLS(c), failed}
}

type watchedTLS struct {
	credentials.TransportCredentials
	failed func(net.Addr, error)
}

// ServerHandshake implements credentials.TransportCredentials.
func (c watchedTLS) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := c.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		c.failed(raw.RemoteAddr(), err)
		return conn, info, err
	}
	if t, ok := info.(credentials.TLSInfo); ok && len(t.State.PeerCertificates) > 0 {
		e := &endingConn{Conn: conn}
		inner := conn                                                                                          // what is returned is another one
		e.end = time.AfterFunc(time.Until(t.State.PeerCertificates[0].NotAfter), func() { _ = inner.Close() }) // whoever uses it sees that
		conn = e
	}
	return conn, info, nil
}

// endingConn is closed when its time is over.
type endingConn struct {
	net.Conn
	end *time.Timer
}

// Close implements net.Conn.
func (c *endingConn) Close() error {
	c.end.Stop()
	return c.Conn.Close()
}

// Clone implements credentials.TransportCredentials.
func (c watchedTLS) Clone() credentials.TransportCredentials {
	return watchedTLS{c.TransportCredentials.Clone(), c.failed}
}
