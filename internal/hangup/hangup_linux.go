// SPDX-License-Identifier: Apache-2.0

package hangup

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"kindex/internal/fdwait"
)

// events are those asked for. Errors and the end of both directions come unasked.
const events = unix.EPOLLRDHUP | unix.EPOLLET

// batch is how many hang-ups are taken from the queue at once.
const batch = 128

// Watcher watches connections.
//
// Concurrency: any goroutine.
type Watcher struct {
	fd     int // of the epoll queue
	waiter *fdwait.Waiter
	ended  chan struct{}

	mu     sync.Mutex
	marks  []*Mark  // by slot; nil: free
	turns  []uint32 // by slot: an event of an earlier turn is of a connection that was closed
	free   []uint32
	closed bool
}

// New returns a watcher. It has a goroutine until Close.
func New() (*Watcher, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("watching for hang-ups: %w", os.NewSyscallError("epoll_create1", err))
	}
	if err = unix.SetNonblock(fd, true); err == nil {
		w := &Watcher{fd: fd, ended: make(chan struct{})}
		// The queue is itself a descriptor that the runtime's poller can wait for: the
		// goroutine holds no thread.
		if w.waiter, err = fdwait.New(fd); err == nil {
			go w.run()
			return w, nil
		}
	}
	return nil, errors.Join(fmt.Errorf("watching for hang-ups: %w", err), unix.Close(fd))
}

// Close ends the watch. Its marks tell nothing any more.
func (w *Watcher) Close() error {
	w.mu.Lock()
	was := w.closed
	w.closed = true
	w.mu.Unlock()
	if was {
		return nil
	}
	err := w.waiter.Deadline(time.Unix(1, 0))
	<-w.ended
	return errors.Join(err, w.waiter.Close(), unix.Close(w.fd))
}

// Watch watches c until Forget. A connection over another one, as one of TLS, is
// watched by what lies at the bottom.
func (w *Watcher) Watch(c net.Conn) (*Mark, error) {
	sys, ok := below(c).(syscall.Conn)
	if !ok {
		return nil, fmt.Errorf("a connection of type %T has no descriptor", c)
	}
	raw, err := sys.SyscallConn()
	if err != nil {
		return nil, err
	}
	m, err := w.take()
	if err != nil {
		return nil, err
	}
	var add error
	err = raw.Control(func(fd uintptr) {
		ev := unix.EpollEvent{Events: events, Fd: int32(m.slot), Pad: int32(m.turn)}
		add = unix.EpollCtl(w.fd, unix.EPOLL_CTL_ADD, int(fd), &ev)
	})
	if err = errors.Join(err, os.NewSyscallError("epoll_ctl", add)); err != nil {
		w.Forget(m)
		return nil, err
	}
	return m, nil
}

// Forget ends the watch of m's connection, which is closed or about to be: closing it
// takes it from the system's queue.
func (w *Watcher) Forget(m *Mark) {
	if m == nil {
		return
	}
	m.Tell(nil)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.marks[m.slot] != m {
		return
	}
	w.marks[m.slot] = nil
	w.free = append(w.free, m.slot)
}

// Watched returns how many connections are.
func (w *Watcher) Watched() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.marks) - len(w.free)
}

// take gives a mark a slot.
func (w *Watcher) take() (*Mark, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return nil, net.ErrClosed
	}
	m := &Mark{}
	if n := len(w.free); n > 0 {
		m.slot = w.free[n-1]
		w.free = w.free[:n-1]
		w.turns[m.slot]++
	} else {
		m.slot = uint32(len(w.marks))
		w.marks, w.turns = append(w.marks, nil), append(w.turns, 0)
	}
	m.turn = w.turns[m.slot]
	w.marks[m.slot] = m
	return m, nil
}

// find returns whose event it is, or nil: somebody's who has been forgotten.
func (w *Watcher) find(ev *unix.EpollEvent) *Mark {
	w.mu.Lock()
	defer w.mu.Unlock()
	slot := uint32(ev.Fd)
	if int(slot) >= len(w.marks) || w.turns[slot] != uint32(ev.Pad) {
		return nil
	}
	return w.marks[slot]
}

func (w *Watcher) run() {
	defer close(w.ended)
	var evs [batch]unix.EpollEvent
	for {
		n := 0
		err := w.waiter.Wait(func() bool {
			var err error
			n, err = unix.EpollWait(w.fd, evs[:], 0)
			return err == nil && n > 0
		})
		if err != nil {
			return // closed
		}
		for i := range evs[:n] {
			if m := w.find(&evs[i]); m != nil {
				m.hangUp()
			}
		}
	}
}
