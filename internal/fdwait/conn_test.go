// SPDX-License-Identifier: Apache-2.0

package fdwait

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// pair returns both ends of a TCP connection, the first by a [Listener].
func pair(t *testing.T) (quiet, plain net.Conn) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	plain, err = net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if quiet, err = (Listener{ln}).Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { quiet.Close(); plain.Close() })
	return quiet, plain
}

// What goes in comes out, both ways at once, in pieces that fill the socket's
// buffers.
func TestConnCarries(t *testing.T) {
	quiet, plain := pair(t)
	if _, ok := quiet.(*conn); !ok {
		t.Fatalf("accepted a %T", quiet)
	}
	data := make([]byte, 8<<20)
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range data {
		data[i] = byte(rng.Uint32())
	}
	var wg sync.WaitGroup
	for _, way := range []struct{ from, to net.Conn }{{quiet, plain}, {plain, quiet}} {
		wg.Go(func() {
			for rest := data; len(rest) > 0; {
				n, err := way.from.Write(rest[:min(len(rest), 1<<20)])
				if err != nil {
					t.Error(err)
					return
				}
				rest = rest[n:]
			}
		})
		wg.Go(func() {
			got := make([]byte, len(data))
			if _, err := io.ReadFull(way.to, got); err != nil {
				t.Error(err)
			} else if !bytes.Equal(got, data) {
				t.Error("other bytes came than were written")
			}
		})
	}
	wg.Wait()
}

// The ends of a connection show as those of any other.
func TestConnEnds(t *testing.T) {
	quiet, plain := pair(t)
	b := make([]byte, 10)
	if err := quiet.SetReadDeadline(time.Now().Add(time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if _, err := quiet.Read(b); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("past the deadline: %v", err)
	}
	if err := quiet.SetReadDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	read := make(chan error, 1)
	go func() {
		_, err := quiet.Read(b)
		read <- err
	}()
	plain.Close()
	if err := <-read; !errors.Is(err, io.EOF) {
		t.Errorf("the other end is closed: %v, want EOF", err)
	}
	var err error
	for i := 0; err == nil && i < 1000; i++ {
		_, err = quiet.Write(b)
	}
	if op, ok := errors.AsType[*net.OpError](err); !ok || op.Op != "write" {
		t.Errorf("writing to a closed connection: %v", err)
	}
	quiet.Close()
	if _, err := quiet.Read(b); !errors.Is(err, net.ErrClosed) {
		t.Errorf("reading after Close: %v", err)
	}
	if _, err := quiet.Write(b); !errors.Is(err, net.ErrClosed) {
		t.Errorf("writing after Close: %v", err)
	}
}

// A reader that waits ends with its connection.
func TestConnCloseWakes(t *testing.T) {
	quiet, _ := pair(t)
	read := make(chan error, 1)
	go func() {
		_, err := quiet.Read(make([]byte, 1))
		read <- err
	}()
	time.Sleep(time.Millisecond)
	quiet.Close()
	select {
	case err := <-read:
		if !errors.Is(err, net.ErrClosed) {
			t.Errorf("got %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("still reading")
	}
}

// Data and the end that come at once are both read, whether the reader waits
// already or not.
func TestConnEndsWithData(t *testing.T) {
	for i := range 200 {
		quiet, plain := pair(t)
		read := make(chan error, 1)
		follow := func() {
			got, err := io.ReadAll(quiet)
			if err == nil && string(got) != "the last" {
				err = fmt.Errorf("read %q", got)
			}
			read <- err
		}
		if i%2 == 0 {
			go follow()
		}
		raw, err := plain.(*net.TCPConn).SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		var set error
		err = raw.Control(func(fd uintptr) { set = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_CORK, 1) })
		_, written := io.WriteString(plain, "the last")
		if err := errors.Join(err, set, written, plain.Close()); err != nil {
			t.Fatal(err)
		}
		if i%2 == 1 {
			go follow()
		}
		select {
		case err := <-read:
			if err != nil {
				t.Fatalf("run %d: %v", i, err)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("run %d: the end was not seen", i)
		}
	}
}
