// SPDX-License-Identifier: Apache-2.0

package fdwait

import (
	"encoding/binary"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func eventfd(t *testing.T) int {
	t.Helper()
	fd, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

func signal(t *testing.T, fd int) {
	t.Helper()
	if _, err := unix.Write(fd, binary.NativeEndian.AppendUint64(nil, 1)); err != nil {
		t.Fatal(err)
	}
}

// Each signal is seen, whether it comes before the wait, while ready runs, or
// after, and although the descriptor stays readable all the while: as libzmq's
// may when another goroutine has emptied the socket.
func TestEveryEdge(t *testing.T) {
	fd := eventfd(t)
	w, err := New(fd)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	var sent atomic.Int64
	send := func() { sent.Add(1); signal(t, fd) }
	send()
	done := make(chan error, 1)
	const rounds = 2000
	go func() {
		seen := int64(0)
		done <- w.Wait(func() bool {
			if n := sent.Load(); n > seen {
				seen = n
			}
			return seen >= rounds
		})
	}()
	for i := 1; i < rounds; i++ {
		send()
		if i%7 == 0 {
			time.Sleep(50 * time.Microsecond)
		}
	}
	select {
	case err := <-done:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("a signal was not seen")
	}
}

func TestDeadline(t *testing.T) {
	w, err := New(eventfd(t))
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	done := make(chan error, 1)
	go func() { done <- w.Wait(func() bool { return false }) }()
	time.Sleep(5 * time.Millisecond)
	if err := w.Deadline(time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	if err := <-done; !errors.Is(err, ErrInterrupted) {
		t.Fatalf("got %v, want ErrInterrupted", err)
	}
	called := false
	if err := w.Wait(func() bool { called = true; return true }); !errors.Is(err, ErrInterrupted) || called {
		t.Fatalf("past its deadline: got %v, ready called %v; want ErrInterrupted, not called", err, called)
	}
	if err := w.Deadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	if err := w.Wait(func() bool { return true }); err != nil {
		t.Fatal(err)
	}
}

func TestNotPollable(t *testing.T) {
	fd, err := unix.Open(t.TempDir(), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if _, err := New(fd); err == nil {
		t.Fatal("a directory: got no error")
	}
	if _, err := New(-1); err == nil {
		t.Fatal("descriptor -1: got no error")
	}
}
