// SPDX-License-Identifier: Apache-2.0

// Before: an engine's sockets. After: stream.

package indexsrv

import (
	"fmt"
	"net"
	"strconv"
	"strings"
)

// source is a way that streams reach this host: ZMQ sockets of the engines, a
// relay. One source serves any number of streams.
type source interface {
	// open begins to deliver to s and returns at once; connecting, retrying and
	// replaying go on behind it. An error means that cfg can never work.
	open(cfg *StreamConfig, s *stream) (tap, error)
	// close ends the source. Every tap must be closed before.
	close() error
}

// tap is one stream's place at a source.
type tap interface {
	// close stops delivery and frees the tap's sockets. When it returns, no call
	// into the stream is running and none will come.
	close()
}

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
