// SPDX-License-Identifier: Apache-2.0

// Before: TLS handshakes. After: metrics and the log.

package indexsrv

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strings"
)

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
