// SPDX-License-Identifier: Apache-2.0

// Before: refusals and changes of workers, whatever way they came. After: the log, and
// metrics.

package gateway

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"slices"
	"sync/atomic"
	"time"

	"kindex/internal/logsink"
)

// actor is who asks for something, as far as is known.
type actor struct {
	who         string // name of a key, subject of a certificate, or nobody's
	certificate string // subject; "": none was shown
	remote      string // address; "": this process
	via         string // "http", "grpc", or what within the process acts
}

const anonymous = "anonymous"

// Actors within the process: the configuration, at the start and when it is read again.
var (
	actorStart  = actor{who: "configuration", via: "start"}
	actorConfig = actor{who: "configuration", via: "reload"}
)

// refusalReasons are why somebody is turned away, as metric and log have it.
var refusalReasons = []string{"no_key", "wrong_key", "role", "admin_only", "exposed", "certificate", "handshake"}

// audit writes a line for each change of a worker, and one for each refusal as long as
// these are few; all of them are counted.
//
// Concurrency: any goroutine.
type audit struct {
	log        *slog.Logger
	lines      logsink.Limiter
	refusals   []atomic.Uint64 // as refusalReasons
	suppressed atomic.Uint64   // lines left out
}

func newAudit(log *slog.Logger) audit {
	return audit{log: log, lines: logsink.NewLimiter(), refusals: make([]atomic.Uint64, len(refusalReasons))}
}

// refused counts that a was turned away from what, and says so in the log. detail is
// what it was told.
func (u *audit) refused(a actor, what, reason, detail string) {
	if i := slices.Index(refusalReasons, reason); i >= 0 {
		u.refusals[i].Add(1)
	}
	u.limited(a, slog.String("action", cut(what)), slog.String("result", "refused"), slog.String("reason", reason), slog.String("detail", cut(detail)))
}

// handshake counts a TLS handshake that failed. A connection that ended before it said
// anything is a probe of the port and no refusal.
func (u *audit) handshake(remote net.Addr, via string, err error) {
	if errors.Is(err, io.EOF) {
		return
	}
	u.refused(actor{who: anonymous, remote: remote.String(), via: via}, "connect", "handshake", err.Error())
}

// changed says that a changed a worker, or tried to and why it failed. attrs say which.
func (u *audit) changed(a actor, action string, err error, attrs ...slog.Attr) {
	attrs = append([]slog.Attr{slog.String("action", action)}, attrs...)
	if err == nil {
		u.write(slog.LevelInfo, a, append(attrs, slog.String("result", "ok")))
		return
	}
	u.limited(a, append(attrs, slog.String("result", "failed"), slog.String("detail", cut(err.Error())))...)
}

// limited writes a line unless there were many of late from a's address, or from all
// together; the next one tells how many had none.
func (u *audit) limited(a actor, attrs ...slog.Attr) {
	from, _, err := net.SplitHostPort(a.remote)
	if err != nil {
		from = a.remote
	}
	skipped, ok := u.lines.Allow(from, time.Now())
	if !ok {
		u.suppressed.Add(1)
		return
	}
	if skipped > 0 {
		attrs = append(attrs, slog.Uint64("suppressed", skipped))
	}
	u.write(slog.LevelWarn, a, attrs)
}

// write writes a line whatever the log's level: who audits wants all of them.
func (u *audit) write(level slog.Level, a actor, attrs []slog.Attr) {
	r := slog.NewRecord(time.Now(), level, "audit", 0)
	r.AddAttrs(slog.String("who", cut(a.who)), slog.String("via", a.via))
	if a.remote != "" {
		r.AddAttrs(slog.String("remote", a.remote))
	}
	if a.certificate != "" && a.certificate != a.who {
		r.AddAttrs(slog.String("certificate", cut(a.certificate)))
	}
	r.AddAttrs(attrs...)
	_ = u.log.Handler().Handle(context.Background(), r) // nobody to tell
}

// maxAuditText bounds what a client can put into a line, in bytes.
const maxAuditText = 256

func cut(s string) string {
	if len(s) > maxAuditText {
		return s[:maxAuditText] + "..."
	}
	return s
}
