// SPDX-License-Identifier: Apache-2.0

package lookup

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

// Bounds of an explanation. Chosen, not measured.
const (
	MaxExplainBlocks  = 1 << 16 // of the prompt
	MaxExplainHolders = 1 << 12
	MaxExplainRuns    = 1 << 10 // of one holder
)

// Reasons why a holder's match ends where it does. Programs compare them; [Explained]
// has a line for people beside each.
const (
	ReasonComplete = "complete"         // the prompt's whole blocks end there
	ReasonTail     = "tail"             // what is left of the prompt fills no block
	ReasonAbsent   = "not_stored"       // never stored, or evicted
	ReasonHole     = "hole"             // the same, and blocks further down are held
	ReasonWaiting  = "orphan_waiting"   // it was stored and waits for its parent
	ReasonSize     = "other_block_size" // the engine's blocks have another size
	ReasonPending  = "stream_pending"   // the stream was not connected yet
	ReasonDegraded = "stream_degraded"  // something may be missing
	ReasonFailed   = "stream_failed"    // no connection for a long time
	reasonOf       = "stream_"          // followed by a stream's status
	statusActive   = "active"           // of a stream
	statusPending  = "pending"          // of a stream
)

// Explanation says who holds what of one prompt, and why each match ends where it
// does. Its JSON is POST /explain's answer.
type Explanation struct {
	Model     string      `json:"model_name"`
	Group     string      `json:"routing_group"`
	Tenant    string      `json:"tenant_id"`
	BlockSize int         `json:"block_size"`  // tokens
	Blocks    int         `json:"blocks"`      // the prompt's whole ones
	Tail      int         `json:"tail_tokens"` // after them
	Holders   []Explained `json:"holders"`     // the deepest first; then those that hold nothing
	More      int         `json:"more_holders,omitempty"`
}

// Explained is what one rank of one instance holds of a prompt.
type Explained struct {
	Instance ExplainedID `json:"instance_id"`
	Rank     int         `json:"dp_rank"`

	Status    string  `json:"status"` // of its stream
	LastError string  `json:"last_error,omitempty"`
	Epoch     uint64  `json:"epoch"`
	LastSeq   *uint64 `json:"last_seq"` // null: no batch yet

	// Blocks from the prompt's beginning.
	Device uint32 `json:"device"`
	Host   uint32 `json:"host"` // there or on the device
	Any    uint32 `json:"any"`  // in any local tier

	Orphans  uint64 `json:"orphans"` // blocks of the stream that wait, of any prompt
	Runs     []Run  `json:"runs"`    // all blocks of the prompt, in order
	MoreRuns int    `json:"more_runs,omitempty"`

	Reasons []string `json:"reasons"` // why the match ends at block Any
	Why     []string `json:"why"`     // a line each

	Below uint32  `json:"below"` // blocks held further down
	Next  *uint32 `json:"next"`  // the first of them; null: none
}

// Run is a stretch of a prompt's blocks that a holder has in the same way.
type Run struct {
	First   uint32   `json:"first"`
	Blocks  uint32   `json:"blocks"`
	Tiers   []string `json:"tiers"` // device, host, disk; empty: nowhere
	Waiting bool     `json:"waiting,omitempty"`
}

// ExplainedID is an instance id as JSON has it: a number or a string.
type ExplainedID struct {
	Text   string
	Number bool
}

// MarshalJSON implements json.Marshaler.
func (i ExplainedID) MarshalJSON() ([]byte, error) {
	if i.Number {
		return []byte(i.Text), nil
	}
	return json.Marshal(i.Text)
}

// UnmarshalJSON implements json.Unmarshaler.
func (i *ExplainedID) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] != '"' {
		if _, err := strconv.ParseInt(string(b), 10, 64); err != nil {
			return fmt.Errorf("instance id %s: must be an integer or a string", b)
		}
		*i = ExplainedID{string(b), true}
		return nil
	}
	*i = ExplainedID{}
	return json.Unmarshal(b, &i.Text)
}

// BlockBits are how a holder has one block: a bit for each of Tiers, and
// BlockWaiting.
type BlockBits uint8

