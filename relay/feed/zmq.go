// SPDX-License-Identifier: Apache-2.0

// Before: an engine's PUB and ROUTER sockets. After: Stream.

package feed

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	zmq "github.com/pebbe/zmq4"

	"kindex/internal/fdwait"
	"kindex/relay/wire"
)

// ZMQOptions size a [ZMQ]. The zero value means the defaults.
type ZMQOptions struct {
	MaxFrame    int64         // bytes; a longer frame ends its connection; default 16 MiB
	ReplayIdle  time.Duration // silence after which a replay has failed; default 5 s
	ProbeDelay  time.Duration // without a connection until its cause is looked for; default 1 s
	ProbePeriod time.Duration // between further looks; default 10 s
}

func (o *ZMQOptions) setDefaults() {
	orElse(&o.MaxFrame, 16<<20)
	orElse(&o.ReplayIdle, 5*time.Second)
	orElse(&o.ProbeDelay, time.Second)
	orElse(&o.ProbePeriod, 10*time.Second)
}

// Sizes and times of the sockets, chosen, not measured.
const (
	// maxSockets bounds one process's ZMQ sockets: four for each stream while it
	// replays, three otherwise.
	maxSockets = 65_535
	// receiveQueue is how many messages libzmq keeps for a stream that falls
	// behind; past it TCP pushes back and the publisher drops, which is a gap.
	receiveQueue = 1_000

	reconnectMin  = 100 * time.Millisecond
	reconnectMax  = 2 * time.Second
	handshakeTime = 10 * time.Second

	// A peer whose machine vanished is noticed after idle + 3 probes.
	keepaliveIdle  = 15 // seconds
	keepaliveEvery = 5  // seconds
	keepaliveTries = 3

	// One round of a tap takes at most so much before others may look at the
	// stream.
	burstMessages = 64
	burstBytes    = 1 << 20
)

// ZMQ receives straight from engines over ZMQ.
//
// Each stream's goroutines wait for their sockets through the runtime's poller
// (internal/fdwait), so that an idle stream costs no CPU and no thread.
type ZMQ struct {
	opts ZMQOptions
	ctx  *zmq.Context
	taps atomic.Uint64 // opened so far; names their monitors
}

// NewZMQ returns a source that connects to engines' ZMQ sockets.
func NewZMQ(opts ZMQOptions) (*ZMQ, error) {
	opts.setDefaults()
	ctx, err := zmq.NewContext()
	if err != nil {
		return nil, fmt.Errorf("libzmq: %w", err)
	}
	// One I/O thread moves a few 100,000 messages a second.
	threads := min(max(runtime.NumCPU()/8, 1), 4)
	for _, err := range []error{ctx.SetMaxSockets(maxSockets), ctx.SetIoThreads(threads), ctx.SetBlocky(false)} {
		if err != nil {
			return nil, fmt.Errorf("libzmq: %w", err)
		}
	}
	return &ZMQ{opts: opts, ctx: ctx}, nil
}

// Close ends the source. Every tap must be closed before.
func (z *ZMQ) Close() error { return z.ctx.Term() }

// socket returns a socket with the options that all ours share.
func (z *ZMQ) socket(kind zmq.Type) (*zmq.Socket, error) {
	s, err := z.ctx.NewSocket(kind)
	if err != nil {
		return nil, fmt.Errorf("a ZMQ socket: %w", err)
	}
	for _, err := range []error{
		s.SetLinger(0),
		s.SetMaxmsgsize(z.opts.MaxFrame),
		s.SetRcvhwm(receiveQueue),
		s.SetReconnectIvl(reconnectMin),
		s.SetReconnectIvlMax(reconnectMax),
		s.SetHandshakeIvl(handshakeTime),
		s.SetTcpKeepalive(1),
		s.SetTcpKeepaliveIdle(keepaliveIdle),
		s.SetTcpKeepaliveIntvl(keepaliveEvery),
		s.SetTcpKeepaliveCnt(keepaliveTries),
	} {
		if err != nil {
			_ = s.Close()
			return nil, fmt.Errorf("a ZMQ socket's option: %w", err)
		}
	}
	return s, nil
}

// waiterOf returns a waiter for s.
func waiterOf(s *zmq.Socket) (*fdwait.Waiter, error) {
	fd, err := s.GetFd()
	if err != nil {
		return nil, err
	}
	return fdwait.New(fd)
}

// maxFrames is how many frames of one message are looked at: no message of ours
// has more than four, and a fifth shows that there are too many.
const maxFrames = 5

// receive returns the frames of the next message, or nil when there is none now.
func receive(s *zmq.Socket) ([][]byte, error) {
	// Asking for the events, not just trying, makes the socket take in what its
	// descriptor has signalled.
	events, err := s.GetEvents()
	if err != nil || events&zmq.POLLIN == 0 {
		return nil, err
	}
	frames := make([][]byte, 0, 4)
	for {
		b, err := s.RecvBytes(zmq.DONTWAIT)
		if err != nil {
			return nil, err
		}
		if len(frames) < maxFrames {
			frames = append(frames, b)
		}
		more, err := s.GetRcvmore()
		if err != nil {
			return nil, err
		}
		if !more {
			return frames, nil
		}
	}
}

// receiveLive appends to msgs what the SUB socket has, one burst of it at most,
// and tells whether there may be more.
func receiveLive(s *zmq.Socket, msgs []Message) (_ []Message, more bool, err error) {
	size := 0
	for len(msgs) < burstMessages && size < burstBytes {
		frames, err := receive(s)
		if err != nil || frames == nil {
			return msgs, false, err
		}
		_, payload, seq, err := wire.ParseMessage(frames)
		msgs = append(msgs, Message{Seq: seq, Payload: payload, Bad: err != nil})
		size += len(payload)
	}
	return msgs, true, nil
}

// receiveReplay is receiveLive for the DEALER socket; end tells that the answer
// is complete.
func receiveReplay(s *zmq.Socket, msgs []Message) (_ []Message, more, end bool, err error) {
	size := 0
	for len(msgs) < burstMessages && size < burstBytes {
		frames, err := receive(s)
		if err != nil || frames == nil {
			return msgs, false, false, err
		}
		payload, seq, end, err := wire.ParseReplay(frames)
		if end {
			return msgs, false, true, nil
		}
		msgs = append(msgs, Message{Seq: seq, Payload: payload, Bad: err != nil})
		size += len(payload)
	}
	return msgs, true, false, nil
}
