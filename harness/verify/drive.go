// SPDX-License-Identifier: Apache-2.0

// Before: a recording's lines. After: indexsrv.Feed, and the comparisons.

package verify

import (
	"fmt"
	"math"
	"slices"
	"time"

	"kindex/harness/record"
	"kindex/internal/kv"
	"kindex/relay/feed"
	"kindex/relay/wire"
)

// clock turns the recorder's seconds into the time that a feed is told.
func clock(t float64) time.Time {
	s, frac := math.Modf(t)
	return time.Unix(int64(s), int64(frac*1e9))
}

// drive goes through the file in receive order.
func (r *run) drive() {
	var begin float64
	if len(r.f.Lines) > 0 {
		begin = r.f.Lines[0].T
	}
	for _, fd := range r.feeds {
		fd.Connected(clock(begin))
		r.pump(fd, 0, begin)
	}
	last, end := 0, begin
	for i := range r.f.Lines {
		l := &r.f.Lines[i]
		last, end = l.N, l.T
		switch {
		case l.Msg != nil:
			r.message(l)
		case l.Req != nil:
			r.predict(l)
		case l.State != nil:
			r.states = append(r.states, l)
		case l.Ctl != nil:
			r.control(l)
		}
	}
	for _, fd := range r.feeds {
		for wait := range 8 { // what is still asked for is answered or given up
			r.pump(fd, last, end+float64(wait+1))
		}
	}
	r.compareStates(-1, math.MaxInt, math.Inf(1))
}

// control tells the feeds that the engine went and came back.
func (r *run) control(l *record.Line) {
	if l.Ctl.Op == "engine_start" {
		r.compareStates(-1, l.N, l.T) // the old life says no more
	}
	for _, fd := range r.feeds {
		switch l.Ctl.Op {
		case "engine_stop":
			fd.Disconnected("the engine was stopped", clock(l.T))
		case "engine_start":
			fd.Connected(clock(l.T))
		default:
			return
		}
		r.pump(fd, l.N, l.T)
	}
}

// message hands one recorded message to its feed.
func (r *run) message(l *record.Line) {
	if rank, ok := record.LoadRank(l.Msg.Src); ok {
		r.load(l, rank)
		return
	}
	rank, ok := record.PubRank(l.Msg.Src)
	if !ok {
		return
	}
	for _, fd := range r.feeds {
		if fd.tl.rank != rank {
			continue
		}
		for i := range slices.Backward(fd.tl.batches) { // the message itself, behind what it shows to be missing
			if b := &fd.tl.batches[i]; b.line == l.N {
				r.compareStates(rank, l.N, b.ts)
				break
			}
		}
		if _, payload, seq, err := wire.ParseMessage(l.Msg.Frames); err != nil {
			fd.BadMessage()
		} else {
			fd.Live(seq, payload, clock(l.T))
		}
		r.applied(fd, l.N)
		r.pump(fd, l.N, l.T)
	}
}

// pump answers what fd asks of its replay socket, from what the recording knows
// to have been published by line.
func (r *run) pump(fd *rankFeed, line int, t float64) {
	now := clock(t)
	for range 64 {
		req, ask, _ := fd.Next(now)
		if !ask {
			return
		}
		life := fd.tl.lifeAt(line + 1)
		for i := range fd.tl.batches {
			b := &fd.tl.batches[i]
			if b.life == life && b.line <= line && b.seq >= req.Start {
				fd.ReplayBatch(req.ID, b.seq, b.payload, now)
				r.applied(fd, line)
			}
		}
		fd.ReplayEnd(req.ID, now)
		r.applied(fd, line)
	}
}

// Live has the batch go the way of a host's: on a lane, waited for until it is
// applied, so that what is compared then is exact.
func (fd *rankFeed) Live(seq uint64, payload []byte, now time.Time) { fd.run(0, seq, payload, now) }

// ReplayBatch is Live for the answer to request id.
func (fd *rankFeed) ReplayBatch(id, seq uint64, payload []byte, now time.Time) {
	fd.run(id, seq, payload, now)
}

func (fd *rankFeed) run(id, seq uint64, payload []byte, now time.Time) {
	fd.burst.Replay, fd.burst.Received = id, now
	fd.burst.Messages = append(fd.burst.Messages[:0], feed.Message{Seq: seq, Payload: payload})
	if err := fd.worker.Do(&fd.burst); err != nil {
		panic(err) // the job's own
	}
}

// applied compares the index with the reference if fd has applied anything.
func (r *run) applied(fd *rankFeed, line int) {
	st := fd.Status()
	if st.Batches == fd.seen && st.Restarts == fd.restarts {
		return
	}
	fd.seen, fd.restarts = st.Batches, st.Restarts
	err := r.tee.differ
	r.tee.differ = nil
	if err == nil && !r.truthOnly {
		err = r.compare.All()
	}
	if err != nil {
		r.report.Mismatches++
		r.fault(line, fmt.Sprintf("index against reference after batch %d of rank %d", st.LastSeq, fd.tl.rank), "equal", err.Error())
	}
}

// predict asks the index under test what it knows of a request's prompt.
func (r *run) predict(l *record.Line) {
	var q *request
	for _, c := range r.reqs {
		if c.line == l.N {
			q = c
		}
	}
	if q == nil {
		return
	}
	ns, chain := q.query(r.model, r.size)
	limit := max(0, len(q.req.Prompt)-1) / r.size
	for _, m := range r.tee.Lookup(ns, chain, nil) {
		for _, fd := range r.feeds {
			if uint32(fd.holder) == m.Holder {
				q.naive[fd.tl.rank] = min(int(m.Any), limit)
				q.device[fd.tl.rank] = min(int(m.Device), limit)
			}
		}
	}
}

// load keeps one reading of a load socket for the truth lines.
func (r *run) load(l *record.Line, _ int) {
	m := loadMsg{line: l.N}
	_, payload, seq, err := wire.ParseMessage(l.Msg.Frames)
	if old := r.loads[l.Msg.Src]; err == nil && len(old) > 0 && seq <= old[len(old)-1].seq {
		return // a duplicate
	}
	m.seq = seq
	if err == nil {
		m.load, err = wire.DecodeLoad(payload)
	}
	m.err = err
	if r.loads == nil {
		r.loads = map[string][]loadMsg{}
	}
	r.loads[l.Msg.Src] = append(r.loads[l.Msg.Src], m)
}

// loadMsg is one message of a load socket.
type loadMsg struct {
	line int
	seq  uint64
	load kv.Load
	err  error
}

// fault notes one difference.
func (r *run) fault(line int, what, expected, got string) {
	if len(r.report.Faults) < maxFaults {
		r.report.Faults = append(r.report.Faults, Fault{r.f.Path, line, what, expected, got})
	}
}

// sums fills in what the pipeline counted.
func (r *run) sums() {
	c := r.compare.Counts()
	r.report.Memberships = int(c.Memberships)
	r.report.Lookups = int(c.Lookups)
	for _, fd := range r.feeds {
		st := fd.Status()
		r.report.Batches += int(st.Batches)
		r.report.Events += int(st.Events)
		for reason, n := range st.Dropped {
			if n > 0 {
				r.report.Dropped[reason] += n
			}
		}
	}
}
