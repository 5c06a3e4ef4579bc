// SPDX-License-Identifier: Apache-2.0

// Package fdwait waits for a descriptor that a C library owns through the Go
// runtime's own poller: a waiting goroutine costs no thread, and thousands may
// wait.
//
// It exists for libzmq's sockets, whose descriptor signals, by edges, that the
// socket's events may have changed. Waiting in libzmq's own poll instead holds a
// thread for each waiter, and a scheduler slot for as long as it takes the
// runtime to notice; polling many sockets in one call looks at each of them on
// every wake.
package fdwait

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ErrInterrupted ends a wait whose deadline has passed; see [Waiter.Deadline].
var ErrInterrupted = errors.New("wait interrupted")

// Waiter waits for one descriptor to become readable.
//
// Concurrency: Wait belongs to one goroutine; Deadline may be called from any.
type Waiter struct {
	file *os.File
	conn syscall.RawConn
}

// New returns a waiter for fd, which must be in non-blocking mode. The waiter
// keeps a duplicate: fd stays its owner's to close, before or after.
func New(fd int) (*Waiter, error) {
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("duplicating descriptor %d: %w", fd, err)
	}
	f := os.NewFile(uintptr(dup), "fdwait")
	// A descriptor that the runtime cannot poll takes no deadline.
	if err := f.SetReadDeadline(time.Time{}); err != nil {
		return nil, errors.Join(fmt.Errorf("descriptor %d: %w", fd, err), f.Close())
	}
	conn, err := f.SyscallConn()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &Waiter{file: f, conn: conn}, nil
}

// Wait calls ready, and again each time the descriptor has signalled, until it
// returns true. An edge that comes while ready runs is not lost.
//
// Errors: [ErrInterrupted] once the deadline has passed; until it is set anew
// every further Wait returns that at once, without calling ready.
func (w *Waiter) Wait(ready func() bool) error {
	err := w.conn.Read(func(uintptr) bool { return ready() })
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return ErrInterrupted
	}
	return err
}

// Deadline sets when Wait gives up, also one that is running; zero means never,
// a time in the past at once.
func (w *Waiter) Deadline(t time.Time) error { return w.file.SetReadDeadline(t) }

// Close frees the duplicate. No Wait may be running.
func (w *Waiter) Close() error { return w.file.Close() }
