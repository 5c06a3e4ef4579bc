// SPDX-License-Identifier: Apache-2.0

// Before: Stream, after every input. After: a source's replay socket.

package feed

import "time"

// Next must be called after every input, and at the time it returned. It returns
// the replay request to make now, if any (a request supersedes the one before),
// and when to call it again; a zero time means not before the next input.
func (f *Feed) Next(now time.Time) (req ReplayRequest, ask bool, wake time.Time) {
	if !f.connected && !f.failed {
		if f.since.IsZero() {
			f.since = now
		}
		failAt := f.since.Add(f.limits.ConnectPeriod)
		if f.failed = !now.Before(failAt); !f.failed {
			wake = failAt
		}
	}
	if !f.telling.IsZero() {
		if now.Before(f.telling) {
			wake = earlier(wake, f.telling)
		} else {
			f.telling = time.Time{}
		}
	}
	r := &f.repair
	if !f.canReplay() || r.id != 0 {
		return ReplayRequest{}, false, wake
	}
	f.putOff(now)
	due, kind := f.wanted()
	if kind == wantNothing {
		return ReplayRequest{}, false, wake
	}
	if now.Before(due) {
		return ReplayRequest{}, false, earlier(wake, due)
	}
	f.begin(kind)
	return ReplayRequest{ID: r.id, Start: r.start}, true, wake
}

func earlier(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}

// want is why a replay is asked for.
type want uint8

const (
	wantNothing want = iota
	wantMissing      // what is missing at the cursor: a join, a gap, a check
	wantConfirm      // whether a silent publisher has said anything since
	wantResync       // everything from 0
)

// wanted returns what to ask for, and from when.
func (f *Feed) wanted() (due time.Time, w want) {
	r := &f.repair
	held := len(f.held) > 0 || f.bad.open
	switch {
	case !f.connected:
		return time.Time{}, wantNothing
	case held, r.wantJoin, r.unverified, r.catching, r.more:
		return r.notBefore, wantMissing
	case !r.resyncAt.IsZero() && (r.confirmAt.IsZero() || r.resyncAt.Before(r.confirmAt)):
		return r.resyncAt, wantResync
	case !r.confirmAt.IsZero():
		return r.confirmAt, wantConfirm
	}
	return time.Time{}, wantNothing
}

// heard notes that something came live, in its place.
func (f *Feed) heard(now time.Time) {
	r := &f.repair
	if f.limits.QuietDelay <= 0 || !f.canReplay() {
		r.confirmAt = time.Time{}
		return
	}
	if r.confirmAt.IsZero() || r.heardAt.IsZero() {
		r.confirmAt = now.Add(f.limits.QuietDelay)
	}
	r.heardAt, r.quiet = now, 0
}

// askAgain has a stream that nothing is missing of asked once more, a few times in
// a row: the end of an answer, or all of it, may be missing.
func (f *Feed) askAgain(now time.Time) {
	r := &f.repair
	if r.quiet++; r.progress {
		r.quiet = 1
	}
	if f.limits.QuietDelay > 0 && r.quiet <= f.limits.AbsenceTries && r.confirmAt.IsZero() {
		r.confirmAt, r.heardAt = now.Add(f.limits.QuietDelay), time.Time{}
	}
}

// putOff moves the question of a stream that fell silent to where it has been
// silent for long enough. Done here, once in a while, and not for every batch.
func (f *Feed) putOff(now time.Time) {
	r := &f.repair
	if r.heardAt.IsZero() || r.confirmAt.IsZero() || now.Before(r.confirmAt) {
		return
	}
	r.confirmAt = r.heardAt.Add(f.limits.QuietDelay)
}

// begin opens the next request.
func (f *Feed) begin(kind want) {
	r := &f.repair
	r.issued++
	r.id, r.start = r.issued, 0
	r.got, r.short, r.progress, r.more, r.foreign, r.least, r.most = false, false, false, false, false, 0, 0
	r.proved, r.agreed, r.garbled = false, false, false
	r.resyncing = kind == wantResync && f.has
	r.joining = !f.has
	r.sure = f.last
	r.verifying = f.has && (r.unverified || kind == wantConfirm)
	if f.has && !r.resyncing {
		r.start = f.last - min(f.last, uint64(f.limits.AbsenceTries-1))
	}
	if r.fromZero {
		r.start, r.fromZero = 0, false
	}
	switch kind {
	case wantConfirm:
		r.confirmAt, r.heardAt = time.Time{}, time.Time{}
	case wantResync:
		r.resyncAt = time.Time{}
	case wantMissing, wantNothing:
	}
}
