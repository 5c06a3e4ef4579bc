// SPDX-License-Identifier: Apache-2.0

// Before: an engine's sockets. After: Stream.

package feed

import "errors"

// ErrNoSockets refuses a stream that the process has no sockets or descriptors
// left for. Others may end and make room.
var ErrNoSockets = errors.New("no room for the stream's sockets: each stream takes up to 6 descriptors, 9 while it replays (see ulimit -n)")

// Source is a way that streams reach this process: ZMQ sockets of the engines, a
// relay. One source serves any number of streams.
type Source interface {
	// Open begins to deliver to s and returns at once; connecting, retrying and
	// replaying go on behind it. An error means that cfg can never work, or is
	// ErrNoSockets.
	Open(cfg *Config, s *Stream) (Tap, error)
	// Close ends the source. Every tap must be closed before.
	Close() error
}

// Tap is one stream's place at a source.
type Tap interface {
	// Close stops delivery and frees the tap's sockets. When it returns, no call
	// into the stream is running and none will come.
	Close()
}
