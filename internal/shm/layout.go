// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"
)

// layoutVersion is counted up whenever a word of the memory or a frame of the
// socket changes its meaning. Both sides must have the same.
const layoutVersion = 1

// magic is "KDXSHM01" in memory.
const magic = 0x31304d4853584b44

// Sizes in bytes. A line is what processors move between cores, a page what lies on
// one node.
const (
	lineSize = 64
	pageSize = 4096

	headerSize = pageSize // of the memory
	ringHeader = pageSize // of one shard's part of it
)

// Words of the header page, by offset. Each line has one writer.
const (
	// Line 0, the server's, written before the memory is handed out.
	offMagic      = 0
	offLayout     = 8
	offShards     = 12
	offGeneration = 16
	offRequests   = 24 // bytes of a request ring
	offReplies    = 28
	// Line 1, the server's: the word that the client sleeps on, counted up when there
	// is a reply for one that sleeps.
	offClientBell = 1 * lineSize
	// Line 2: 1 while the client sleeps or is about to. The client sets it, the server
	// takes it back with the bell.
	offClientSleeps = 2 * lineSize
	// Line 3, the client's: counted up while it lives.
	offClientBeat = 3 * lineSize
)

// Words of a shard's header page, by offset from its begin. Positions are bytes since
// the ring's begin, never taken back.
const (
	offRequestHead = 0 * lineSize // the server's: what it has copied out
	offReplyHead   = 1 * lineSize // the client's
	// 1 while this shard's thread sleeps or is about to. The server sets it, the client
	// takes it back with the bell.
	offServerSleeps = 2 * lineSize
	// The server's: 1 while it sleeps, or is about to, with replies that had no room.
	offServerStuck = 2*lineSize + 8
	// The client's: the word that the thread sleeps on, counted up by a client that saw
	// one of the former.
	offServerBell = 3 * lineSize
	// The server's: counted up while the thread lives.
	offServerBeat = 4 * lineSize
)

// Bounds of what can be configured, in bytes.
const (
	MinRing = 4 << 10
	MaxRing = 16 << 20
)

// Bounds of a request.
const (
	// MaxBlocks is the longest chain that is asked about: 2 M tokens in blocks of 16.
	MaxBlocks = 1 << 17
	// MaxHolders bounds a request's filter.
	MaxHolders = 1 << 17
)

// Layout is the shape of one client's memory.
type Layout struct {
	Shards   int
	Requests int // bytes of each request ring: a power of two, whole pages
	Replies  int // bytes of each reply ring, the same
}

// Check returns what is wrong with l.
func (l Layout) Check() error {
	if l.Shards < 1 || l.Shards > 1<<10 {
		return fmt.Errorf("shm: %d shards: there are 1 to 1024", l.Shards)
	}
	for _, n := range [...]int{l.Requests, l.Replies} {
		if n < MinRing || n > MaxRing || n&(n-1) != 0 {
			return fmt.Errorf("shm: a ring of %d bytes: must be a power of two from %d to %d", n, MinRing, MaxRing)
		}
	}
	return nil
}

// Size returns the bytes of the whole memory.
func (l Layout) Size() int { return headerSize + l.Shards*l.stride() }

// stride is one shard's part: its header page and both rings.
func (l Layout) stride() int { return ringHeader + l.Requests + l.Replies }

// shard returns where the part of shard i begins.
func (l Layout) shard(i int) int { return headerSize + i*l.stride() }

// chunk is the most payload of one record of a ring of so many bytes: a quarter, so
// that what is short finds its way in between the pieces of what is long.
func chunk(ring int) int { return ring/4 - lineSize }

// words are the words of one shard's part.
type words struct {
	requestHead, replyHead   *atomic.Uint64
	serverSleeps, serverBell *atomic.Uint32
	serverStuck              *atomic.Uint32
	serverBeat               *atomic.Uint64
}

// words returns those of shard i.
func (m *memory) words(l Layout, i int) words {
	at := l.shard(i)
	return words{
		requestHead: m.word64(at + offRequestHead), replyHead: m.word64(at + offReplyHead),
		serverSleeps: m.word32(at + offServerSleeps), serverBell: m.word32(at + offServerBell),
		serverStuck: m.word32(at + offServerStuck),
		serverBeat:  m.word64(at + offServerBeat),
	}
}

// rings returns the bytes of shard i's rings.
func (m *memory) rings(l Layout, i int) (requests, replies []byte) {
	at := l.shard(i) + ringHeader
	return m.bytes[at : at+l.Requests : at+l.Requests], m.bytes[at+l.Requests : at+l.Requests+l.Replies : at+l.Requests+l.Replies]
}

// writeHeader describes fresh memory.
func (m *memory) writeHeader(l Layout, generation uint64) {
	le := binary.LittleEndian
	le.PutUint32(m.bytes[offLayout:], layoutVersion)
	le.PutUint32(m.bytes[offShards:], uint32(l.Shards))
	le.PutUint64(m.bytes[offGeneration:], generation)
	le.PutUint32(m.bytes[offRequests:], uint32(l.Requests))
	le.PutUint32(m.bytes[offReplies:], uint32(l.Replies))
	m.word64(offMagic).Store(magic)
}

// checkHeader holds memory that was handed in against what the socket said of it.
func (m *memory) checkHeader(l Layout, generation uint64) error {
	le := binary.LittleEndian
	switch {
	case len(m.bytes) != l.Size():
		return fmt.Errorf("shm: the server's memory has %d bytes, %d were announced", len(m.bytes), l.Size())
	case m.word64(offMagic).Load() != magic:
		return fmt.Errorf("shm: the server's memory begins with %#x", m.word64(offMagic).Load())
	case le.Uint32(m.bytes[offLayout:]) != layoutVersion, le.Uint32(m.bytes[offShards:]) != uint32(l.Shards),
		le.Uint32(m.bytes[offRequests:]) != uint32(l.Requests), le.Uint32(m.bytes[offReplies:]) != uint32(l.Replies):
		return fmt.Errorf("shm: the server's memory is of another shape than it announced")
	case le.Uint64(m.bytes[offGeneration:]) != generation:
		return fmt.Errorf("shm: the server's memory is of another generation than its socket")
	}
	return nil
}
