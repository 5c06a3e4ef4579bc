// SPDX-License-Identifier: Apache-2.0

package fdwait

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Listener accepts TCP connections whose reads and writes the scheduler does not
// hear of. They never block (the descriptor is non-blocking, the runtime's poller
// waits), so there is nothing for it to do; telling it wakes its monitor thread
// whenever the process was idle, which then looks on for a while. A stream of
// single small messages, each of which finds the process idle, spends more on that
// than on all else.
type Listener struct{ net.Listener }

// Accept implements [net.Listener].
func (l Listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return Quiet(c), nil
}

// Quiet returns c with reads and writes as those of [Listener]'s connections where
// c is a TCP connection, else c.
func Quiet(c net.Conn) net.Conn {
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return c
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return c // closed: every use will say so
	}
	q := &conn{TCPConn: tcp, raw: raw}
	q.in.try = q.in.read
	q.out.try = q.out.write
	return q
}

// conn is a TCP connection that reads and writes by raw system calls.
//
// Concurrency: as [net.Conn].
type conn struct {
	*net.TCPConn
	raw     syscall.RawConn
	in, out transfer
}

// transfer is the read or the write under way.
type transfer struct {
	mu  sync.Mutex
	try func(fd uintptr) bool // a method of its own, bound once
	b   []byte
	n   int
	err error
}

func (t *transfer) begin(b []byte) { t.b, t.n, t.err = b, 0, nil }

// end lets go of the buffer and returns what came of it.
func (t *transfer) end(op string, err error) (int, error) {
	t.b = nil
	if t.err != nil {
		err = t.err
	}
	if errno := syscall.Errno(0); errors.As(err, &errno) {
		err = &net.OpError{Op: op, Net: "tcp", Err: os.NewSyscallError(op, errno)}
	}
	return t.n, err
}

// Read implements [net.Conn].
func (c *conn) Read(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	c.in.mu.Lock()
	defer c.in.mu.Unlock()
	c.in.begin(b)
	return c.in.end("read", c.raw.Read(c.in.try))
}

// Write implements [net.Conn].
func (c *conn) Write(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	c.out.mu.Lock()
	defer c.out.mu.Unlock()
	c.out.begin(b)
	return c.out.end("write", c.raw.Write(c.out.try))
}

// read tries once; false: nothing is there yet.
func (t *transfer) read(fd uintptr) bool {
	n, errno := call(unix.SYS_READ, fd, t.b)
	switch {
	case errno == unix.EAGAIN:
		return false
	case errno != 0:
		t.err = errno
	case n == 0:
		t.err = io.EOF
	}
	t.n = n
	return true
}

// write writes what there is room for; false: not all of it yet.
func (t *transfer) write(fd uintptr) bool {
	for t.n < len(t.b) {
		n, errno := call(unix.SYS_WRITE, fd, t.b[t.n:])
		switch {
		case errno == unix.EAGAIN:
			return false
		case errno != 0:
			t.err = errno
			return true
		}
		t.n += n
	}
	return true
}

// call reads or writes once.
func call(trap, fd uintptr, b []byte) (int, syscall.Errno) {
	for {
		n, _, errno := unix.RawSyscall(trap, fd, uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)))
		if errno == unix.EINTR {
			continue
		}
		if errno != 0 {
			return 0, errno
		}
		return int(n), 0
	}
}

// Raw is the descriptor of a connection.
type Raw struct{ raw syscall.RawConn }

// RawOf returns c's.
func RawOf(c net.Conn) (Raw, error) {
	sys, ok := c.(syscall.Conn)
	if !ok {
		return Raw{}, fmt.Errorf("a connection of type %T has no descriptor", c)
	}
	raw, err := sys.SyscallConn()
	return Raw{raw}, err
}

// Wait calls ready with the descriptor, and again each time there is more to read,
// until it returns true or the connection's read deadline has passed or it was
// closed.
func (r Raw) Wait(ready func(fd uintptr) bool) error { return r.raw.Read(ready) }

// Now calls fn with the descriptor, which is open meanwhile, also while somebody
// waits.
func (r Raw) Now(fn func(fd uintptr)) error { return r.raw.Control(fn) }

// ErrNothing is what [Read] returns where there is nothing to read now.
var ErrNothing = errors.New("nothing to read")

// Read reads once from a non-blocking descriptor. The caller keeps fd open, as
// within the functions that [syscall.RawConn] calls.
//
// Errors: [ErrNothing], [io.EOF] where b has room, those of the system.
func Read(fd uintptr, b []byte) (int, error) {
	n, errno := call(unix.SYS_READ, fd, b)
	switch {
	case errno == unix.EAGAIN:
		return 0, ErrNothing
	case errno != 0:
		return 0, os.NewSyscallError("read", errno)
	case n == 0 && len(b) > 0:
		return 0, io.EOF
	}
	return n, nil
}
