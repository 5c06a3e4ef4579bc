// SPDX-License-Identifier: Apache-2.0

// Before: an observer of the index host. After: a drill's result.

package drill

import (
	"context"
	"errors"
	"fmt"
	"time"

	"kindex/harness/publish"
)

// How often the index is asked, and how long it must stay exact once it is.
const (
	askEvery = 5 * time.Millisecond
	stayFor  = time.Second
	lateFor  = 5 * time.Second // behind a rule's limit, to say how late it was
)

// truth is what a publisher knows.
type truth interface {
	Life() int
	Record(rank, life int, seq uint64) (publish.Record, bool)
}

// wrong says what keeps an observation from being exact: the truth of the present life,
// at batches from floor on, in streams that say they are exact. "" means nothing.
func wrong(seen map[int]observation, t truth, floor []uint64) string {
	for rank := range floor {
		o, ok := seen[rank]
		switch {
		case !ok:
			return fmt.Sprintf("rank %d is not there", rank)
		case o.status != "active":
			return fmt.Sprintf("rank %d is %s", rank, o.status)
		case !o.has || o.seq < floor[rank]:
			return fmt.Sprintf("rank %d is behind batch %d", rank, floor[rank])
		}
		rec, ok := t.Record(rank, t.Life(), o.seq)
		if !ok || rec.Truth != o.sum {
			return fmt.Sprintf("rank %d does not hold the truth of batch %d", rank, o.seq)
		}
	}
	return ""
}

// exactWithin asks until the index is exact and returns how long after from that was,
// which the rule's limit allows or not; then it asks on and demands that it stays so.
func exactWithin(ctx context.Context, ob observer, t truth, floor []uint64, from time.Time, limit, stay time.Duration, w *waits) (time.Duration, error) {
	ticker := time.NewTicker(askEvery)
	defer ticker.Stop()
	for {
		seen, err := ob.observe(ctx)
		at := time.Now()
		took := at.Sub(from)
		last := wrong(seen, t, floor)
		if err != nil {
			last = err.Error()
		}
		if last == "" {
			if took > limit && took > w.allows(limit, from, at) {
				return took, fmt.Errorf("exact after %s, of which programs waited %s for a CPU: the rule allows %s", round(took), round(w.of(from, at)), limit)
			}
			return took, stays(ctx, ob, t, floor, stay)
		}
		if took > limit+lateFor && took > w.allows(limit, from, at)+lateFor {
			return took, fmt.Errorf("not exact within %s: %s", limit, last)
		}
		select {
		case <-ctx.Done():
			return took, ctx.Err()
		case <-ticker.C:
		}
	}
}

// stays asks for a while and demands that every answer is exact.
func stays(ctx context.Context, ob observer, t truth, floor []uint64, stay time.Duration) error {
	for end := time.Now().Add(stay); time.Now().Before(end); {
		seen, err := ob.observe(ctx)
		if err != nil {
			return errors.Join(ctx.Err(), err)
		}
		if w := wrong(seen, t, floor); w != "" {
			return fmt.Errorf("exact, and then not: %s", w)
		}
		if err := pause(ctx, 10*askEvery); err != nil {
			return err
		}
	}
	return nil
}

// exact demands that the index holds what was published by now, so long after from.
func (r *relayed) exact(ctx context.Context, from time.Time, limit time.Duration) (time.Duration, error) {
	took, err := exactWithin(ctx, r.index, r.pub, r.newest(), from, limit, stayFor, r.e.waits)
	if err != nil {
		err = errors.Join(fmt.Errorf("the index host: %w", err), r.relay.Ended(), r.index.proc.Ended())
	}
	return took, err
}

// round returns d in whole milliseconds.
func round(d time.Duration) time.Duration { return d.Round(time.Millisecond) }
