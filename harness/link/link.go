// SPDX-License-Identifier: Apache-2.0

package link

import (
	"fmt"
	"net"
	"sync"
)

// pieceBytes is what one direction of a connection takes up at a time.
const pieceBytes = 64 << 10

// Link is one proxy.
//
// Concurrency: any goroutine.
type Link struct {
	to    string
	addr  string
	ended chan struct{}
	all   sync.WaitGroup

	mu     sync.Mutex
	accept net.Listener  // nil while connections are refused
	open   chan struct{} // closed while the link is whole
	cut    bool
	conns  map[net.Conn]struct{}
	passed uint64
}

// Open listens on a free port of the loopback for connections to be passed on to the
// address to, which need not listen yet.
func Open(to string) (*Link, error) { return OpenAt("127.0.0.1:0", to) }

// OpenAt is [Open] at an address of the caller's choice.
func OpenAt(addr, to string) (*Link, error) {
	l := &Link{to: to, addr: addr, ended: make(chan struct{}), open: make(chan struct{}), conns: map[net.Conn]struct{}{}}
	close(l.open)
	if err := l.Accept(); err != nil {
		return nil, err
	}
	return l, nil
}

// Addr is where the link listens, host:port.
func (l *Link) Addr() string { return l.addr }

// Refuse ends every connection and has new ones refused, as an address does where nobody
// listens.
func (l *Link) Refuse() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.accept == nil {
		return nil
	}
	err := l.accept.Close()
	l.accept = nil
	for c := range l.conns {
		_ = c.Close()
	}
	return err
}

// Accept takes connections again.
func (l *Link) Accept() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.accept != nil {
		return nil
	}
	listener, err := net.Listen("tcp", l.addr)
	if err != nil {
		return fmt.Errorf("link: %w", err)
	}
	l.addr, l.accept = listener.Addr().String(), listener
	l.all.Go(func() { l.serve(listener) })
	return nil
}

// Cut lets nothing through from now on.
func (l *Link) Cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.cut {
		l.cut, l.open = true, make(chan struct{})
	}
}

// Heal lets everything through again.
func (l *Link) Heal() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut {
		l.cut = false
		close(l.open)
	}
}

// Passed returns the bytes that went through, in both directions.
func (l *Link) Passed() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.passed
}

// Close ends the link and every connection.
func (l *Link) Close() error {
	close(l.ended)
	err := l.Refuse()
	l.all.Wait()
	return err
}

// pass waits until the link is whole, and reports whether it goes on at all.
func (l *Link) pass(n int) bool {
	for {
		l.mu.Lock()
		open, cut := l.open, l.cut
		if !cut {
			l.passed += uint64(n)
		}
		l.mu.Unlock()
		if !cut {
			return true
		}
		select {
		case <-open:
		case <-l.ended:
			return false
		}
	}
}

func (l *Link) serve(listener net.Listener) {
	for {
		from, err := listener.Accept()
		if err != nil {
			return
		}
		if !l.keep(from) {
			return
		}
		l.all.Go(func() { l.join(from) })
	}
}

// keep notes a connection, to be closed with the link; false where that has ended or
// refuses connections by now.
func (l *Link) keep(c net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.accept == nil {
		_ = c.Close()
		return false
	}
	l.conns[c] = struct{}{}
	return true
}

func (l *Link) drop(c net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.conns, c)
	_ = c.Close()
}

// join passes both directions of one connection on.
func (l *Link) join(from net.Conn) {
	defer l.drop(from)
	if !l.pass(0) {
		return
	}
	to, err := net.Dial("tcp", l.to)
	if err != nil || !l.keep(to) {
		return // closed, which is what the other end would have done
	}
	defer l.drop(to)
	var both sync.WaitGroup
	both.Go(func() { l.copy(to, from) })
	both.Go(func() { l.copy(from, to) })
	both.Wait()
}

// copy passes one direction on until either end is gone; then both are.
func (l *Link) copy(dst, src net.Conn) {
	defer func() { _, _ = dst.Close(), src.Close() }()
	b := make([]byte, pieceBytes)
	for {
		n, err := src.Read(b)
		if !l.pass(n) {
			return
		}
		if n > 0 {
			if _, werr := dst.Write(b[:n]); werr != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}
