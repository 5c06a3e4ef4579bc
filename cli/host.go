// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"kindex/internal/kv"
	"kindex/internal/lookup"
	"kindex/internal/secure"
	"kindex/internal/settings"
)

// host is one index host, however it is asked. Errors have a kind, see
// [lookup.KindOf], and do not name the host.
type host interface {
	name() string
	workers(ctx context.Context, f lookup.Filter) ([]lookup.Worker, error)
	stats(ctx context.Context) (*figures, error)
	explain(ctx context.Context, q *lookup.Query) (*lookup.Explanation, error)
	dump(ctx context.Context, s selection, into dumpSink) error
	close()
}

// selection chooses streams; an empty name chooses all.
type selection struct {
	lookup.Filter
	instance string
}

// streamHead names a stream and where it stands.
type streamHead struct {
	Instance  lookup.ExplainedID `json:"instance_id"`
	Model     string             `json:"model_name"`
	Group     string             `json:"routing_group"`
	Tenant    string             `json:"tenant_id"`
	Rank      int                `json:"dp_rank"`
	BlockSize int                `json:"block_size"`
	Epoch     uint64             `json:"epoch"`
	LastSeq   *uint64            `json:"last_seq"`
	Status    string             `json:"status"`
	Orphans   uint64             `json:"orphans"`
}

// streamName tells a stream from all others.
type streamName struct {
	tenant, model, group, instance string
	rank                           int
}

func (h *streamHead) key() streamName {
	return streamName{h.Tenant, h.Model, h.Group, h.Instance.Text, h.Rank}
}

// storedRun is one copy of each block of a chain.
type storedRun struct {
	tier     kv.Tier
	group    uint8
	parent   *uint64 // engine hash of the first block's; nil: a root
	seed     uint64  // of the namespace
	engines  []kv.EngineHash
	contents []kv.ContentHash
}

// dumpSink takes a dump, stream by stream. What it is given is its own.
type dumpSink interface {
	head(h *streamHead) error
	stored(r *storedRun) error
	removed(engines []kv.EngineHash) error // device copies
}

// figures are how a host stands.
type figures struct {
	Version     string            `json:"version"`
	Revision    string            `json:"revision"`
	Index       string            `json:"kv_index,omitempty"`
	Uptime      float64           `json:"uptime_seconds,omitempty"`
	Ready       bool              `json:"ready"`
	Streams     map[string]uint64 `json:"streams"`
	Memberships uint64            `json:"memberships"`
	Blocks      uint64            `json:"blocks"`
	Runs        uint64            `json:"runs"`
	Bytes       []nodeBytes       `json:"bytes"`
	Lookups     uint64            `json:"lookups"`
	LookupTime  float64           `json:"lookup_seconds"`

	ranks map[streamName]*rankTimes // over HTTP: what /workers lacks
}

// nodeBytes is index memory of one purpose on one memory node.
type nodeBytes struct {
	Purpose string `json:"purpose"`
	Node    int    `json:"node"`
	Bytes   uint64 `json:"bytes"`
}

// add adds what lies on node for purpose.
func (f *figures) add(purpose string, node int, n uint64) {
	for i := range f.Bytes {
		if b := &f.Bytes[i]; b.Purpose == purpose && b.Node == node {
			b.Bytes += n
			return
		}
	}
	f.Bytes = append(f.Bytes, nodeBytes{purpose, node, n})
}

// targetForm is what a target must be.
const targetForm = "host:port, http://host:port, https://host:port or unix:/path; a,b for hosts between which workers are split"

// dial returns the hosts of a target. Nothing is sent yet.
func (c *call) dial(flag, target string) ([]host, error) {
	conf, err := c.tlsConfig()
	if err != nil {
		return nil, err
	}
	var all []host
	seen := map[string]bool{}
	for name := range strings.SplitSeq(target, ",") {
		name = strings.TrimSpace(name)
		h, err := c.dialOne(flag, name, conf)
		if err == nil && seen[name] {
			h.close()
			err = usagef("--%s: %s is given twice", flag, name)
		}
		if err != nil {
			closeAll(all)
			return nil, err
		}
		seen[name] = true
		all = append(all, h)
	}
	return all, nil
}

func closeAll(all []host) {
	for _, h := range all {
		h.close()
	}
}

