// SPDX-License-Identifier: Apache-2.0

// Before: a caller in this process. After: internal/shm, to a host on this machine.

package indexclient

import (
	"context"
	"encoding/json"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"kindex/internal/lookup"
	"kindex/internal/lookuppb"
	"kindex/internal/shm"
)

const (
	// sharedSpin is how long a caller looks for its answer before it sleeps, where the
	// host's threads look, too, and there are cores for both.
	sharedSpin      = 50 * time.Microsecond
	sharedSpinCores = 4
	// sharedPause is how long it takes at least from one try to connect to the next.
	sharedPause = time.Millisecond
	// sharedDial bounds one try.
	sharedDial = 2 * time.Second
	// sharedKept is how many calls' memory is kept.
	sharedKept = 64
)

// shared answers over the shared memory of one host.
type shared struct {
	path    string
	o       *Options
	pauseTo time.Duration              // between tries, at most
	spare   atomic.Pointer[sharedCall] // the one that was used last
	idle    chan *sharedCall           // others
	end     context.CancelFunc
	ended   chan struct{}

	conn atomic.Pointer[sharedConn] // nil: none now

	mu     sync.Mutex
	why    error         // why there is none; nil: nobody knows yet
	change chan struct{} // closed with the next change of conn or why
}

// sharedConn is one connection, and the table that came over it.
type sharedConn struct {
	client *shm.Client
	table  atomic.Pointer[sharedTable]
}

// changed takes a change of the table.
func (c *sharedConn) changed(ch *shm.Change) {
	old := c.table.Load()
	c.table.Store(old.with(ch))
	close(old.newer)
}

// dialShared returns the host behind the socket at path.
func dialShared(_ context.Context, path string, o *Options) (lookup.Index, error) {
	if err := shm.CheckPath(path); err != nil {
		return nil, lookup.Refuse(ErrInvalid, "target: %v", err)
	}
	ctx, end := context.WithCancel(context.Background())
	s := &shared{
		path: path, o: o, pauseTo: min(o.RetryDelay, 50*time.Millisecond), idle: make(chan *sharedCall, sharedKept),
		end: end, ended: make(chan struct{}), change: make(chan struct{}),
	}
	go s.connect(ctx)
	return s, nil
}

// connect keeps a connection until ctx ends.
func (s *shared) connect(ctx context.Context) {
	defer close(s.ended)
	pause := sharedPause
	for {
		c, err := s.dial(ctx)
		if err == nil {
			pause = sharedPause
			s.set(c, nil)
			select {
			case <-c.client.Gone():
			case <-c.client.Leaving(): // it closes when the last call is over
			case <-ctx.Done():
				s.set(nil, errClosed)
				c.client.Close()
				return
			}
			s.set(nil, nil)
			continue
		}
		s.set(nil, err)
		wait := pause
		if lookup.KindOf(err) == ErrDenied {
			wait = s.o.RetryMax // it leaves a line in the host's log each time
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			s.set(nil, errClosed)
			return
		}
		pause = min(2*pause, max(s.pauseTo, sharedPause))
	}
}

// dial connects once.
func (s *shared) dial(ctx context.Context) (*sharedConn, error) {
	ctx, cancel := context.WithTimeout(ctx, sharedDial)
	defer cancel()
	c := &sharedConn{}
	c.table.Store(newSharedTable())
	o := shm.ClientOptions{Change: c.changed}
	switch {
	case s.o.SharedSpin != 0:
		o.Spin = max(s.o.SharedSpin, 0)
	case runtime.GOMAXPROCS(0) >= sharedSpinCores:
		o.Spin = sharedSpin
	}
	client, err := shm.Dial(ctx, s.path, o)
	if no := (*shm.RefusedError)(nil); errors.As(err, &no) {
		return nil, lookup.Refuse(kindOfRefusal(no), "%s", no.Text)
	}
	if err != nil {
		return nil, lookup.Refuse(ErrUnavailable, "%v", err)
	}
	c.client = client
	return c, nil
}

func kindOfRefusal(no *shm.RefusedError) error {
	if no.Denied {
		return ErrDenied
	}
	return ErrUnavailable
}

// set publishes c, or why there is none.
func (s *shared) set(c *sharedConn, why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conn.Store(c)
	s.why = why
	close(s.change)
	s.change = make(chan struct{})
}

