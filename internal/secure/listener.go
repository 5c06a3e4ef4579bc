// SPDX-License-Identifier: Apache-2.0

// Before: TCP connections. After: the HTTP servers.

package secure

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"strconv"
	"sync/atomic"
	"time"
)

// HandshakeTime bounds a TLS handshake: it is all that a stranger can hold of a
// connection.
const HandshakeTime = 10 * time.Second

// Listener speaks TLS on what it accepts. Accept does not wait for a handshake:
// the server calls for it on the connection's own goroutine.
type Listener struct {
	net.Listener
	Config *tls.Config
	// Failed is told of each handshake that does not end well, with the address it
	// came from, on the connection's goroutine.
	Failed func(remote net.Addr, err error)
	Limit  time.Duration // of a handshake
}

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) {
	raw, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &Conn{Conn: tls.Server(raw, l.Config), raw: raw, told: l.Failed, limit: l.Limit}, nil
}

// Conn is a connection that tells how its handshake failed. The HTTP server
// knows it for one of TLS by its methods.
//
// Concurrency: Handshake is called once, before anything is read or written.
type Conn struct {
	*tls.Conn
	raw    net.Conn
	told   func(net.Addr, error)
	limit  time.Duration
	failed atomic.Bool

	subject string    // of the client's certificate; "": none
	until   time.Time // the end of its time; zero: none
}

// Handshake bounds the handshake's time. Where it fails, the connection is over:
// it reads as ended.
func (c *Conn) Handshake() error {
	if err := c.raw.SetDeadline(time.Now().Add(c.limit)); err != nil {
		return err
	}
	err := c.Conn.Handshake()
	if err != nil {
		c.failed.Store(true)
		c.told(c.raw.RemoteAddr(), err)
		answerPlain(c.raw, err)
		linger(c.raw)
		return errors.Join(err, c.raw.Close())
	}
	if certs := c.Conn.ConnectionState().PeerCertificates; len(certs) > 0 {
		c.subject, c.until = CertificateName(certs[0]), certs[0].NotAfter
	}
	return c.raw.SetDeadline(time.Time{})
}

// Read implements net.Conn.
func (c *Conn) Read(b []byte) (int, error) {
	if c.failed.Load() {
		return 0, io.EOF
	}
	return c.Conn.Read(b)
}

// Subject is what the log calls the client by; "": it showed no certificate.
func (c *Conn) Subject() string { return c.subject }

// Expired reports whether the client's certificate has come to its end since.
func (c *Conn) Expired() bool { return !c.until.IsZero() && time.Now().After(c.until) }

// CertificateName is what the log calls a certificate by: the identity it was made
// for, or its subject.
func CertificateName(c *x509.Certificate) string {
	if len(c.URIs) > 0 {
		return c.URIs[0].String()
	}
	return c.Subject.String()
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