func (c *call) dialOne(flag, name string, conf *tls.Config) (host, error) {
	bad := func() error { return usagef("--%s: %.200q must be %s", flag, name, targetForm) }
	scheme, _, hasScheme := strings.Cut(name, "://")
	switch {
	case strings.HasPrefix(name, "unix:"):
		return dialShared(name)
	case hasScheme && (scheme == "http" || scheme == "https"):
		u, err := url.Parse(name)
		if err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" || strings.Trim(u.Path, "/") != "" {
			return nil, bad()
		}
		if scheme == "http" && conf != nil {
			return nil, usagef("--%s: %s must be https:// where --tls-ca or --tls-cert is given", flag, name)
		}
		if err := c.guard(flag, u.Hostname(), scheme == "https"); err != nil {
			return nil, err
		}
		return newHTTPHost(strings.TrimRight(name, "/"), conf, c.token), nil
	case hasScheme:
		return nil, bad()
	}
	addr, port, err := net.SplitHostPort(name)
	if n, notNumber := strconv.ParseUint(port, 10, 16); err != nil || addr == "" || notNumber != nil || n == 0 || strings.ContainsAny(addr, "/ ") {
		return nil, bad()
	}
	if err := c.guard(flag, addr, conf != nil); err != nil {
		return nil, err
	}
	return dialGRPC(name, conf, c.token)
}

// guard refuses to send a token where others can read it.
func (c *call) guard(flag, addr string, secure bool) error {
	ip := net.ParseIP(addr)
	if c.tokenFile == "" || secure || addr == "localhost" || ip != nil && ip.IsLoopback() {
		return nil
	}
	return usagef("--token-file: a token is not sent to %s in the clear (--%s): give --tls-ca", addr, flag)
}

// token returns the bearer token, read anew each time; "": none.
func (c *call) token() (string, error) {
	if c.tokenFile == "" {
		return "", nil
	}
	t, err := settings.ReadToken(c.tokenFile)
	if err != nil {
		return "", usagef("--token-file: %v", err)
	}
	return t, nil
}

// tlsConfig is what TLS is spoken with; nil: nothing was said about it.
func (c *call) tlsConfig() (*tls.Config, error) {
	if _, err := c.token(); err != nil {
		return nil, err
	}
	if c.tlsCA == "" && c.tlsCert == "" {
		return nil, nil
	}
	conf := &tls.Config{MinVersion: tls.VersionTLS13}
	if c.tlsCA != "" {
		pool, err := secure.ReadAuthorities(c.tlsCA)
		if err != nil {
			return nil, usagef("--tls-ca: %v", err)
		}
		conf.RootCAs = pool
	}
	if c.tlsCert != "" {
		pair, err := settings.ReadKeyPair(c.tlsCert, c.tlsKey)
		if err != nil {
			return nil, usagef("--tls-cert: %v", err)
		}
		conf.Certificates = []tls.Certificate{pair}
	}
	return conf, nil
}

// filter is what --model, --group and --tenant choose.
func (c *call) filter() lookup.Filter {
	return lookup.Filter{Model: c.model, Group: c.group, Tenant: c.tenant}
}

func (c *call) selection() selection { return selection{c.filter(), c.instance} }

// hosts dials --host; the context has the timeout.
func (c *call) hosts(ctx context.Context) ([]host, context.Context, func(), error) {
	all, err := c.dial("host", c.host)
	if err != nil {
		return nil, nil, nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	return all, ctx, func() { cancel(); closeAll(all) }, nil
}

// hostError names the host of an error.
type hostError struct {
	host string
	err  error
}

func (e *hostError) Error() string { return e.host + ": " + e.err.Error() }
func (e *hostError) Unwrap() error { return e.err }

func ofHost(h host, err error) error {
	if err == nil || errors.Is(err, context.Canceled) && lookup.KindOf(err) == nil {
		return err
	}
	return &hostError{h.name(), err}
}

// workersOf returns the workers of all hosts that f and instance choose.
func workersOf(ctx context.Context, all []host, s selection) ([]lookup.Worker, error) {
	var ws []lookup.Worker
	for _, h := range all {
		some, err := h.workers(ctx, s.Filter)
		if err != nil {
			return nil, ofHost(h, err)
		}
		ws = append(ws, some...)
	}
	if s.instance != "" {
		ws = slices.DeleteFunc(ws, func(w lookup.Worker) bool { return w.Instance != s.instance })
	}
	return ws, nil
}