// connected returns a connection that is not bad. It waits for one while nobody knows
// why there is none, and, where wait is set, until deadline.
func (s *shared) connected(ctx context.Context, deadline uint64, bad *sharedConn, wait bool) (*sharedConn, error) {
	if c := s.conn.Load(); c != nil && c != bad {
		return c, nil
	}
	t := time.NewTimer(time.Duration(deadline - min(shm.Now(), deadline)))
	defer t.Stop()
	for {
		s.mu.Lock()
		c, why, change := s.conn.Load(), s.why, s.change
		s.mu.Unlock()
		switch {
		case c != nil && c != bad:
			return c, nil
		case why == errClosed, lookup.KindOf(why) == ErrDenied, why != nil && !wait:
			return nil, why
		}
		select {
		case <-change:
		case <-ctx.Done():
			return nil, lookup.OfContext(ctx)
		case <-t.C:
			if why == nil {
				why = lookup.Refuse(ErrUnavailable, "the host closed the connection")
			}
			return nil, lookup.Refuse(ErrUnavailable, "no connection within the time given: %v", why)
		}
	}
}

// deadline returns until when a call may take, by the clock of package shm.
func (s *shared) deadline(ctx context.Context) uint64 {
	left := s.o.Timeout
	if d, ok := ctx.Deadline(); ok {
		left = max(time.Until(d), 0)
	}
	return shm.Now() + uint64(left)
}

// Workers implements [lookup.Index].
func (s *shared) Workers(ctx context.Context, f lookup.Filter) ([]lookup.Worker, error) {
	if err := f.Check(); err != nil { // JSON would make something else of it
		return nil, err
	}
	ctx, cancel := s.o.bounded(ctx)
	defer cancel()
	deadline := s.deadline(ctx)
	var bad *sharedConn
	for wait := s.o.Wait; ; wait = true {
		c, err := s.connected(ctx, deadline, bad, wait)
		if err != nil {
			return nil, err
		}
		var ws []lookup.Worker
		err = c.ask(ctx, f, false, func(u *lookup.Update) error { ws = u.Workers; return nil })
		if isGone(err) {
			bad = c
			continue
		}
		if err != nil {
			return nil, askError(ctx, err)
		}
		if ws == nil {
			ws = []lookup.Worker{}
		}
		return ws, nil
	}
}

// Watch implements [lookup.Index], but that it ends with the connection.
func (s *shared) Watch(ctx context.Context, f lookup.Filter, fn func(*lookup.Update) error) error {
	if err := f.Check(); err != nil {
		return err
	}
	c, err := s.connected(ctx, s.deadline(ctx), nil, s.o.Wait)
	if err != nil {
		return err
	}
	return askError(ctx, c.ask(ctx, f, true, fn))
}

// ask asks for workers over the socket.
func (c *sharedConn) ask(ctx context.Context, f lookup.Filter, watch bool, fn func(*lookup.Update) error) error {
	q, err := json.Marshal(shm.WorkersQuestion{Watch: watch, Model: f.Model, Group: f.Group, Tenant: f.Tenant})
	if err != nil {
		return err
	}
	return c.client.Ask(ctx, q, func(part []byte) error {
		u := &lookup.Update{}
		if err := json.Unmarshal(part, u); err != nil {
			return lookup.Refuse(ErrUnavailable, "the host's answer cannot be read: %v", err)
		}
		return fn(u)
	})
}

// Loads implements [lookup.Index], but that it ends with the connection.
func (s *shared) Loads(ctx context.Context, f lookup.Filter, fn func(*lookup.LoadUpdate) error) error {
	if err := f.Check(); err != nil {
		return err
	}
	c, err := s.connected(ctx, s.deadline(ctx), nil, s.o.Wait)
	if err != nil {
		return err
	}
	q, err := json.Marshal(shm.WorkersQuestion{Loads: true, Model: f.Model, Group: f.Group, Tenant: f.Tenant})
	if err != nil {
		return err
	}
	var dec lookuppb.LoadDecoder
	return askError(ctx, c.client.Ask(ctx, q, func(part []byte) error {
		u, err := dec.Parse(part)
		if err != nil || u == nil {
			return err
		}
		return fn(u)
	}))
}

// isGone reports whether the connection, and nothing else, ended a call.
func isGone(err error) bool { return errors.Is(err, shm.ErrGone) || errors.Is(err, shm.ErrLeaving) }

// askError is err as callers see it.
func askError(ctx context.Context, err error) error {
	said := (*shm.AnsweredError)(nil)
	switch {
	case errors.As(err, &said):
		if kinds := lookup.Kinds(); said.Kind >= 1 && said.Kind <= len(kinds) {
			return lookup.Refuse(kinds[said.Kind-1], "%s", said.Text)
		}
		return errors.New(said.Text)
	case isGone(err), errors.Is(err, shm.ErrBehind): // for a watch: it begins again with a whole table
		return lookup.Refuse(ErrUnavailable, "%v", err)
	case ctx.Err() != nil && errors.Is(err, ctx.Err()):
		return lookup.OfContext(ctx)
	}
	return err
}

// Close implements [lookup.Index].
func (s *shared) Close() error {
	s.end()
	<-s.ended
	return nil
}
