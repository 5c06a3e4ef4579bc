// SPDX-License-Identifier: Apache-2.0

//go:build linux

package shm

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kindex/internal/kv"
)

// hostile is a client that may do anything to the memory it was given.
type hostile struct {
	conn *net.UnixConn
	file *os.File
	mem  *memory
	l    Layout
	mark uint32
}

func newHostile(t testing.TB, path string) *hostile {
	t.Helper()
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	h := &hostile{conn: conn}
	t.Cleanup(h.close)
	b := make([]byte, frameHeader+helloSize)
	_, h.file, err = receiveFile(conn, b)
	if err != nil {
		t.Fatal(err)
	}
	var said hello
	if err := said.parse(b[frameHeader:]); err != nil {
		t.Fatalf("%v: %q", err, b)
	}
	h.l, h.mark = said.layout, uint32(said.generation)
	if h.mem, err = openMemory(h.file, h.l); err != nil {
		t.Fatal(err)
	}
	return h
}

func (h *hostile) close() {
	_ = h.conn.Close()
	if h.file != nil {
		_ = h.file.Close()
	}
	_ = h.mem.close()
	h.file = nil
}

// gone reports whether the server ends the connection within d.
func (h *hostile) gone(d time.Duration) bool {
	_ = h.conn.SetReadDeadline(time.Now().Add(d))
	_, err := io.Copy(io.Discard, h.conn)
	return !errors.Is(err, os.ErrDeadlineExceeded)
}

// request is a record as an honest client writes it, at the ring's begin.
func (h *hostile) request(shard int, hashes int, change func(*header)) {
	requests, _ := h.mem.rings(h.l, shard)
	at := int(h.mem.words(h.l, shard).requestHead.Load()) & (len(requests) - 1) &^ 63
	var rec header
	rec.put64(recID, 77)
	rec.piece(0, 1, hashes*hashSize)
	rec.put32(recHashes, uint32(hashes))
	rec.put64(recDeadline, in(time.Hour))
	rec.put32(recPlace, place(h.mark, 0))
	if change != nil {
		change(&rec)
	}
	copy(requests[at:], rec[:recPlace])
	wordOf(requests, at+recPlace).Store(rec.u32(recPlace))
	w := h.mem.words(h.l, shard)
	w.serverBell.Add(1)
	wake(w.serverBell)
}

// TestHostileFields: each field of a record and each word that a client can get wrong
// ends that client, and nobody else.
func TestHostileFields(t *testing.T) {
	s := startServer(t, nil)
	honest := dial(t, s.path, ClientOptions{})
	call, r := NewCall(), rand.New(rand.NewPCG(5, 6))
	wrong := func(name string, spoil func(*hostile)) {
		t.Helper()
		h := newHostile(t, s.path)
		spoil(h)
		if !h.gone(10 * time.Second) {
			t.Errorf("%s: the server did not mind", name)
		}
		h.close()
		if err := try(honest, call, r, 2); err != nil {
			t.Fatalf("%s: another client: %v", name, err)
		}
	}
	field := func(name string, hashes int, change func(*header)) {
		t.Helper()
		wrong(name, func(h *hostile) { h.request(1, hashes, change) })
	}
	field("id 0", 4, func(h *header) { h.put64(recID, 0) })
	field("payload past a record's most", 4, func(h *header) { h.put32(recPayload, 16<<10) })
	field("payload huge", 4, func(h *header) { h.put32(recPayload, 1<<32-1) })
	field("payload not the hashes", 4, func(h *header) { h.put32(recPayload, 24) })
	field("hashes more than there are", 4, func(h *header) { h.put32(recHashes, 5) })
	field("hashes huge", 4, func(h *header) { h.put32(recHashes, 1<<32-1) })
	field("hashes times 8 wrap", 0, func(h *header) { h.put32(recHashes, 1<<29) })
	field("holders not filtered", 4, func(h *header) { h.put32(recHashes, 3); h.put32(recHolders, 2) })
	field("holders huge", 4, func(h *header) { h.put32(recFlags, flagFiltered); h.put32(recHolders, 1<<30) })
	field("no records", 4, func(h *header) { h.put32(recRecords, 0) })
	field("more records than needed", 4, func(h *header) { h.put32(recRecords, 2) })
	field("index past the records", 4, func(h *header) { h.put32(recIndex, 1) })
	field("a later piece without the first", 2040, func(h *header) {
		h.put32(recHashes, 4000)
		h.put32(recRecords, 2)
		h.put32(recIndex, 1)
	})
	for name, head := range map[string]uint64{"past the tail": 1 << 20, "within a line": 12} {
		wrong("reply head "+name, func(h *hostile) {
			w := h.mem.words(h.l, 0)
			w.replyHead.Store(head)
			// Only a reply without room looks at the head.
			h.flood(0)
		})
	}
	wrong("frame of a server", func(h *hostile) { _, _ = h.conn.Write(frame(frameTable, nil)) })
	wrong("frame too long", func(h *hostile) { _, _ = h.conn.Write(append(binary.LittleEndian.AppendUint32(nil, 1<<31), frameAsk)) })
	for i := 0; s.Clients.Load() != 1; i++ {
		if time.Sleep(10 * time.Millisecond); i == 1000 {
			t.Fatalf("%d clients, want the honest one", s.Clients.Load())
		}
	}
}

