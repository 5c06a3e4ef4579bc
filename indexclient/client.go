// SPDX-License-Identifier: Apache-2.0

// Before: a gateway, or another program that asks. After: one host, or several.

package indexclient

import (
	"context"
	"crypto/tls"
	"math/rand/v2"
	"time"

	"kindex/internal/lookup"
)

// The question and the answer, as package lookup of this module defines them.
type (
	// Client answers lookups, whatever is behind it.
	Client = lookup.Index
	// Query asks who holds how much of one prompt.
	Query = lookup.Query
	// Answer says who holds how much of it.
	Answer = lookup.Answer
	// Match is one (instance, rank) of an answer.
	Match = lookup.Match
	// Filter chooses workers.
	Filter = lookup.Filter
	// Worker is one registered instance of one model.
	Worker = lookup.Worker
	// WorkerName tells a worker from all others of a host.
	WorkerName = lookup.WorkerName
	// Rank is one stream of a worker.
	Rank = lookup.Rank
	// Update is one step of a watch.
	Update = lookup.Update
	// Load is how one rank stands.
	Load = lookup.Load
	// LoadName tells a rank from all others of a host.
	LoadName = lookup.LoadName
	// LoadRecord is what an engine said of its load.
	LoadRecord = lookup.LoadRecord
	// LoadUpdate is one step of [Client].Loads.
	LoadUpdate = lookup.LoadUpdate
)

// Kinds of errors; errors.Is tells them apart.
var (
	ErrInvalid     = lookup.ErrInvalid
	ErrNotFound    = lookup.ErrNotFound
	ErrConflict    = lookup.ErrConflict
	ErrUnavailable = lookup.ErrUnavailable
	ErrDenied      = lookup.ErrDenied
	ErrDeadline    = lookup.ErrDeadline
)

// Options say how hosts are asked. The zero value is good on one's own network.
type Options struct {
	// Timeout bounds a call whose context has no deadline of its own. 0: 1 s.
	Timeout time.Duration
	// Wait: a call goes on, within its time, where no host can be reached. Without it
	// such a call fails at once, or where there are replicas after one more try, so that
	// the caller can do without the index.
	Wait bool

	// Partial: a lookup over several parts leaves those out that fail, and names them
	// in Answer.Missing. Without it their errors are the lookup's. A part that fails
	// several in a row is left out unasked, while another one is not, for RetryDelay and
	// up to RetryMax each time; then the client itself asks whether it answers again.
	Partial bool
	// HedgeAfter asks a second replica, too, where the first has not answered by then;
	// the answer that comes first is taken and the other call cancelled. 0: never.
	HedgeAfter time.Duration
	// RetryDelay is how long a replica that failed is not asked while there is
	// another; it doubles with each failure up to RetryMax, and then one call tries.
	// 0: 100 ms and 5 s. Connections are made again at the same pace.
	RetryDelay, RetryMax time.Duration

	// SharedSpin is how long a caller over shared memory looks for its answer before it
	// sleeps, where the host's threads do so, too. 0: 50 us where there are 4 cores or
	// more, else not at all. Negative: not at all.
	SharedSpin time.Duration

	// Unary makes each lookup over gRPC a call of its own. Without it lookups share one
	// stream a host, many at a time, which costs less.
	Unary bool
	// TLS is for connections over gRPC; nil: none. Where a server name is wanted other
	// than the target's, it is TLS.ServerName.
	TLS *tls.Config
	// Token returns the bearer token for a call over gRPC; nil: none. Any goroutine
	// may call it.
	Token func() (string, error)
	// MaxMessage bounds an answer over gRPC, bytes. 0: 64 MiB.
	MaxMessage int
	// Silence is how long a connection over gRPC may give no sign of life. 0: 20 s.
	Silence time.Duration
}

// withDefaults returns o with what is 0 set.
func (o Options) withDefaults() Options {
	set := func(p *time.Duration, d time.Duration) {
		if *p == 0 {
			*p = d
		}
	}
	set(&o.Timeout, time.Second)
	set(&o.RetryDelay, 100*time.Millisecond)
	set(&o.RetryMax, 5*time.Second)
	set(&o.Silence, 20*time.Second)
	if o.MaxMessage == 0 {
		o.MaxMessage = 64 << 20
	}
	return o
}

// bounded is ctx with the options' timeout where it has no deadline.
func (o *Options) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, o.Timeout)
}

// delay is how long whoever failed is left alone, who had failed so often before.
func (o *Options) delay(failures int) time.Duration {
	d := o.RetryMax
	if n := min(failures, 20); o.RetryDelay < d>>n {
		d = o.RetryDelay << n
	}
	return time.Duration(float64(d) * (0.75 + rand.Float64()/2))
}

// InProcess returns a client of idx, which stays its owner's: closing the client
// does not close it.
func InProcess(idx lookup.Index) Client { return inProcess{idx} }

type inProcess struct{ lookup.Index }

// Close implements [Client].
func (inProcess) Close() error { return nil }

// Dial returns a client of target, in the form that the package describes.
// Connections are made behind it and again when they break.
//
// Errors: ErrInvalid for a target or options that can never work. That a host is
// not there is no error of Dial: calls say so.
func Dial(ctx context.Context, target string, o Options) (Client, error) {
	parts, err := parseTarget(target)
	if err != nil {
		return nil, err
	}
	if err := o.check(); err != nil {
		return nil, err
	}
	o = o.withDefaults()
	sets := make([]*replicas, 0, len(parts))
	for _, names := range parts {
		set := &replicas{o: &o}
		sets = append(sets, set)
		for _, name := range names {
			h, err := dialHost(ctx, name, &o)
			if err != nil {
				for _, s := range sets {
					_ = s.Close() // nothing was asked of it
				}
				return nil, err
			}
			set.add(name, h)
		}
	}
	if len(sets) == 1 {
		return sets[0], nil
	}
	return newUnion(sets, &o), nil
}

// check returns what is wrong with o.
func (o *Options) check() error {
	for _, d := range [...]struct {
		name string
		span time.Duration
	}{{"Timeout", o.Timeout}, {"HedgeAfter", o.HedgeAfter}, {"RetryDelay", o.RetryDelay}, {"RetryMax", o.RetryMax}, {"Silence", o.Silence}} {
		if d.span < 0 {
			return lookup.Refuse(ErrInvalid, "%s: must not be negative", d.name)
		}
	}
	if o.MaxMessage < 0 {
		return lookup.Refuse(ErrInvalid, "MaxMessage: must not be negative")
	}
	return nil
}
