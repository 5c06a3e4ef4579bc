// SPDX-License-Identifier: Apache-2.0

package shm

import "encoding/binary"

// A record is one header line and its payload, padded to whole lines. A request or a
// reply is one record, or, where its payload is longer than [chunk], several with the
// same id, in order, other records possibly between.

// Fields of a record's header, by offset. The first five and the last are common.
const (
	recID      = 0  // u64: the client's number of the call, never 0
	recPayload = 8  // u32: bytes that follow in this record
	recIndex   = 12 // u32: of this record among the message's
	recRecords = 16 // u32: records of the message
	recPlace   = 60 // u32: see place

	// Of a request.
	recHashes   = 20 // u32: content hashes, 8 bytes each, first in the payload
	recHolders  = 24 // u32: holders to answer about, 4 bytes each, behind them
	recLimit    = 28 // u32: the deepest so many only; 0: all
	recModel    = 32 // u64: as the table numbers it
	recSeed     = 40 // u64: content seed of the hashes
	recDeadline = 48 // u64: nanoseconds of the monotonic clock
	recFlags    = 56 // u32

	// Of a reply.
	recMatches = 20 // u32: matches, 16 bytes each
	recStatus  = 24 // u32
	recVersion = 32 // u64: of the table that knows the matches' holders
)

// flagFiltered says that only the holders listed are wanted.
const flagFiltered = 1

// Sizes in bytes.
const (
	hashSize   = 8
	holderSize = 4
	matchSize  = 16
)

// header is a record's first line, copied out of the ring or to be copied in.
type header [lineSize]byte

func (h *header) u32(off int) uint32      { return binary.LittleEndian.Uint32(h[off:]) }
func (h *header) u64(off int) uint64      { return binary.LittleEndian.Uint64(h[off:]) }
func (h *header) put32(off int, v uint32) { binary.LittleEndian.PutUint32(h[off:], v) }
func (h *header) put64(off int, v uint64) { binary.LittleEndian.PutUint64(h[off:], v) }
func (h *header) records() (i, of uint32) { return h.u32(recIndex), h.u32(recRecords) }
func (h *header) piece(i, of, payload int) {
	h.put32(recIndex, uint32(i))
	h.put32(recRecords, uint32(of))
	h.put32(recPayload, uint32(payload))
}

// place is what stands in the header of a record at position pos of a ring: the
// position, mixed with what only this ring has. What was left there by another lap,
// and what was written over while it was read, says something else.
func place(mark uint32, pos uint64) uint32 { return uint32(pos/lineSize) ^ mark }

// records returns how many records a message of so many bytes takes, at least one.
func records(payload, most int) int {
	if payload <= most {
		return 1
	}
	return (payload + most - 1) / most
}

// Status says what became of a request.
type Status uint32

// The statuses.
const (
	StatusOK Status = iota
	// StatusModel: the server has no such model any more; the version says since when.
	StatusModel
	// StatusLate: the deadline had passed when it was read.
	StatusLate
	// StatusInvalid: the request contradicts itself.
	StatusInvalid
	numStatuses
)

// DegradedBit is set in a match's Any where the holder's answer is not exact now.
const DegradedBit = 1 << 31
