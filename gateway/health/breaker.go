// SPDX-License-Identifier: Apache-2.0

// Before: watch.go, which is told how requests ended. After: the worker's veto.

package health

import (
	"errors"
	"time"

	"github.com/sony/gobreaker/v2"

	"kindex/gateway/fleet"
)

var errFault = errors.New("a fault of the worker")

func counted() (struct{}, error)   { return struct{}{}, errFault }
func succeeded() (struct{}, error) { return struct{}{}, nil }

// fault counts a fault of kind k.
//
// The breaker is there from the first fault in a row until a success: a worker without
// one costs a load to tell of. It is asked as a request ends, not as one begins: its
// answer is the veto, which steers.
func (s *sight) fault(k Kind) {
	o, r := s.watch.options(), &s.worker.Terms().Resilience
	most := count(r.BreakerFailures, o.BreakerFailures)
	if most == 0 || r.NoBreaker != nil && *r.NoBreaker {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.breaker == nil {
		s.breaker = gobreaker.NewCircuitBreaker[struct{}](gobreaker.Settings{
			MaxRequests:   uint32(count(r.BreakerSuccess, o.BreakerSuccesses)),
			Timeout:       span(r.BreakerTimeout, o.BreakerOpen),
			ReadyToTrip:   func(c gobreaker.Counts) bool { return int(c.ConsecutiveFailures) >= most },
			OnStateChange: func(_ string, _, to gobreaker.State) { s.switched(to) },
		})
		s.gone = false
	}
	s.faults.Or(1 << k)
	s.gone = s.gone || k == ConnectFailed
	_, _ = s.breaker.Execute(counted) // open: it does not count, and says so
}

// sound counts a success.
func (s *sight) sound() {
	if s.faults.Load() == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.breaker == nil {
		return
	}
	_, _ = s.breaker.Execute(succeeded)
	if s.breaker.State() == gobreaker.StateClosed {
		s.breaker = nil
		s.faults.Store(0)
	}
}

// switched mirrors the breaker's new state into the veto. The caller holds mu.
func (s *sight) switched(to gobreaker.State) {
	s.watch.counts.breakers[to].Add(1)
	s.steer(fleet.BreakerOpen, to == gobreaker.StateOpen)
}

// trial lets an open breaker see that its time is over.
func (s *sight) trial() {
	if s.faults.Load() == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.breaker != nil {
		s.breaker.State()
	}
}

// restore closes the breaker: what its faults told of is over. The caller holds mu.
func (s *sight) restore() {
	if s.breaker == nil {
		return
	}
	if s.breaker.State() != gobreaker.StateClosed {
		s.switched(gobreaker.StateClosed)
	}
	s.breaker = nil
	s.faults.Store(0)
}

// stalledOnly reports whether all faults in a row were that nothing came, or nothing
// could be sent: a token that comes disproves them.
func (s *sight) stalledOnly() bool {
	f := s.faults.Load()
	return f != 0 && f&^(1<<Stalled|1<<ConnectFailed) == 0
}

// breakerState returns the breaker's state in answers and metrics. The caller holds mu.
func (s *sight) breakerState() string {
	if s.breaker == nil {
		return gobreaker.StateClosed.String()
	}
	return s.breaker.State().String()
}

// since returns how long ago at was; 0: never.
func since(now, at int64) time.Duration {
	if at == 0 {
		return 0
	}
	return time.Duration(now - at)
}
