// SPDX-License-Identifier: Apache-2.0

// Before: a caller in this process. After: the rings of all shards of a host on this
// machine; then the union of what they say.

package indexclient

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"kindex/internal/kv"
	"kindex/internal/lookup"
	"kindex/internal/shm"
)

// sharedCall is what one lookup needs besides its question and its answer.
type sharedCall struct {
	call    *shm.Call
	hashes  []kv.ContentHash
	only    []string
	holders []uint32
	sifts   bool // the answer has more than holders
	rows    []sharedRow

	// The model of the last question, and the table that had it.
	table *sharedTable
	name  sharedName
	model *sharedModel
}

// sharedRow is a match's place in the order of an answer: by depth, the greater first,
// then by registration and rank.
type sharedRow struct {
	depth uint64 // all three
	tie   uint64
	match int32 // of the call's
}

// depthBits are enough for a depth: no chain is longer.
const depthBits = 21

var _ = uint(1<<depthBits - 1 - shm.MaxBlocks)

// sortRows orders rows. Shards answer by holder, so most rows of equal depth stand
// right already: few are moved, and not by a function that is called for each pair.
func sortRows(rows []sharedRow) {
	if len(rows) > 64 {
		slices.SortFunc(rows, func(a, b sharedRow) int {
			if a.depth != b.depth {
				return cmp.Compare(b.depth, a.depth)
			}
			return cmp.Compare(a.tie, b.tie)
		})
		return
	}
	for i := 1; i < len(rows); i++ {
		r := rows[i]
		k := i
		for ; k > 0 && (rows[k-1].depth < r.depth || rows[k-1].depth == r.depth && rows[k-1].tie > r.tie); k-- {
			rows[k] = rows[k-1]
		}
		rows[k] = r
	}
}

// errSilent is lookup.ErrOverdue of a host that is known not to move.
var errSilent = lookup.Refuse(ErrDeadline, "deadline: no answer within the time given: the host's process gives no sign of life")

// keptShared bounds the memory that is kept of one call.
const keptShared = 1 << 20

func (s *shared) take() *sharedCall {
	if c := s.spare.Swap(nil); c != nil {
		return c
	}
	select {
	case c := <-s.idle:
		return c
	default:
		return &sharedCall{call: shm.NewCall()}
	}
}

func (s *shared) give(c *sharedCall) {
	c.call.Hashes, c.call.Holders = nil, nil // the caller's, perhaps
	clear(c.only)
	if 8*cap(c.hashes)+16*cap(c.call.Matches)+24*cap(c.rows)+16*cap(c.only) > keptShared {
		return
	}
	if s.spare.CompareAndSwap(nil, c) {
		return
	}
	select {
	case s.idle <- c:
	default:
	}
}

// Lookup implements [lookup.Index]. It allocates nothing once a, and what is kept of
// earlier calls, have room.
//
// A connection that breaks while it waits is made again, and the question asked again,
// within its time: to ask twice changes nothing.
func (s *shared) Lookup(ctx context.Context, q *lookup.Query, a *lookup.Answer) error {
	a.Reset()
	if err := lookup.OfContext(ctx); err != nil {
		return err
	}
	if err := q.Check(); err != nil {
		return err
	}
	deadline := s.deadline(ctx)
	call := s.take()
	err := s.answer(ctx, deadline, q, call, a)
	s.give(call)
	if err != nil {
		a.Reset()
	}
	return err
}

// answer asks one connection after the other.
func (s *shared) answer(ctx context.Context, deadline uint64, q *lookup.Query, call *sharedCall, a *lookup.Answer) error {
	var bad *sharedConn
	for wait := s.o.Wait; ; wait = true {
		c, err := s.connected(ctx, deadline, bad, wait)
		if err != nil {
			return err
		}
		err = c.lookup(ctx, deadline, q, call, a)
		switch {
		case err == nil:
			return nil
		case isGone(err):
			bad = c
		case errors.Is(err, shm.ErrLate), errors.Is(err, context.DeadlineExceeded): // whose clock was first
			if c.client.Silent() {
				return errSilent
			}
			return lookup.ErrOverdue
		default:
			return err
		}
	}
}

// lookup asks all shards.
func (c *sharedConn) lookup(ctx context.Context, deadline uint64, q *lookup.Query, sc *sharedCall, a *lookup.Answer) error {
	name := sharedName{cmp.Or(q.Tenant, lookup.DefaultName), q.Model, cmp.Or(q.Group, lookup.DefaultName)}
	call := sc.call
	for {
		t := c.table.Load()
		m := sc.find(t, name)
		if err := sc.fill(q, t, m); err != nil {
			return err
		}
		if err := c.client.Do(ctx, deadline, call); err != nil {
			return err
		}
		switch call.Status {
		case shm.StatusLate:
			return shm.ErrLate
		case shm.StatusModel: // the table is old, or is not
			if call.Version <= t.version && m == nil {
				return lookup.NoModel(name.tenant, name.model, name.group)
			}
			if err := c.reach(ctx, deadline, max(call.Version, t.version)); err != nil {
				return err
			}
			continue
		case shm.StatusInvalid:
			return lookup.Refuse(ErrUnavailable, "the host could not read the question")
		case shm.StatusOK:
		}
		now := c.table.Load()
		if call.Version > now.version {
			if err := c.reach(ctx, deadline, call.Version); err != nil {
				return err
			}
			now = c.table.Load()
		}
		if q.Only != nil && now != t && !sc.sameOnly(now, name) {
			continue // an instance came that is wanted, too
		}
		a.BlockSize = m.blockSize
		a.Matches = sc.union(now, q.Limit, a.Matches)
		return nil
	}
}

