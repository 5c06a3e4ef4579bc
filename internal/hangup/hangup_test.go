// SPDX-License-Identifier: Apache-2.0

//go:build linux

package hangup

import (
	"crypto/tls"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// watcher returns one that ends with the test.
func watcher(t *testing.T) *Watcher {
	t.Helper()
	w, err := New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

// pair returns both ends of a connection.
func pair(t *testing.T) (server, client *net.TCPConn) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	c, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	s, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close(); c.Close() })
	return s.(*net.TCPConn), c.(*net.TCPConn)
}

// told waits until c is closed.
func told(t *testing.T, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(10 * time.Second):
		t.Fatal("nobody told")
	}
}

func TestHangUps(t *testing.T) {
	w := watcher(t)
	for name, end := range map[string]func(c *net.TCPConn) error{
		"close": (*net.TCPConn).Close,
		"half":  (*net.TCPConn).CloseWrite,
		"reset": func(c *net.TCPConn) error { return errors.Join(c.SetLinger(0), c.Close()) },
	} {
		t.Run(name, func(t *testing.T) {
			server, client := pair(t)
			m, err := w.Watch(server)
			if err != nil {
				t.Fatal(err)
			}
			defer w.Forget(m)
			gone := make(chan struct{})
			m.Tell(func() { close(gone) })
			if _, err := io.WriteString(client, "nobody reads this"); err != nil {
				t.Fatal(err)
			}
			if m.Gone() {
				t.Fatal("data is no hang-up")
			}
			if err := end(client); err != nil {
				t.Fatal(err)
			}
			told(t, gone)
			if !m.Gone() {
				t.Error("told, but not gone")
			}
			late := false
			m.Tell(func() { late = true })
			if !late {
				t.Error("who asks later was not told at once")
			}
		})
	}
}

// A client that was gone before anybody watched is found.
func TestGoneBefore(t *testing.T) {
	w := watcher(t)
	server, client := pair(t)
	client.Close()
	m, err := w.Watch(server)
	if err != nil {
		t.Fatal(err)
	}
	gone := make(chan struct{})
	m.Tell(func() { close(gone) })
	told(t, gone)
}

// A connection of TLS is watched by the socket below it.
func TestTLS(t *testing.T) {
	w := watcher(t)
	server, client := pair(t)
	m, err := w.Watch(tls.Server(server, &tls.Config{MinVersion: tls.VersionTLS13}))
	if err != nil {
		t.Fatal(err)
	}
	gone := make(chan struct{})
	m.Tell(func() { close(gone) })
	client.Close()
	told(t, gone)
	if _, err := w.Watch(tls.Server(nil, nil)); err == nil {
		t.Error("watches what has no descriptor")
	}
}

// Who is told no more is not told, nor is who has the slot next.
func TestForget(t *testing.T) {
	w := watcher(t)
	server, client := pair(t)
	m, err := w.Watch(server)
	if err != nil {
		t.Fatal(err)
	}
	m.Tell(func() { t.Error("told although nobody wants to know") })
	m.Tell(nil)
	client.Close()
	w.Forget(m)
	w.Forget(m)
	other, living := pair(t)
	next, err := w.Watch(other)
	if err != nil {
		t.Fatal(err)
	}
	if next.slot != m.slot || next.turn == m.turn {
		t.Fatalf("slot %d turn %d follows slot %d turn %d", next.slot, next.turn, m.slot, m.turn)
	}
	gone := make(chan struct{})
	next.Tell(func() { close(gone) })
	living.Close()
	told(t, gone)
	w.Forget(next)
	if n := w.Watched(); n != 0 {
		t.Errorf("%d are still watched", n)
	}
	var none *Mark
	none.Tell(func() { t.Error("nobody is never gone") })
	if none.Gone() {
		t.Error("nobody is gone")
	}
	w.Forget(none)
}

// Many come and go at once: each that hung up is told of once, and nobody else.
func TestMany(t *testing.T) {
	w := watcher(t)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 40 {
				server, client := pair(t)
				m, err := w.Watch(server)
				if err != nil {
					t.Error(err)
					return
				}
				var times atomic.Int64
				gone := make(chan struct{})
				m.Tell(func() {
					if times.Add(1) == 1 {
						close(gone)
					}
				})
				if rand.IntN(2) == 0 {
					client.Close()
					select {
					case <-gone:
					case <-time.After(10 * time.Second):
						t.Error("nobody told")
					}
				} else if m.Gone() {
					t.Error("told of one that is there")
				}
				w.Forget(m)
				server.Close()
				if n := times.Load(); n > 1 {
					t.Errorf("told %d times", n)
				}
			}
		})
	}
	all.Wait()
	if n := w.Watched(); n != 0 {
		t.Errorf("%d are still watched", n)
	}
}

func TestClosed(t *testing.T) {
	w := watcher(t)
	server, _ := pair(t)
	m, err := w.Watch(server)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(w.Close(), w.Close()); err != nil {
		t.Fatal(err)
	}
	w.Forget(m)
	if _, err := w.Watch(server); !errors.Is(err, net.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}