// flood sends requests with long answers and takes none.
func (h *hostile) flood(shard int) {
	requests, _ := h.mem.rings(h.l, shard)
	w := h.mem.words(h.l, shard)
	pos := uint64(0)
	for range 40 {
		var rec header
		rec.put64(recID, 77+pos)
		rec.piece(0, 1, hashSize)
		rec.put32(recHashes, 1)
		rec.put64(recDeadline, in(time.Hour))
		at := int(pos) % len(requests)
		copy(requests[at:], rec[:])
		binary.LittleEndian.PutUint64(requests[at+lineSize:], 2999)
		wordOf(requests, at+recPlace).Store(place(h.mark, pos))
		pos += align(lineSize + hashSize)
		w.serverBell.Add(1)
		wake(w.serverBell)
	}
}

// TestHostileSeals: the memory cannot be shrunk, grown or unsealed, and a hole that a
// client tears into it takes nobody down.
func TestHostileSeals(t *testing.T) {
	s := startServer(t, nil)
	h := newHostile(t, s.path)
	fd := int(h.file.Fd())
	if err := unix.Ftruncate(fd, 0); !errors.Is(err, unix.EPERM) {
		t.Errorf("shrinking: %v, want EPERM", err)
	}
	if err := unix.Ftruncate(fd, int64(2*h.l.Size())); !errors.Is(err, unix.EPERM) {
		t.Errorf("growing: %v, want EPERM", err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_WRITE); !errors.Is(err, unix.EPERM) {
		t.Errorf("sealing: %v, want EPERM", err)
	}
	if err := unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, int64(h.l.Size())); err != nil {
		t.Errorf("a hole: %v", err)
	}
	h.flood(1)
	honest := dial(t, s.path, ClientOptions{})
	call, r := NewCall(), rand.New(rand.NewPCG(7, 8))
	for range 50 {
		if err := try(honest, call, r, 2); err != nil {
			t.Fatal(err)
		}
	}
}

