// SPDX-License-Identifier: Apache-2.0

// Before: whoever kept a content, and its cursor, from an earlier run. After:
// stream.go, whose first request goes on from there.

package client

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
)

// Cursor is how far a rank's content goes, and what proves it to the server that is
// asked to go on: of a relay of ours the check of its last batch, under the peers'
// contract that batch itself, which is asked for again.
type Cursor struct {
	Contract Contract // that it was made under; another one has no use for it
	Epoch    uint64
	Sequence uint64 // the last batch
	// Check is that of the last batch: under the relay's own contract the relay's,
	// else ours, of what it said; 0: there is none.
	Check uint64

	Missing  string // why the content is not exact; "" where it is, mismatch aside
	Mismatch int    // block size, in tokens, of stores that were left out; 0: none were

	// Memory is what the normaliser remembers, as [normal.Normaliser.AppendMemory]
	// has it; of the peers' contract only.
	Memory []byte
}

const (
	cursorVersion = 1
	maxMissing    = 1_000 // bytes of a reason that are kept
)

// Append appends c in a form that [ParseCursor] reads.
func (c *Cursor) Append(b []byte) []byte {
	b = append(b, cursorVersion, byte(c.Contract))
	b = binary.LittleEndian.AppendUint64(b, c.Epoch)
	b = binary.LittleEndian.AppendUint64(b, c.Sequence)
	b = binary.LittleEndian.AppendUint64(b, c.Check)
	b = binary.AppendUvarint(b, uint64(c.Mismatch))
	missing := c.Missing
	if len(missing) > maxMissing {
		missing = strings.ToValidUTF8(missing[:maxMissing], "")
	}
	b = binary.AppendUvarint(b, uint64(len(missing)))
	b = append(b, missing...)
	return append(b, c.Memory...)
}

// ParseCursor reads what Append appended. Memory aliases b.
func ParseCursor(b []byte) (Cursor, error) {
	bad := errors.New("a cursor that is cut short or not one")
	var c Cursor
	if len(b) < 26 {
		return c, bad
	}
	if b[0] != cursorVersion {
		return c, fmt.Errorf("a cursor of version %d: this program reads version %d", b[0], cursorVersion)
	}
	if c.Contract = Contract(b[1]); c.Contract == ContractUnknown || c.Contract >= numContracts {
		return c, bad
	}
	c.Epoch = binary.LittleEndian.Uint64(b[2:])
	c.Sequence = binary.LittleEndian.Uint64(b[10:])
	c.Check = binary.LittleEndian.Uint64(b[18:])
	b = b[26:]
	size, n := binary.Uvarint(b)
	if n <= 0 || size > 1<<31 {
		return c, bad
	}
	c.Mismatch, b = int(size), b[n:]
	size, n = binary.Uvarint(b)
	if n <= 0 || size > maxMissing || size > uint64(len(b)-n) {
		return c, bad
	}
	c.Missing, c.Memory = string(b[n:n+int(size)]), b[n+int(size):]
	return c, nil
}

// Hold calls fn between two messages: what the handlers were told is what the cursor
// says; has is false where the rank could not go on from anywhere. No message of any
// rank is taken meanwhile. fn must not call the client.
func (c *Client) Hold(n uint32, fn func(cur Cursor, has bool)) {
	c.work.Lock()
	defer c.work.Unlock()
	if r := c.ranks[n]; r != nil {
		fn(r.cursor(c.contract))
		return
	}
	fn(Cursor{}, false)
}

// locked calls fn as a message's taking: with Hold kept out.
func (c *Client) locked(fn func()) {
	c.work.Lock()
	defer c.work.Unlock()
	fn()
}

// cursor returns where r's content stands; false: there is none that could go on.
func (r *rank) cursor(c Contract) (Cursor, bool) {
	if r.resuming {
		return r.start, r.has // nobody has said anything of it yet
	}
	if !r.has || r.void || r.snap != nil || c == ContractUnknown {
		return Cursor{}, false
	}
	cur := Cursor{Contract: c, Epoch: r.epoch, Sequence: r.seq, Check: r.check, Missing: r.missing, Mismatch: r.mismatch}
	if c != ContractOwn {
		cur.Check, cur.Memory = r.peer.sum(r.seq), r.peer.norm.AppendMemory(nil)
	}
	return cur, true
}

