// SPDX-License-Identifier: Apache-2.0

// Before: refusals and mutations, whatever way they came. After: the log.

package indexsrv

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"kindex/internal/logsink"
	"kindex/internal/lookup"
	"kindex/internal/secure"
)

// actor is who asks for something, as far as is known.
type actor struct {
	who         string // name of a token, subject of a certificate, "uid:1000", or nobody's
	certificate string // subject; "": none was shown
	remote      string // address; "": this process
	via         string // "http", "grpc", "shm", or what within the process acts
	role        secure.Role
}

// Actors within the process.
var (
	actorProgram = actor{who: "program", via: "embedding"} // that embeds the host
	actorConfig  = actor{who: "configuration", via: "start"}
	actorState   = actor{who: "state", via: "start"} // kept by an earlier life, or another host's
)

const anonymous = "anonymous"

type actorKey struct{}

// withActor returns a context that tells Register and its kin who acts.
func withActor(ctx context.Context, a actor) context.Context {
	return context.WithValue(ctx, actorKey{}, a)
}

func actorOf(ctx context.Context) actor {
	if a, ok := ctx.Value(actorKey{}).(actor); ok {
		return a
	}
	return actorProgram
}

// A refusalReason is why somebody is turned away, and a metric's label.
type refusalReason int

const (
	reasonNoToken refusalReason = iota
	reasonWrongToken
	reasonRole          // the token's role is too weak
	reasonAdminOnly     // asked at the data address, served at the admin one
	reasonExposed       // beyond loopback without authentication
	reasonNoCertificate // mTLS, none shown
	reasonCertificate   // one that is expired, or of a foreign authority
	reasonTLSVersion    // below 1.3
	reasonPlaintext     // no TLS spoken where it is asked for
	reasonHandshakeTime // began and did not end
	reasonHandshake     // any other failed handshake
	reasonPeer          // user or group of a local socket's peer
	numReasons
)

// String returns the reason as the metric and the log have it.
func (r refusalReason) String() string {
	return [numReasons]string{
		"no_token", "wrong_token", "role", "admin_only", "exposed", "no_certificate", "certificate", "tls_version",
		"plaintext", "handshake_timeout", "handshake", "peer",
	}[r]
}

// audit writes a line for each mutation, and one for each refusal as long as these
// are few; all of them are counted.
//
// Concurrency: any goroutine.
type audit struct {
	log        *slog.Logger
	lines      logsink.Limiter
	refusals   [numReasons]atomic.Uint64
	suppressed atomic.Uint64 // refusals and failures without a line
}

// refused counts that a was turned away from what, and says so in the log. detail
// is what it was told.
func (u *audit) refused(a actor, what string, why refusalReason, detail string) {
	u.refusals[why].Add(1)
	u.limited(a, slog.String("action", what), slog.String("result", "refused"),
		slog.String("reason", why.String()), slog.String("detail", cut(detail)))
}

// mutation says that a changed something, or tried to and why it failed. attrs say
// what it was about.
func (u *audit) mutation(a actor, action string, err error, attrs ...slog.Attr) {
	attrs = append([]slog.Attr{slog.String("action", action)}, attrs...)
	if err == nil {
		u.write(slog.LevelInfo, a, append(attrs, slog.String("result", "ok")))
		return
	}
	result := "failed"
	if kind := lookup.KindOf(err); kind != nil {
		result = kind.Error()
	}
	u.limited(a, append(attrs, slog.String("result", result), slog.String("detail", cut(err.Error())))...)
}

// auditRegistration says that a registered r, or why it did not.
func (h *Host) auditRegistration(a actor, action string, r *Registration, err error) {
	attrs := target(r.Instance, r.Model, r.RoutingGroup, r.Tenant)
	attrs = append(attrs, slog.String("endpoint", cut(r.Endpoint)))
	if r.Ranks > 1 {
		attrs = append(attrs, slog.Int("dp_size", r.Ranks))
	}
	if r.Rank > 0 {
		attrs = append(attrs, slog.Int("dp_rank", r.Rank))
	}
	h.gate.audit.mutation(a, action, err, attrs...)
}

func (h *Host) auditUnregistration(a actor, u *unregistration, err error) {
	attrs := target(u.instance, u.model, u.group, u.tenant)
	if u.oneRankOnly {
		attrs = append(attrs, slog.Int("dp_rank", u.rank))
	}
	h.gate.audit.mutation(a, "unregister", err, attrs...)
}

// target is which instance a line is about, by /register's names.
func target(id InstanceID, model, group, tenant string) []slog.Attr {
	attrs := []slog.Attr{slog.String("instance_id", cut(id.String())), slog.String("model_name", cut(model))}
	if group != "" {
		attrs = append(attrs, slog.String("routing_group", cut(group)))
	}
	if tenant != "" {
		attrs = append(attrs, slog.String("tenant_id", cut(tenant)))
	}
	return attrs
}

// limited writes a line unless there were many of late from a's address, or from
// all together; the next one tells how many had none.
func (u *audit) limited(a actor, attrs ...slog.Attr) {
	from := hostOf(a.remote)
	if a.via == "shm" {
		from = a.who // a process has no address that stays
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

// hostOf returns the address without its port: a client has many of those.
func hostOf(remote string) string {
	for i := len(remote) - 1; i >= 0; i-- {
		if remote[i] == ':' {
			return remote[:i]
		}
	}
	return remote
}