// find returns the model of that name, which is mostly that of the last question.
func (sc *sharedCall) find(t *sharedTable, name sharedName) *sharedModel {
	if t != sc.table || name != sc.name {
		sc.table, sc.name, sc.model = t, name, t.models[name]
	}
	return sc.model
}

// fill makes the request. Where there is no model it asks about none: the reply says
// whether the table is old.
func (sc *sharedCall) fill(q *lookup.Query, t *sharedTable, m *sharedModel) (err error) {
	call := sc.call
	call.Model, call.Hashes, call.Holders, call.Filtered, call.Limit = 0, nil, nil, false, 0
	sc.sifts = false
	if m == nil {
		return nil
	}
	call.Model, call.Seed = m.number, kv.ContentSeed(q.LoRA, q.Salt)
	if len(q.Tokens) == 0 && len(q.Extra) == 0 {
		call.Hashes = q.Hashes
	} else {
		if sc.hashes, err = q.AppendHashes(sc.hashes[:0], m.blockSize); err != nil {
			return err
		}
		call.Hashes = sc.hashes
	}
	if n := len(call.Hashes); n > shm.MaxBlocks {
		field := "token_ids"
		if len(q.Tokens) == 0 {
			field = "block_hashes"
		}
		return lookup.Refuse(ErrInvalid, "%s: must be at most %d blocks over shared memory, and is %d", field, shm.MaxBlocks, n)
	}
	call.Limit = q.Limit
	if q.Only == nil {
		return nil
	}
	sc.only = append(sc.only[:0], q.Only...)
	slices.Sort(sc.only)
	sc.holders = sc.chosen(t, m, sc.holders[:0])
	// More than can be listed are sorted out here.
	if call.Filtered = len(sc.holders) <= shm.MaxHolders; call.Filtered {
		call.Holders = sc.holders
	} else {
		call.Limit, sc.sifts = 0, true
	}
	return nil
}

// chosen appends the holders of m that sc.only names, ascending.
func (sc *sharedCall) chosen(t *sharedTable, m *sharedModel, dst []uint32) []uint32 {
	for _, h := range m.holders {
		if who := t.holder(h); who != nil {
			if _, ok := slices.BinarySearch(sc.only, who.instance); ok {
				dst = append(dst, h)
			}
		}
	}
	return dst
}

// sameOnly reports whether the holders that were asked about are those that t has.
func (sc *sharedCall) sameOnly(t *sharedTable, name sharedName) bool {
	m := t.models[name]
	if m == nil {
		return true // gone since: what was found is answered
	}
	i := 0
	for _, h := range m.holders {
		who := t.holder(h)
		if who == nil {
			continue
		}
		if _, ok := slices.BinarySearch(sc.only, who.instance); !ok {
			continue
		}
		for i < len(sc.holders) && sc.holders[i] < h {
			i++ // gone since
		}
		if i == len(sc.holders) || sc.holders[i] != h {
			return false
		}
		i++
	}
	return true
}

// union appends what the shards found, the deepest first.
func (sc *sharedCall) union(t *sharedTable, limit int, dst []lookup.Match) []lookup.Match {
	matches := sc.call.Matches
	sc.rows = sc.rows[:0]
	for i := range matches {
		m := &matches[i]
		who := t.holder(m.Holder)
		if who == nil {
			continue // unregistered since
		}
		if sc.sifts {
			if _, ok := slices.BinarySearch(sc.holders, m.Holder); !ok {
				continue
			}
		}
		depth := uint64(m.Any&^shm.DegradedBit)<<(2*depthBits) | uint64(m.Host)<<depthBits | uint64(m.Device)
		sc.rows = append(sc.rows, sharedRow{depth: depth, tie: who.tie, match: int32(i)})
	}
	sortRows(sc.rows)
	rows := sc.rows
	if limit > 0 && len(rows) > limit {
		rows = rows[:limit]
	}
	at := len(dst)
	dst = slices.Grow(dst, len(rows))[:at+len(rows)]
	for i := range rows {
		m := &matches[rows[i].match]
		who := t.holder(m.Holder)
		out := &dst[at+i]
		out.Instance, out.Number, out.Rank = who.instance, who.number, int(who.rank)
		out.Device, out.Host, out.Any = m.Device, m.Host, m.Any&^shm.DegradedBit
		out.Degraded = m.Any&shm.DegradedBit != 0
	}
	return dst
}

// reach waits until the table has that version.
func (c *sharedConn) reach(ctx context.Context, deadline, version uint64) error {
	t := c.table.Load()
	if t.version >= version {
		return nil
	}
	timer := time.NewTimer(time.Duration(deadline - min(shm.Now(), deadline)))
	defer timer.Stop()
	for ; t.version < version; t = c.table.Load() {
		select {
		case <-t.newer:
		case <-ctx.Done():
			return ctx.Err()
		case <-c.client.Gone():
			return c.client.Err()
		case <-timer.C:
			return shm.ErrLate
		}
	}
	return nil
}
