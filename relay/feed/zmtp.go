// SPDX-License-Identifier: Apache-2.0

// Before: an engine's PUB socket. After: zmtp_tap.go.

package feed

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"kindex/relay/wire"
)

// The subscriber's side of ZMTP 3.0 (rfc.zeromq.org/spec/23), which every libzmq
// since 4.0 speaks to older and younger peers alike. libzmq itself reads on a
// thread of its own and hands over to ours, which for single small messages costs
// more than all that is done with them.

const (
	greetingBytes  = 64
	signatureBytes = 10
	majorAt        = 10 // in a greeting
	mechanismAt    = 12

	flagMore    = 1
	flagLong    = 2
	flagCommand = 4

	// maxCommand bounds a command: those of publishers are below 100 bytes.
	maxCommand = 4 << 10
	// pageSize is the memory that payloads are read into. Its part in what a feed
	// holds is bounded by that.
	pageSize = 64 << 10
)

// errOldPeer is a peer older than ZMTP 3.
var errOldPeer = errors.New("the peer speaks an older protocol than ZMTP 3")

var (
	errNotZMTP     = errors.New(notZMTP)
	errNoPublisher = errors.New("what listens there is no publisher")
)

// greet opens a connection as a subscriber to everything. It reads nothing past
// the handshake.
func greet(c net.Conn) error {
	greeting := make([]byte, greetingBytes)
	greeting[0], greeting[9], greeting[majorAt] = 0xff, 0x7f, 3
	copy(greeting[mechanismAt:], "NULL")
	if _, err := c.Write(greeting); err != nil {
		return err
	}
	peer := make([]byte, greetingBytes)
	if _, err := io.ReadFull(c, peer[:signatureBytes]); err != nil {
		return handshakeError(err)
	}
	if peer[0] != 0xff || peer[9]&1 == 0 {
		return errOldPeer // or no ZMTP at all
	}
	if _, err := io.ReadFull(c, peer[majorAt:majorAt+1]); err != nil {
		return handshakeError(err)
	}
	if peer[majorAt] < 3 {
		return errOldPeer
	}
	if _, err := io.ReadFull(c, peer[majorAt+1:]); err != nil {
		return handshakeError(err)
	}
	if m := string(bytes.TrimRight(peer[mechanismAt:mechanismAt+20], "\x00")); m != "NULL" {
		return fmt.Errorf("the peer wants the security mechanism %q: only NULL is supported", m)
	}
	if _, err := c.Write(appendCommand(nil, "READY", "\x0bSocket-Type\x00\x00\x00\x03SUB\x08Identity\x00\x00\x00\x00")); err != nil {
		return err
	}
	if err := readReady(c); err != nil {
		return err
	}
	// A subscription is a message of 1 and the prefix: none, so that all match.
	_, err := c.Write([]byte{0, 1, 1})
	return err
}

// handshakeError says what an end in the middle of a handshake means.
func handshakeError(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errNotZMTP
	}
	return err
}

func appendCommand(dst []byte, name, body string) []byte {
	dst = append(dst, flagCommand, byte(1+len(name)+len(body)), byte(len(name)))
	return append(append(dst, name...), body...)
}

// readReady reads the peer's READY and sees that it is a publisher's.
func readReady(c net.Conn) error {
	var head [2]byte
	if _, err := io.ReadFull(c, head[:]); err != nil {
		return handshakeError(err)
	}
	if head[0] != flagCommand {
		return errNotZMTP
	}
	body := make([]byte, head[1])
	if _, err := io.ReadFull(c, body); err != nil {
		return handshakeError(err)
	}
	name, body, ok := cut(body)
	if !ok {
		return errNotZMTP
	}
	if string(name) == "ERROR" {
		why, _, _ := cut(body)
		return fmt.Errorf("the peer refuses: %q", why)
	}
	for len(body) > 0 {
		var key []byte
		if key, body, ok = cut(body); !ok || len(body) < 4 {
			return errNotZMTP
		}
		n := binary.BigEndian.Uint32(body)
		if uint64(n) > uint64(len(body)-4) {
			return errNotZMTP
		}
		value := body[4 : 4+n]
		body = body[4+n:]
		if string(key) == "Socket-Type" {
			if t := string(value); t != "PUB" && t != "XPUB" {
				return fmt.Errorf("%w but a %s socket", errNoPublisher, t)
			}
			return nil
		}
	}
	return errNoPublisher
}

