// SPDX-License-Identifier: Apache-2.0

package link

import (
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"
)

// echo answers each connection with what it sends.
func echo(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(c, c); _ = c.Close() }()
		}
	}()
	return listener.Addr().String()
}

func dial(t *testing.T, l *Link) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", l.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// say sends a word and returns the answer, "" for none within d.
func say(t *testing.T, c net.Conn, word string, d time.Duration) string {
	t.Helper()
	if _, err := io.WriteString(c, word); err != nil {
		t.Fatal(err)
	}
	return hear(t, c, len(word), d)
}

func hear(t *testing.T, c net.Conn, n int, d time.Duration) string {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(d)); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, n)
	got, _ := io.ReadFull(c, b)
	return string(b[:got])
}

func TestCut(t *testing.T) {
	l, err := Open(echo(t))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	const soon, never = 10 * time.Second, 100 * time.Millisecond
	old := dial(t, l)
	if got := say(t, old, "one", soon); got != "one" {
		t.Fatalf("through a whole link came %q", got)
	}
	l.Cut()
	l.Cut()
	fresh := dial(t, l) // is taken, and nothing comes of it
	before := l.Passed()
	if got := say(t, old, "two", never) + say(t, fresh, "three", never); got != "" || l.Passed() != before {
		t.Errorf("through a cut link came %q, %d bytes", got, l.Passed()-before)
	}
	l.Heal()
	if got := hear(t, old, 3, soon); got != "two" {
		t.Errorf("behind the heal came %q, want what was sent before", got)
	}
	if got := hear(t, fresh, 5, soon); got != "three" {
		t.Errorf("behind the heal came %q of a new connection", got)
	}
}

func TestRefuse(t *testing.T) {
	l, err := Open(echo(t))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	const soon = 10 * time.Second
	old, addr := dial(t, l), l.Addr()
	if got := say(t, old, "one", soon); got != "one" {
		t.Fatalf("through a whole link came %q", got)
	}
	for range 2 { // told twice, it is done once
		if err := l.Refuse(); err != nil {
			t.Fatal(err)
		}
	}
	if err := old.SetReadDeadline(time.Now().Add(soon)); err != nil {
		t.Fatal(err)
	}
	if _, err := old.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the old connection goes on: %v", err)
	}
	if c, err := net.Dial("tcp", addr); err == nil {
		_ = c.Close()
		t.Error("a new connection is not refused")
	}
	for range 2 {
		if err := l.Accept(); err != nil {
			t.Fatal(err)
		}
	}
	if got := say(t, dial(t, l), "two", soon); got != "two" || l.Addr() != addr {
		t.Errorf("behind it came %q at %s, want %s", got, l.Addr(), addr)
	}
}

func TestEnds(t *testing.T) {
	l, err := Open("127.0.0.1:1") // nobody listens there
	if err != nil {
		t.Fatal(err)
	}
	c := dial(t, l)
	if got := say(t, c, "x", 10*time.Second); got != "" {
		t.Errorf("nobody answered %q", got)
	}
	l.Cut()
	held := dial(t, l)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if got := say(t, held, "x", 10*time.Second); got != "" {
		t.Errorf("a closed link passed %q", got)
	}
}