// TestHostileScribble: a client that writes anything anywhere in its memory, while the
// server reads there, takes nobody down and holds nobody up; nor does one that floods
// and takes no answer, nor one that hammers on the word the server sleeps on.
func TestHostileScribble(t *testing.T) {
	s := startServer(t, nil)
	var stop atomic.Bool
	var bad sync.WaitGroup
	for k := range 2 {
		bad.Go(func() {
			r := rand.New(rand.NewPCG(9, uint64(k)))
			for !stop.Load() {
				h := newHostile(t, s.path)
				for range 2000 {
					scribble(h, r)
				}
				h.close()
			}
		})
	}
	flooding := newHostile(t, s.path)
	flooding.flood(0)
	flooding.flood(1)
	bad.Go(func() {
		w := flooding.mem.words(flooding.l, 0)
		for i := 0; !stop.Load(); i++ {
			w.serverBell.Add(1)
			wake(w.serverBell)
			if i%64 == 0 {
				time.Sleep(time.Millisecond)
			}
		}
	})
	honest := dial(t, s.path, ClientOptions{})
	var good sync.WaitGroup
	for k := range 2 {
		good.Go(func() {
			r := rand.New(rand.NewPCG(10, uint64(k)))
			call := NewCall()
			for range 400 {
				if err := try(honest, call, r, 2); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	good.Wait()
	stop.Store(true)
	bad.Wait()
	if s.Dropped.Load() == 0 {
		t.Error("no scribbler was dropped")
	}
	t.Logf("%d scribblers dropped, %d requests answered", s.Dropped.Load(), s.Requests.Load())
}

// scribble does one thing wrong, or right, or wrong while the server looks.
func scribble(h *hostile, r *rand.Rand) {
	i := r.IntN(h.l.Shards)
	w := h.mem.words(h.l, i)
	switch r.IntN(10) {
	case 0: // anything anywhere
		at := r.IntN(len(h.mem.bytes)/8) * 8
		h.mem.word64(at).Store(r.Uint64() >> r.IntN(64))
	case 1:
		requests, _ := h.mem.rings(h.l, i) // something is there, whatever it is
		pos := w.requestHead.Load()
		wordOf(requests, int(pos)&(len(requests)-1)&^63+recPlace).Store(place(h.mark, pos))
	case 2:
		w.replyHead.Store(uint64(r.IntN(2*h.l.Replies)) &^ uint64(r.IntN(2)*63))
	case 3:
		w.serverSleeps.Store(r.Uint32N(3))
		w.requestHead.Store(r.Uint64())
	default: // nearly right, changed while it is read
		h.request(i, r.IntN(64), func(rec *header) {
			if r.IntN(2) == 0 {
				rec.put32(4*r.IntN(16), r.Uint32()>>r.IntN(32))
			}
			rec.put32(recPlace, place(h.mark, w.requestHead.Load()))
		})
		requests, _ := h.mem.rings(h.l, i)
		for range 8 {
			requests[r.IntN(4096)] = byte(r.Uint32())
		}
	}
	w.serverBell.Add(1)
	wake(w.serverBell)
}

// TestFlood: one that floods costs another little: they are asked in turn.
func TestFlood(t *testing.T) {
	s := startServer(t, nil)
	flooder, honest := dial(t, s.path, ClientOptions{}), dial(t, s.path, ClientOptions{})
	var stop atomic.Bool
	var all sync.WaitGroup
	var flooded atomic.Uint64
	for k := range 8 {
		all.Go(func() {
			r := rand.New(rand.NewPCG(11, uint64(k)))
			call := NewCall()
			for !stop.Load() {
				if err := try(flooder, call, r, 2); err != nil {
					t.Error(err)
					return
				}
				flooded.Add(1)
			}
		})
	}
	r, call := rand.New(rand.NewPCG(12, 0)), NewCall()
	for range 200 {
		if err := try(honest, call, r, 2); err != nil {
			t.Fatal(err)
		}
	}
	stop.Store(true)
	all.Wait()
	t.Logf("200 calls beside %d", flooded.Load())
}

// TestTurns: one batch has as many requests of each client as of the others, as long
// as they have some.
func TestTurns(t *testing.T) {
	l := Layout{Shards: 1, Requests: 64 << 10, Replies: 64 << 10}
	th := &thread{opts: &ServerOptions{Layout: l}, count: &Counters{}}
	conn := &net.UnixConn{}
	var mems []*memory
	for range 3 {
		m, f, err := newMemory(l, nil)
		if err != nil {
			t.Fatal(err)
		}
		_ = f.Close()
		mems = append(mems, m)
		th.clients = append(th.clients, newEnds(&peer{conn: conn}, m, l, 0, 1))
	}
	defer func() {
		for _, m := range mems {
			_ = m.close()
		}
	}()
	for k, m := range mems {
		h := &hostile{mem: m, l: l}
		n := []int{200, 20, 1}[k] // requests of each client
		pos := uint64(0)
		requests, _ := h.mem.rings(l, 0)
		for range n {
			var rec header
			rec.put64(recID, 1)
			rec.piece(0, 1, 0)
			rec.put32(recPlace, place(1, pos))
			copy(requests[pos:], rec[:])
			pos += lineSize
		}
	}
	n, _ := th.gather()
	got := map[*ends]int{}
	for i := range n {
		got[th.reqs[i].client]++
	}
	if n != batchMax || got[th.clients[2]] != 1 || got[th.clients[1]] < 15 || got[th.clients[0]] > 16 {
		t.Errorf("of 200, 20 and 1 requests a batch of %d has %d, %d and %d", n, got[th.clients[0]], got[th.clients[1]], got[th.clients[2]])
	}
}

// FuzzRequests: whatever is in a ring, what comes out of it is a request whose parts
// lie within what was written, or the client's end.
func FuzzRequests(f *testing.F) {
	l := Layout{Shards: 1, Requests: MinRing, Replies: MinRing}
	f.Add(make([]byte, 200))
	var rec header
	rec.put64(recID, 1)
	rec.piece(0, 1, 16)
	rec.put32(recHashes, 2)
	f.Add(append(rec[:], make([]byte, 64)...))
	rec.piece(0, 2, 960)
	rec.put32(recHashes, 121)
	f.Add(append(rec[:], make([]byte, 960)...))
	m, file, err := newMemory(l, nil)
	if err != nil {
		f.Fatal(err)
	}
	_ = file.Close()
	f.Fuzz(func(t *testing.T, data []byte) {
		clear(m.bytes)
		requests, _ := m.rings(l, 0)
		copy(requests, data)
		p := &peer{conn: &net.UnixConn{}, bell: m.word32(offClientBell), sleeps: m.word32(offClientSleeps)}
		e := newEnds(p, m, l, 0, 1)
		th := &thread{opts: &ServerOptions{Layout: l}, count: &Counters{}, clients: []*ends{e}}
		for range 100 {
			e.in.place(e.in.pos).Store(place(1, e.in.pos)) // all that lies there is announced
			n, worked := th.gather()
			for i := range n {
				r := &th.reqs[i]
				if r.hashes.from > r.hashes.to || r.hashes.to > len(th.hashes) || r.only.from > r.only.to || r.only.to > len(th.holders) || r.id == 0 {
					t.Fatalf("a request of %d..%d hashes of %d", r.hashes.from, r.hashes.to, len(th.hashes))
				}
				if !r.Filtered && r.only.to > r.only.from {
					t.Fatal("holders of a request that is not filtered")
				}
			}
			if !worked {
				break
			}
		}
	})
}

// FuzzReplies: whatever a server writes, a client's call ends with an answer or an
// error.
func FuzzReplies(f *testing.F) {
	f.Add([]byte{1, 2, 3}, uint32(1), uint32(1))
	l := Layout{Shards: 1, Requests: MinRing, Replies: MinRing}
	m, file, err := newMemory(l, nil)
	if err != nil {
		f.Fatal(err)
	}
	_ = file.Close()
	f.Fuzz(func(t *testing.T, data []byte, index, matches uint32) {
		clear(m.bytes)
		w := m.words(l, 0)
		_, replies := m.rings(l, 0)
		c := &Client{layout: l, mem: m, most: chunk(MinRing), mostIn: chunk(MinRing), gone: make(chan struct{}), users: 1, free: []uint16{0}}
		c.bell, c.sleeps, c.conn = m.word32(offClientBell), m.word32(offClientSleeps), &net.UnixConn{}
		c.shards = []clientShard{{words: w, in: ring{data: replies, head: w.replyHead, mark: 1}, out: ring{data: replies, head: w.requestHead, mark: 1}}}
		call := NewCall()
		call.deadline = in(time.Hour)
		c.begin(call, 1)
		var rec header
		copy(rec[:], data)
		rec.put64(recID, call.id)
		rec.put32(recIndex, index)
		rec.put32(recMatches, matches)
		rec.put32(recPlace, place(1, 0))
		copy(replies, rec[:])
		copy(replies[lineSize:], data)
		c.mu.Lock()
		c.consume()
		c.mu.Unlock()
		if call.done.Load() && call.err == nil && len(call.Matches) != int(matches) {
			t.Fatalf("%d matches of %d", len(call.Matches), matches)
		}
	})
}

// TestTable: a table and its changes come through, and nothing cut or flipped is
// taken for one.
func TestTable(t *testing.T) {
	one := &Table{Version: 3, Models: []Model{{1, "t", "m", "g", 16}, {2, "t", "n", "g", 64}}, Holders: []Holder{{7, 0, 1, 9, "a", false}, {8, 1, 1, 9, "a", false}}}
	two := &Table{Version: 4, Models: []Model{{2, "t", "n", "g", 64}, {5, "", "x", "", 1}}, Holders: []Holder{{8, 1, 1, 9, "a", false}, {9, -1, 5, 10, "12", true}}}
	b := two.delta(nil, one)
	c, err := parseChange(b)
	if err != nil {
		t.Fatal(err)
	}
	if c.Version != 4 || c.Whole || len(c.GoneModels) != 1 || c.GoneModels[0] != 1 || len(c.Models) != 1 || c.Models[0] != two.Models[1] ||
		len(c.GoneHolders) != 1 || c.GoneHolders[0] != 7 || len(c.Holders) != 1 || c.Holders[0] != two.Holders[1] {
		t.Errorf("got %+v", c)
	}
	for n := range b {
		if _, err := parseChange(b[:n]); err == nil {
			t.Errorf("cut at %d it is read", n)
		}
	}
	if c, err := parseChange(one.delta(nil, nil)); err != nil || !c.Whole || len(c.Models) != 2 || len(c.Holders) != 2 {
		t.Errorf("whole: %+v, %v", c, err)
	}
	r := rand.New(rand.NewPCG(13, 14))
	for range 5000 {
		bad := append([]byte(nil), b...)
		for range 1 + r.IntN(4) {
			bad[r.IntN(len(bad))] = byte(r.Uint32())
		}
		_, _ = parseChange(bad) // or an error: no crash, no memory for what is not there
	}
}

// TestDeadline: a request whose time is over is not walked, and its caller is told.
func TestDeadline(t *testing.T) {
	s := startServer(t, nil)
	c := dial(t, s.path, ClientOptions{})
	call := NewCall()
	call.Hashes = make([]kv.ContentHash, 8)
	if err := c.Do(context.Background(), Now()-1, call); !errors.Is(err, ErrLate) && (err != nil || call.Status != StatusLate) {
		t.Errorf("got %v, status %d", err, call.Status)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := c.Do(ctx, in(time.Second), call); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: got %v", err)
	}
	if err := c.Do(context.Background(), in(time.Second), call); err != nil || call.Status != StatusOK {
		t.Errorf("after that: got %v, status %d", err, call.Status)
	}
}