// resume is what is known of the content that a rank began with.
type resume struct {
	// resuming: nobody has shown yet whether it is the publisher's.
	resuming bool
	start    Cursor
	// unproven: the server's next word does not show it by itself. So under the peers'
	// contract: only the last batch, told again, does.
	unproven bool
	refused  string // why it will go, once something else is told
}

// begins has r begin with a content that its handler holds already, at cur.
func (r *rank) begins(cur Cursor) {
	r.resuming, r.unproven, r.start = true, true, cur
	r.has, r.epoch, r.seq, r.check = true, cur.Epoch, cur.Sequence, cur.Check
	r.missing, r.mismatch = cur.Missing, cur.Mismatch
	r.holds = true
	if cur.Contract == ContractOwn {
		return
	}
	r.check = 0
	if err := r.peer.norm.Restore(cur.Memory); err != nil {
		r.refuse(err.Error())
		return
	}
	if cur.Check != 0 {
		r.peer.note(cur.Sequence, cur.Check)
	}
}

// refuse gives up the content that r began with: it is asked for from the beginning.
func (r *rank) refuse(why string) {
	if r.resuming && r.refused == "" {
		r.refused = why
	}
	r.forget()
}

// goesOn notes that the content that r began with is the publisher's.
func (r *rank) goesOn() {
	if r.resuming {
		r.resuming, r.unproven, r.start = false, false, Cursor{}
		r.st.resumed++
		if r.resumes != nil {
			r.resumes.Resumed("")
		}
	}
}

// beganCold notes that the content that r began with is gone.
func (r *rank) beganCold(why string) {
	if r.resuming {
		r.resuming, r.unproven, r.start = false, false, Cursor{}
		if r.refused != "" {
			why = r.refused
		}
		if r.resumes != nil {
			r.resumes.Resumed(why)
		}
	}
}

const whyUnproven = "waiting for proof that the content loaded is still the publisher's"

// ownStarts judges the contents that ranks began with by whether the relay's own
// contract, which is served, can go on from them: what it cannot prove it resets.
func (c *Client) ownStarts() {
	for _, r := range c.ranks {
		switch {
		case !r.unproven:
		case r.start.Contract != ContractOwn:
			r.refuse(fmt.Sprintf("it was told under %s, the server has %s", r.start.Contract, ContractOwn))
		default:
			r.unproven = false
		}
	}
}

// peerStarts does so under the peers' contract, which has a cursor of rank 0 alone and
// proves nothing by itself: the last batch is told again where it is neither 0 nor 1.
// It reports whether all ranks must be told from the beginning.
func (c *Client) peerStarts() (fromZero bool) {
	for n, r := range c.ranks {
		switch {
		case !r.unproven:
		case r.start.Contract != c.contract:
			// What is told then decides: the server may not serve this contract.
			r.refused = fmt.Sprintf("it was told under %s, the server has %s", r.start.Contract, c.contract)
			fromZero = true
		case n != 0:
			r.refuse("the server can be asked for rank 0's batches alone")
			fromZero = true
		case r.peer.sum(r.seq) == 0:
			r.refuse(fmt.Sprintf("nothing is known of batch %d that would prove whose content it is", r.seq))
			fromZero = true
		case r.seq < 2:
			fromZero = true
		}
	}
	return fromZero
}

// peerProof looks at batch seq, which says sum, for what it shows of the content that
// r began with. It reports whether the batch is done with. An error says that the
// rank must be told anew.
func (c *Client) peerProof(r *rank, seq, sum uint64) (done bool, err error) {
	switch {
	case !r.unproven || !r.has:
	case seq == r.seq && r.peer.sum(seq) == sum:
		r.goesOn()
	case c.toldAll && seq <= r.seq: // as any batch whose number was passed
	case seq+1 == r.seq: // some servers begin with the number asked for
		return true, nil
	case seq > r.seq:
		return true, c.unprovable(r, fmt.Sprintf("the server told batch %d without batch %d, the last of the content loaded", seq, r.seq))
	default:
		r.st.restarts++
		return true, c.unprovable(r, fmt.Sprintf("the publisher has begun another life: it told batch %d", seq))
	}
	return false, nil
}

// unprovable gives up r's content, and returns what ends the stream for one that
// begins anew.
func (c *Client) unprovable(r *rank, why string) error {
	r.refuse(why)
	c.fromZero = true
	return errAgain
}
