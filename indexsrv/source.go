// SPDX-License-Identifier: Apache-2.0

// Before: an engine's sockets. After: stream.

package indexsrv

import "errors"

// errNoSockets refuses a stream that the process has no sockets or descriptors
// left for. Others may end and make room.
var errNoSockets = errors.New("no room for the stream's sockets: each stream takes 6 descriptors, 9 while it replays (see ulimit -n)")

// source is a way that streams reach this host: ZMQ sockets of the engines, a
// relay. One source serves any number of streams.
type source interface {
	// open begins to deliver to s and returns at once; connecting, retrying and
	// replaying go on behind it. An error means that cfg can never work, or is
	// errNoSockets.
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
