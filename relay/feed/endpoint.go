// SPDX-License-Identifier: Apache-2.0

package feed

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

// endpoint is an address as the field writes it.
type endpoint struct {
	text   string
	scheme string // tcp, ipc
	host   string // tcp only
	port   int    // tcp only
	bind   bool   // a wildcard host: the engine connects to us
}

// parseEndpoint reads tcp://host:port and ipc://path. A wildcard host (*,
// 0.0.0.0, [::]) means that we bind and the engine connects, as vLLM does when
// its own endpoint names a host.
func parseEndpoint(text string) (endpoint, error) {
	scheme, rest, ok := strings.Cut(text, "://")
	e := endpoint{text: text, scheme: scheme}
	switch {
	case !ok:
		return e, fmt.Errorf("%q is no endpoint: it must be tcp://host:port or ipc://path", text)
	case scheme == "ipc":
		if rest == "" || len(rest) > 100 {
			return e, fmt.Errorf("%q: an ipc endpoint needs a path of 1 to 100 bytes", text)
		}
		return e, nil
	case scheme != "tcp":
		return e, fmt.Errorf("%q: the scheme must be tcp or ipc", text)
	}
	host, port, err := net.SplitHostPort(rest)
	if err != nil || host == "" || strings.ContainsAny(host, " /;,@\t\r\n\x00") {
		return e, fmt.Errorf("%q: it must be tcp://host:port", text)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 {
		return e, fmt.Errorf("%q: the port must be 1 to 65535", text)
	}
	e.host, e.port = host, int(n)
	e.bind = host == "*" || host == "0.0.0.0" || host == "::"
	return e, nil
}

// CheckEndpoint returns why text cannot be a stream's live endpoint, or its
// replay endpoint: those are always bound by the engine, so a wildcard is
// refused.
func CheckEndpoint(text string, replay bool) error {
	e, err := parseEndpoint(text)
	if err != nil {
		return err
	}
	if replay && e.bind {
		return fmt.Errorf("%q: a replay endpoint is bound by the engine, name its host", text)
	}
	return nil
}

// RankEndpoint returns where data-parallel rank publishes when rank 0 publishes
// at text: the port plus rank. An ipc endpoint has rank 0 only.
func RankEndpoint(text string, rank int) (string, error) {
	e, err := parseEndpoint(text)
	switch {
	case err != nil:
		return "", err
	case rank == 0:
		return text, nil
	case rank < 0:
		return "", fmt.Errorf("rank %d: it must not be negative", rank)
	case e.scheme != "tcp":
		return "", fmt.Errorf("%q: only tcp endpoints have more than one rank", text)
	case e.port+rank > 65535:
		return "", fmt.Errorf("%q: rank %d would be port %d, past 65535", text, rank, e.port+rank)
	}
	return "tcp://" + net.JoinHostPort(e.host, strconv.Itoa(e.port+rank)), nil
}

// BoundPort returns the TCP port that a stream with the live endpoint text binds
// on this machine, or 0 where it connects.
func BoundPort(text string) int {
	e, err := parseEndpoint(text)
	if err != nil || !e.bind {
		return 0
	}
	return e.port
}

// address is an endpoint as libzmq is given it: never a name, so that its I/O
// threads, which serve every stream, cannot block in a name server.
type address struct {
	text    string
	network string // for a probe: tcp or unix
	dial    string
	ipv6    bool
}

// resolveTime bounds one lookup of a name, probeTime one trial connection.
const (
	resolveTime = 5 * time.Second
	probeTime   = 2 * time.Second
)

// resolve returns e's address now.
func (e *endpoint) resolve(ctx context.Context) (address, error) {
	if e.scheme == "ipc" {
		return address{text: e.text, network: "unix", dial: strings.TrimPrefix(e.text, "ipc://")}, nil
	}
	if e.host == "*" {
		return address{text: e.text}, nil
	}
	ip, err := netip.ParseAddr(e.host)
	if err != nil {
		if ip, err = lookup(ctx, e.host); err != nil {
			return address{}, err
		}
	}
	at := netip.AddrPortFrom(ip, uint16(e.port)).String()
	return address{text: "tcp://" + at, network: "tcp", dial: at, ipv6: ip.Is6()}, nil
}

// lookup returns a name's address, an IPv4 one where it has both.
func lookup(ctx context.Context, host string) (netip.Addr, error) {
	ctx, cancel := context.WithTimeout(ctx, resolveTime)
	defer cancel()
	// The resolver of the C library cannot be interrupted.
	r := net.Resolver{PreferGo: true}
	ips, err := r.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return netip.Addr{}, err
	}
	for _, ip := range ips {
		if ip.Unmap().Is4() {
			return ip.Unmap(), nil
		}
	}
	if len(ips) == 0 {
		return netip.Addr{}, fmt.Errorf("lookup %s: no address", host)
	}
	return ips[0], nil
}

// connect opens a plain connection to a.
func (a *address) connect(ctx context.Context) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	var d net.Dialer
	return d.DialContext(ctx, a.network, a.dial)
}

// probe returns why nothing can be reached at a, in the system's words: libzmq
// keeps them to itself.
func (a *address) probe(ctx context.Context) error {
	c, err := a.connect(ctx)
	if err != nil {
		return err
	}
	return errors.Join(errors.New("the port is open, but no ZMTP handshake finished"), c.Close())
}
