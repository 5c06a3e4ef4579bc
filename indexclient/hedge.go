// SPDX-License-Identifier: Apache-2.0

// Before: replicas.go. After: several hosts at a time.

package indexclient

import (
	"context"
	"time"

	"kindex/internal/lookup"
)

// attempt is one replica's answer to a hedged call.
type attempt struct {
	k      int
	answer *lookup.Answer
	err    error
}

// hedged asks the next replica when one has failed, or has not answered for
// HedgeAfter, and takes the first answer. It returns when all calls have ended: the
// losers are cancelled, and q is nobody's any more.
func (s *replicas) hedged(ctx context.Context, q *lookup.Query, a *lookup.Answer) error {
	a.Reset()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	order := s.order(make([]int, 0, 8))
	ended := make(chan attempt, len(order))
	running, asked := 0, 0
	ask := func() {
		k := order[asked]
		asked++
		running++
		answer, ok := s.answers.Get().(*lookup.Answer)
		if !ok {
			answer = new(lookup.Answer)
		}
		go func() {
			err := s.try(ctx, s.hosts[k], k, func(ctx context.Context, r *replica) error { return r.Lookup(ctx, q, answer) })
			ended <- attempt{k, answer, err}
		}()
	}
	timer := time.NewTimer(s.o.HedgeAfter)
	defer timer.Stop()
	var failed []error
	var won *attempt
	ask()
	for running > 0 {
		select {
		case <-timer.C:
			if won == nil && asked < len(order) {
				ask()
				timer.Reset(s.o.HedgeAfter)
			}
		case done := <-ended:
			running--
			switch {
			case won != nil: // a loser
			case done.err == nil || ofRequest(done.err):
				won = &done
				cancel()
				continue
			default:
				failed = append(failed, done.err)
				if asked < len(order) && ctx.Err() == nil {
					ask()
					timer.Reset(s.o.HedgeAfter)
				}
			}
			s.answers.Put(done.answer)
		}
	}
	if won == nil {
		return worst(failed)
	}
	if won.err == nil {
		s.current.Store(int32(won.k)) // a loser may have ended just before
		a.BlockSize, a.Twice = won.answer.BlockSize, won.answer.Twice
		a.Matches = append(a.Matches, won.answer.Matches...)
		a.Missing = append(a.Missing, won.answer.Missing...)
	}
	err := won.err
	s.answers.Put(won.answer)
	return err
}