// Tiers are the names of the tiers, in the order of their bits.
var Tiers = [...]string{"device", "host", "disk"}

// Bits of a block.
const (
	BlockDevice BlockBits = 1 << iota
	BlockHost
	BlockDisk
	BlockWaiting

	blockHeld = BlockDevice | BlockHost | BlockDisk
)

// Fill makes d's depths, runs and reasons of how its holder has the prompt's blocks,
// tail tokens of which follow the last. d's stream is described already. mismatched
// are events of the stream left out for want of the block size.
func (d *Explained) Fill(blocks []BlockBits, tail, blockSize int, mismatched uint64) {
	d.Device = leading(blocks, BlockDevice)
	d.Host = leading(blocks, BlockDevice|BlockHost)
	d.Any = leading(blocks, blockHeld)
	d.runs(blocks)
	for i := int(d.Any); i < len(blocks); i++ {
		if blocks[i]&blockHeld == 0 {
			continue
		}
		if d.Below++; d.Next == nil {
			next := uint32(i)
			d.Next = &next
		}
	}
	d.ends(blocks, tail, blockSize, mismatched)
}

// leading counts the blocks from the first on that have one of bits.
func leading(blocks []BlockBits, bits BlockBits) uint32 {
	for i, b := range blocks {
		if b&bits == 0 {
			return uint32(i)
		}
	}
	return uint32(len(blocks))
}

func (d *Explained) runs(blocks []BlockBits) {
	d.Runs = []Run{}
	for from := 0; from < len(blocks); {
		to := from + 1
		for to < len(blocks) && blocks[to] == blocks[from] {
			to++
		}
		if len(d.Runs) == MaxExplainRuns {
			d.MoreRuns++
		} else {
			r := Run{First: uint32(from), Blocks: uint32(to - from), Tiers: []string{}, Waiting: blocks[from]&BlockWaiting != 0}
			for t, name := range Tiers {
				if blocks[from]&(1<<t) != 0 {
					r.Tiers = append(r.Tiers, name)
				}
			}
			d.Runs = append(d.Runs, r)
		}
		from = to
	}
}

// ends says why the match ends.
func (d *Explained) ends(blocks []BlockBits, tail, blockSize int, mismatched uint64) {
	d.Reasons, d.Why = []string{}, []string{}
	add := func(reason, format string, args ...any) {
		d.Reasons = append(d.Reasons, reason)
		d.Why = append(d.Why, fmt.Sprintf(format, args...))
	}
	at := int(d.Any)
	if at == len(blocks) {
		switch {
		case tail > 0:
			add(ReasonTail, "the last %s fill no block of %d", counted(tail, "token"), blockSize)
		case at == 0:
			add(ReasonComplete, "the prompt is empty")
		default:
			add(ReasonComplete, "all %s are held", counted(len(blocks), "block"))
		}
		return
	}
	switch {
	case d.Status == statusPending && d.LastSeq == nil:
		// Nothing is known of what was stored.
	case blocks[at]&BlockWaiting != 0:
		add(ReasonWaiting, "block %d was stored and waits for its parent, which is not held", at)
	case d.Below > 0:
		add(ReasonHole, "block %d is not held, never stored or evicted, and %s further down %s, from block %d on",
			at, counted(int(d.Below), "block"), isAre(int(d.Below)), *d.Next)
	default:
		add(ReasonAbsent, "block %d is not held: never stored or evicted", at)
	}
	if mismatched > 0 && d.Status != statusActive {
		add(ReasonSize, "the engine's blocks are not of %d tokens: %s left out", blockSize, counted(int(mismatched), "event"))
	}
	if d.Status != statusActive {
		why := d.LastError
		if why == "" {
			why = "no reason is known"
		}
		add(reasonOf+d.Status, "the stream is %s: %s", d.Status, strings.ReplaceAll(why, "\n", " "))
	}
}

func counted(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return strconv.Itoa(n) + " " + what + "s"
}

func isAre(n int) string {
	if n == 1 {
		return "is"
	}
	return "are"
}
