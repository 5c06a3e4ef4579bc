// SPDX-License-Identifier: Apache-2.0

// Before: TCP connections. After: the HTTP servers.

package indexsrv

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// handshakeTime bounds a TLS handshake: it is all that a stranger can hold of a
// connection.
const handshakeTime = 10 * time.Second

// tlsListener speaks TLS on what it accepts. Accept does not wait for a handshake:
// the server calls for it on the connection's own goroutine.
type tlsListener struct {
	net.Listener
	cfg   *tls.Config
	audit *audit
	limit time.Duration // of a handshake
}

// Accept implements net.Listener.
func (l *tlsListener) Accept() (net.Conn, error) {
	raw, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &tlsConn{Conn: tls.Server(raw, l.cfg), raw: raw, audit: l.audit, limit: l.limit}, nil
}

// tlsConn is a connection that counts how its handshake failed. The HTTP server
// knows it for one of TLS by its methods.
//
// Concurrency: Handshake is called once, before anything is read or written.
type tlsConn struct {
	*tls.Conn
	raw    net.Conn
	audit  *audit
	limit  time.Duration
	failed atomic.Bool

	subject string    // of the client's certificate; "": none
	until   time.Time // the end of its time; zero: none
}

// Handshake bounds the handshake's time. Where it fails, the connection is over:
// it reads as ended.
func (c *tlsConn) Handshake() error {
	if err := c.raw.SetDeadline(time.Now().Add(c.limit)); err != nil {
		return err
	}
	err := c.Conn.Handshake()
	if err != nil {
		c.failed.Store(true)
		c.audit.handshake(c.raw.RemoteAddr(), "http", err)
		answerPlain(c.raw, err)
		linger(c.raw)
		return errors.Join(err, c.raw.Close())
	}
	if certs := c.Conn.ConnectionState().PeerCertificates; len(certs) > 0 {
		c.subject, c.until = certificateName(certs[0]), certs[0].NotAfter
	}
	return c.raw.SetDeadline(time.Time{})
}

// Read implements net.Conn.
func (c *tlsConn) Read(b []byte) (int, error) {
	if c.failed.Load() {
		return 0, io.EOF
	}
	return c.Conn.Read(b)
}

// expired reports whether the client's certificate has come to its end since.
func (c *tlsConn) expired() bool { return !c.until.IsZero() && time.Now().After(c.until) }

// certificateName is what the log calls a certificate by: the identity it was made
// for, or its subject.
func certificateName(c *x509.Certificate) string {
	if len(c.URIs) > 0 {
		return c.URIs[0].String()
	}
	return c.Subject.String()
}

// handshake counts a TLS handshake that failed. A connection that ended before it
// said anything is a probe of the port and no refusal.
func (u *audit) handshake(remote net.Addr, via string, err error) {
	if errors.Is(err, io.EOF) {
		return
	}
	u.refused(actor{who: anonymous, remote: remote.String(), via: via}, "connect", handshakeReason(err), err.Error())
}

// handshakeReason says which kind of failure err is. Go's package has no errors of
// its own for the last two: its words are tested.
func handshakeReason(err error) refusalReason {
	var plain tls.RecordHeaderError
	var bad *tls.CertificateVerificationError
	var netErr net.Error
	switch {
	case errors.As(err, &plain):
		return reasonPlaintext
	case errors.As(err, &bad):
		return reasonCertificate
	case errors.As(err, &netErr) && netErr.Timeout():
		return reasonHandshakeTime
	case strings.Contains(err.Error(), "didn't provide a certificate"):
		return reasonNoCertificate
	case strings.Contains(err.Error(), "unsupported versions"):
		return reasonTLSVersion
	default:
		return reasonHandshake
	}
}

// plainAnswer is for a client that speaks HTTP where TLS is asked for.
var plainAnswer = func() []byte {
	const body = `{"error":"this address speaks TLS: ask it by https"}`
	return []byte("HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: " + strconv.Itoa(len(body)) + "\r\n\r\n" + body)
}()

// answerPlain tells such a client what is wrong.
func answerPlain(raw net.Conn, err error) {
	var plain tls.RecordHeaderError
	if !errors.As(err, &plain) || plain.Conn == nil {
		return
	}
	switch string(plain.RecordHeader[:]) {
	case "GET /", "HEAD ", "POST ", "PUT /", "DELET", "OPTIO", "PATCH":
		_, _ = raw.Write(plainAnswer) // a client that is gone
	}
}

// linger reads for a moment what a client is still sending: closed on unread bytes,
// a connection is reset, and the client never learns why.
func linger(raw net.Conn) {
	if err := raw.SetReadDeadline(time.Now().Add(200 * time.Millisecond)); err == nil {
		_, _ = io.CopyN(io.Discard, raw, 64<<10) // however it ends, the connection is closed
	}
}
