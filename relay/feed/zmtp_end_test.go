// SPDX-License-Identifier: Apache-2.0

package feed

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"kindex/internal/kv"
	"kindex/relay/wire"
)

// publisherReady is what a publisher says before its first message.
func publisherReady() []byte {
	return append(greetingOf(3, "NULL"), appendCommand(nil, "READY", "\x0bSocket-Type\x00\x00\x00\x03PUB")...)
}

// cork has c send what is written, and its end, in as few segments as they fit in,
// once it is closed.
func cork(c *net.TCPConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var set error
	err = raw.Control(func(fd uintptr) { set = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, syscall.TCP_CORK, 1) })
	return errors.Join(err, set)
}

// ending is one way that a publisher's connection ends.
type ending struct {
	name string
	end  func(c *net.TCPConn, last []byte) error
	sure bool // the last message arrives
}

var endings = []ending{
	{"closed behind the last message", func(c *net.TCPConn, last []byte) error {
		_, err := c.Write(last)
		return errors.Join(err, c.Close())
	}, true},
	{"closed with the last message, in one segment", func(c *net.TCPConn, last []byte) error {
		err := cork(c)
		_, e := c.Write(last)
		return errors.Join(err, e, c.Close())
	}, true},
	{"its half closed with the last message", func(c *net.TCPConn, last []byte) error {
		err := cork(c)
		_, e := c.Write(last)
		go func() {
			_, _ = io.Copy(io.Discard, c) // until the other end has seen it
			_ = c.Close()
		}()
		return errors.Join(err, e, c.CloseWrite())
	}, true},
	{"closed within a message", func(c *net.TCPConn, last []byte) error {
		err := cork(c)
		_, e := c.Write(append(last, last[:len(last)/2]...))
		return errors.Join(err, e, c.Close())
	}, true},
	{"reset after the last message", func(c *net.TCPConn, last []byte) error {
		err := c.SetLinger(0)
		_, e := c.Write(last)
		return errors.Join(err, e, c.Close())
	}, false},
	{"closed with nothing more", func(c *net.TCPConn, _ []byte) error { return c.Close() }, false},
}

// A publisher that sends its last message and ends at once is seen to have ended,
// whether the stream waits for it already or not, and its last message is taken.
func TestPublisherEnds(t *testing.T) {
	src, err := NewZMQ(ZMQOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := src.Close(); err != nil {
			t.Error(err)
		}
	}()
	payload := wire.AppendBatch(nil, &kv.Batch{Timestamp: 1}, lossyLayout(t))
	for _, e := range endings {
		for _, waits := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, waits=%v", e.name, waits), func(t *testing.T) {
				for i := range 20 {
					publisherEnds(t, src, e, waits, payload, i)
				}
			})
		}
	}
}

// publisherEnds has one stream follow a publisher that ends as e says.
func publisherEnds(t *testing.T, src *ZMQ, e ending, waits bool, payload []byte, run int) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	sink := &sums{news: make(chan struct{}, 1)}
	ended := make(chan struct{})
	var once sync.Once
	stream, err := Open(src, Config{Endpoint: "tcp://" + ln.Addr().String()}, sink, Hooks{
		Stands: func(now Standing, why string) {
			if now.State == StateDegraded && contains(why, "lost") {
				once.Do(func() { close(ended) })
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	c, err := ln.Accept()
	if err := errors.Join(err, ln.Close()); err != nil {
		t.Fatal(err)
	}
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		t.Fatalf("accepted a %T", c)
	}
	tap, ok := stream.tap.(*zmqTap)
	if !ok {
		t.Fatalf("the tap is a %T", stream.tap)
	}
	if !waits { // it gets no further than the handshake before the end has come
		tap.mu.Lock()
	}
	first := appendMessage(nil, wire.MakeMessage("kv", 0, payload)...)
	last := appendMessage(nil, wire.MakeMessage("kv", 1, payload)...)
	_, err = c.Write(publisherReady())
	if err := errors.Join(err, subscribed(c)); err != nil {
		t.Fatal(err)
	}
	want := 1
	if waits {
		want = 2
		if _, err := c.Write(first); err != nil {
			t.Fatal(err)
		}
		<-sink.news
	}
	err = e.end(tcp, last)
	if !waits {
		tap.mu.Unlock()
	}
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		t.Fatalf("run %d: the end was not seen: %s", run, statusLine(stream.Status()))
	}
	if got := sink.count(); e.sure && got != want {
		t.Fatalf("run %d: %d batches, want %d", run, got, want)
	}
}

// subscribed reads all that a subscriber says: closing with some of it unread
// would be a reset.
func subscribed(c net.Conn) error {
	var said []byte
	for b := make([]byte, 256); len(said) <= greetingBytes || !bytes.HasSuffix(said, []byte{0, 1, 1}); {
		n, err := c.Read(b)
		if err != nil {
			return err
		}
		said = append(said, b[:n]...)
	}
	return nil
}

// A publisher that hangs up within the handshake is tried again, wherever it does.
func TestEndsInHandshake(t *testing.T) {
	says := publisherReady()
	for n := range says {
		if n > 12 && n < 60 {
			continue
		}
		if err := greeted(t, says[:n]); err == nil {
			t.Errorf("the end after %d of %d bytes: no error", n, len(says))
		}
	}
	if err := greeted(t, bytes.Clone(says)); err != nil {
		t.Errorf("the end behind the handshake: %v", err)
	}
}

// A port that somebody else has is told at once, and taken once it is free.
func TestPortTaken(t *testing.T) {
	ln, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, err := net.SplitHostPort(ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	src, err := NewZMQ(ZMQOptions{})
	if err != nil {
		t.Fatal(err)
	}
	told := make(chan string, 16)
	stream, err := Open(src, Config{Endpoint: "tcp://*:" + port}, &sums{news: make(chan struct{}, 1)}, Hooks{
		Changed: func(_, now State, why string) { told <- fmt.Sprintf("%v: %s", now, why) },
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := <-told; !contains(got, "failed: binding") || !contains(got, "in use") {
		t.Errorf("told %q, want failed and why", got)
	}
	if st := stream.Status(); st.State != StateFailed || !contains(st.LastError, "in use") {
		t.Errorf("got %s; want failed, and why", statusLine(st))
	}
	if err := ln.Close(); err != nil {
		t.Fatal(err)
	}
	if got := <-told; !contains(got, "pending: "+errNobody.Error()) {
		t.Errorf("told %q, want pending and why", got)
	}
	stream.Close()
	if err := src.Close(); err != nil {
		t.Error(err)
	}
}