// cut takes a string with its length before it off b.
func cut(b []byte) (head, rest []byte, ok bool) {
	if len(b) == 0 {
		return nil, nil, false
	}
	end := 1 + int(b[0])
	if end > len(b) {
		return nil, nil, false
	}
	return b[1:end], b[end:], true
}

// framer cuts what is read into messages. Payloads alias its pages, which are not
// written again.
type framer struct {
	max    uint64 // bytes of a frame
	page   []byte // [at, len) is not cut yet, [len, cap) is read into next
	at     int
	frames [][]byte // of the message in work, at most maxFrames of them
	left   bool     // it has more
	pong   []byte   // answers to send
}

// space returns where to read next.
func (f *framer) space() []byte {
	if len(f.page) == cap(f.page) {
		f.turn(0)
	}
	return f.page[len(f.page):cap(f.page)]
}

// turn begins a page that has what is not cut yet and room for a frame of n bytes.
func (f *framer) turn(n int) {
	rest := f.page[f.at:]
	page := make([]byte, len(rest), max(pageSize, n, 2*len(rest)))
	copy(page, rest)
	f.page, f.at = page, 0
}

// read takes n bytes more in.
func (f *framer) read(n int) { f.page = f.page[:len(f.page)+n] }

// next appends to msgs what has come whole, one burst at most. more tells that
// there may be more than that.
func (f *framer) next(msgs []Message) (_ []Message, more bool, err error) {
	for size := 0; len(msgs) < burstMessages && size < burstBytes; {
		flags, body, ok, err := f.frame()
		if err != nil || !ok {
			return msgs, false, err
		}
		if flags&flagCommand != 0 {
			if err := f.command(body); err != nil {
				return msgs, false, err
			}
			continue
		}
		if !f.left {
			clear(f.frames)
			f.frames = f.frames[:0]
		}
		if len(f.frames) < maxFrames {
			f.frames = append(f.frames, body)
		}
		size += len(body)
		if f.left = flags&flagMore != 0; f.left {
			continue
		}
		_, payload, seq, err := wire.ParseMessage(f.frames)
		msgs = append(msgs, Message{Seq: seq, Payload: payload, Bad: err != nil})
	}
	return msgs, true, nil
}

// frame takes one frame off, if it has come whole.
func (f *framer) frame() (flags byte, body []byte, ok bool, err error) {
	b := f.page[f.at:]
	if len(b) < 2 {
		return 0, nil, false, nil
	}
	flags = b[0]
	head, n := 2, uint64(b[1])
	if flags&flagLong != 0 {
		if head = 9; len(b) < head {
			return 0, nil, false, nil
		}
		n = binary.BigEndian.Uint64(b[1:])
	}
	switch {
	case flags&^(flagMore|flagLong|flagCommand) != 0, flags&flagCommand != 0 && (flags&flagMore != 0 || n > maxCommand):
		return 0, nil, false, errNotZMTP
	case n > f.max:
		return 0, nil, false, fmt.Errorf("a frame of %d bytes, the limit is %d", n, f.max)
	}
	whole := head + int(n)
	if len(b) < whole {
		if whole > cap(f.page)-f.at {
			f.turn(whole)
		}
		return 0, nil, false, nil
	}
	f.at += whole
	return flags, b[head:whole:whole], true, nil
}

// command answers what publishers ask besides: whether we are there.
func (f *framer) command(body []byte) error {
	name, rest, ok := cut(body)
	if !ok {
		return errNotZMTP
	}
	if string(name) == "PING" && len(rest) >= 2 {
		f.pong = appendCommand(f.pong, "PONG", string(rest[2:min(len(rest), 18)]))
	}
	return nil
}

// handshakeDeadline bounds a handshake of c.
func handshakeDeadline(c net.Conn) error { return c.SetDeadline(time.Now().Add(handshakeTime)) }
