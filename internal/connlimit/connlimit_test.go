// SPDX-License-Identifier: Apache-2.0

package connlimit

import (
	"io"
	"net"
	"sync/atomic"
	"testing"
)

// TestLimit: one connection too many is closed and counted; a closed one, closed
// twice, makes room for one.
func TestLimit(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var refused atomic.Uint64
	ln := New(inner, 2, &refused)
	defer ln.Close()
	accepted := make(chan net.Conn, 8)
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			accepted <- c
		}
	}()
	dial := func() net.Conn {
		t.Helper()
		c, err := net.Dial("tcp", inner.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	dial()
	dial()
	first := <-accepted
	<-accepted
	if n, err := dial().Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("the third: read %d, %v, want the end", n, err)
	}
	if got := refused.Load(); got != 1 {
		t.Errorf("%d refused, want 1", got)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	_ = first.Close() // again: makes no more room
	dial()
	<-accepted
	if n, err := dial().Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("with two open again: read %d, %v, want the end", n, err)
	}
	if got := refused.Load(); got != 2 {
		t.Errorf("%d refused, want 2", got)
	}
}
