// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"
)

// A frame of the socket: its length without these four bytes (u32), its kind (u8), its
// body. All numbers are little-endian.
const frameHeader = 5

// Kinds of frames.
const (
	frameHello   = 1 // server: the shape of the memory, which comes along
	frameRefused = 2 // server: why there will be no hello
	frameTable   = 3 // server: a table, whole or what changed
	frameBye     = 4 // server: it stops; what has been asked is still answered
	frameAsk     = 5 // client: a request that the socket answers; see Asker
	frameAnswer  = 6 // server: a part of the answer
	frameCancel  = 7 // client: no more of it is wanted
)

// Bounds of a frame's body, in bytes.
const (
	maxServerFrame = 64 << 20
	maxClientFrame = 64 << 10
)

// hello is what the server says first.
type hello struct {
	layout     Layout
	generation uint64
	clock      uint64 // the server's, in nanoseconds
	spins      bool   // the server's threads look for a while before they sleep
}

const helloSize = 4 + 3*4 + 8 + 8 + 1

func (h *hello) append(b []byte) []byte {
	le := binary.LittleEndian
	b = le.AppendUint32(b, layoutVersion)
	b = le.AppendUint32(b, uint32(h.layout.Shards))
	b = le.AppendUint32(b, uint32(h.layout.Requests))
	b = le.AppendUint32(b, uint32(h.layout.Replies))
	b = le.AppendUint64(b, h.generation)
	b = le.AppendUint64(b, h.clock)
	spins := byte(0)
	if h.spins {
		spins = 1
	}
	return append(b, spins)
}

func (h *hello) parse(b []byte) error {
	le := binary.LittleEndian
	if len(b) < 4 {
		return errors.New("shm: the server's hello is cut short")
	}
	if v := le.Uint32(b); v != layoutVersion {
		return fmt.Errorf("shm: the server speaks version %d of the layout, this client %d", v, layoutVersion)
	}
	if len(b) != helloSize {
		return fmt.Errorf("shm: the server's hello has %d bytes, must be %d", len(b), helloSize)
	}
	h.layout = Layout{int(le.Uint32(b[4:])), int(le.Uint32(b[8:])), int(le.Uint32(b[12:]))}
	h.generation, h.clock, h.spins = le.Uint64(b[16:]), le.Uint64(b[24:]), b[32] != 0
	return h.layout.Check()
}

// frame returns a frame whose body fill, which may be nil, appends.
func frame(kind byte, fill func([]byte) []byte) []byte {
	b := []byte{0, 0, 0, 0, kind}
	if fill != nil {
		b = fill(b)
	}
	binary.LittleEndian.PutUint32(b, uint32(len(b)-4))
	return b
}

// readFrame reads the next frame of at most most bytes into buf's memory or more.
func readFrame(r io.Reader, buf []byte, most int) (kind byte, body, _ []byte, err error) {
	var head [frameHeader]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, buf, err
	}
	n := int(binary.LittleEndian.Uint32(head[:])) - 1
	if n < 0 || n > most {
		return 0, nil, buf, fmt.Errorf("shm: a frame of %d bytes: at most %d", n+1, most+1)
	}
	// Grown as it comes: a length alone takes no memory.
	buf = buf[:0]
	for len(buf) < n {
		step := min(n-len(buf), max(64<<10, len(buf)))
		buf = append(buf, make([]byte, step)...)
		if _, err := io.ReadFull(r, buf[len(buf)-step:]); err != nil {
			return 0, nil, buf, err
		}
	}
	return head[4], buf[:n], buf, nil
}

// writeFor writes b, or gives up after d.
func writeFor(c *net.UnixConn, b []byte, d time.Duration) error {
	if err := c.SetWriteDeadline(time.Now().Add(d)); err != nil {
		return err
	}
	_, err := c.Write(b)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("shm: the other side takes nothing from the socket: %w", err)
	}
	return err
}
