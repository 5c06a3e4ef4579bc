// SPDX-License-Identifier: Apache-2.0

// Before: measure.go, trial by trial. After: a host, by one of the ways into it.

package lookupbench

import (
	"context"
	"slices"
	"strings"
	"time"

	"kindex/indexclient"
	"kindex/internal/lookup"
	"kindex/numa"
)

// clientSpin is how long a pinned client looks for its answer before it sleeps: as the
// host's thread does.
const clientSpin = 50 * time.Microsecond

// asker asks one question after the other. It is one goroutine's.
type asker interface {
	ask(question int) error // what is timed
	took(question int)      // what follows
	judge() (wrong int64)   // after the trial: of all answers since the last call
	close()
}

// arm is one way of asking one host.
type arm struct {
	name   string
	host   *host
	askers []asker
	pin    []int // CPUs of the askers; none: anywhere
	beside func() (stop func())
	close  func()
}

// structAsker asks a client of package indexclient.
type structAsker struct {
	client    lookup.Index
	questions []question
	answer    lookup.Answer
	wrong     int64
}

func (a *structAsker) ask(i int) error {
	return a.client.Lookup(context.Background(), &a.questions[i].query, &a.answer)
}

func (a *structAsker) took(i int) {
	if !slices.Equal(a.answer.Matches, a.questions[i].want) {
		a.wrong++
	}
}

func (a *structAsker) judge() (wrong int64) {
	wrong, a.wrong = a.wrong, 0
	return wrong
}

func (a *structAsker) close() {}

// openArm connects an arm.
func openArm(ctx context.Context, name string, h *hosts, o *Options, qs []question) (*arm, error) {
	a := &arm{name: name, host: *h.hostOf(name), close: func() {}}
	n := 1
	switch name {
	case ArmWord:
		w := &wordAsker{}
		a.askers, a.pin, a.beside = []asker{w}, []int{h.cpus[1]}, func() func() { return w.echo(h.cpus[0]) }
		return a, nil
	case ArmStreamMany:
		n = o.InFlight
	case ArmHashMany, ArmDynamoMany:
		n = o.Connections
	}
	if strings.HasPrefix(name, "http-") || strings.HasPrefix(name, "dynamo-") {
		for range n {
			a.askers = append(a.askers, newHTTPAsker(a.host.http, strings.HasSuffix(name, "-tokens"), qs))
		}
		return a, nil
	}
	client, err := openClient(ctx, name, a.host)
	if err != nil {
		return nil, err
	}
	a.close = func() { _ = client.Close() }
	for range n {
		a.askers = append(a.askers, &structAsker{client: client, questions: qs})
	}
	if name == ArmShmPinned {
		a.pin = []int{h.cpus[1]}
	}
	return a, nil
}

// openClient connects a client to x as the arm says.
func openClient(ctx context.Context, name string, x *host) (indexclient.Client, error) {
	options := indexclient.Options{Timeout: httpTime, Wait: true, SharedSpin: -1}
	switch name {
	case ArmProcess:
		return indexclient.InProcess(x.index), nil
	case ArmShmPinned:
		options.SharedSpin = clientSpin
		return indexclient.Dial(ctx, "unix:"+x.socket, options)
	case ArmShm:
		return indexclient.Dial(ctx, "unix:"+x.socket, options)
	default:
		options.Unary = name == ArmUnary
		return indexclient.Dial(ctx, x.grpc, options)
	}
}

func (a *arm) end() {
	for _, k := range a.askers {
		k.close()
	}
	a.close()
}

// run asks with all askers for d and returns each round trip, in nanoseconds, in the
// slices of into, one an asker.
func (a *arm) run(ctx context.Context, d time.Duration, questions int, into [][]uint32) error {
	if a.beside != nil {
		defer a.beside()()
	}
	failed := make(chan error, len(a.askers))
	for i, k := range a.askers {
		go func() {
			var err error
			into[i], err = a.loop(ctx, k, d, i*questions/len(a.askers), questions, into[i][:0])
			failed <- err
		}()
	}
	var first error
	for range a.askers {
		if err := <-failed; first == nil {
			first = err
		}
	}
	return first
}

// loop is one asker's work.
func (a *arm) loop(ctx context.Context, k asker, d time.Duration, from, questions int, times []uint32) ([]uint32, error) {
	if len(a.pin) > 0 {
		unpin, err := numa.LockAndPin(a.pin)
		if err != nil {
			return times, err
		}
		defer unpin()
	}
	begun := time.Now()
	for q := from; ; q++ {
		if q >= questions {
			q = 0
		}
		before := time.Since(begun)
		if before >= d {
			return times, ctx.Err()
		}
		if err := k.ask(q); err != nil {
			return times, err
		}
		times = append(times, uint32(min(time.Since(begun)-before, time.Second)))
		k.took(q)
	}
}
