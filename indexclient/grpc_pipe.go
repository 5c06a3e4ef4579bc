// SPDX-License-Identifier: Apache-2.0

// Before: grpcHost. After: one stream of the host's gRPC server, anew where it
// breaks.

package indexclient

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"

	"kindex/internal/lookup"
	"kindex/internal/lookuppb"
	kindexv1 "kindex/proto/kindex/v1"
)

// queueLength is how many encoded queries may wait for the transport.
const queueLength = 128

// pipe carries lookups over one stream, many at a time.
//
// Concurrency: any goroutine.
type pipe struct {
	host  *grpcHost
	ctx   context.Context // ends with the client
	end   context.CancelFunc
	id    atomic.Uint64
	calls sync.Pool // *pipedCall

	mu      sync.Mutex
	flow    *flow    // nil or broken: one is opened
	opening *opening // nil: nobody opens one
}

// opening is a stream that is being opened.
type opening struct {
	done chan struct{}
	flow *flow
	err  error
}

// flow is one stream. A goroutine sends, another receives.
type flow struct {
	stream grpc.ClientStream
	cancel context.CancelFunc
	queue  chan *pipedCall
	broken chan struct{} // closed with err set

	mu      sync.Mutex
	err     error
	waiting map[uint64]*pipedCall
}

// pipedCall is one lookup. Who gave up on it leaves it to the goroutines.
type pipedCall struct {
	id       uint64
	request  lookuppb.Raw
	response lookuppb.Response
	done     chan error  // one is sent, unless the caller took it out
	sent     atomic.Bool // the sender is done with request
}

// brokenError is the end of a stream to a lookup that was under way on it.
type brokenError struct{ error }

func newPipe(h *grpcHost) *pipe {
	p := &pipe{host: h}
	p.ctx, p.end = context.WithCancel(context.Background())
	p.calls.New = func() any { return &pipedCall{done: make(chan error, 1)} }
	return p
}

func (p *pipe) close() { p.end() }

// lookup asks over the stream.
func (p *pipe) lookup(ctx context.Context, q *lookup.Query, a *lookup.Answer) error {
	f, err := p.get(ctx)
	if err != nil {
		return err
	}
	c, ok := p.calls.Get().(*pipedCall)
	if !ok {
		panic("BUG: indexclient: the pool holds something else than calls")
	}
	c.id = p.id.Add(1)
	c.sent.Store(false)
	c.request.Bytes = lookuppb.AppendStreamRequest(c.request.Bytes[:0], c.id, q)
	if err := f.add(c); err != nil {
		return err
	}
	select {
	case f.queue <- c:
	case <-f.broken: // c gets the error, too
	case <-ctx.Done():
		f.remove(c.id)
		return lookup.OfContext(ctx)
	}
	select {
	case err = <-c.done:
	case <-ctx.Done():
		f.remove(c.id)
		return lookup.OfContext(ctx)
	}
	if err != nil {
		return err // the sender may still have c
	}
	if c.response.Refused {
		err = lookuppb.Refusal(c.response.Kind, c.response.Text)
	} else {
		err = c.response.Give(a)
	}
	if cap(c.request.Bytes) <= maxKept && c.sent.Load() { // always, unless the host answers what it was not asked
		p.calls.Put(c)
	}
	return err
}

// get returns the stream, opened if need be.
func (p *pipe) get(ctx context.Context) (*flow, error) {
	p.mu.Lock()
	if p.flow != nil {
		select {
		case <-p.flow.broken:
			p.flow = nil
		default:
			f := p.flow
			p.mu.Unlock()
			return f, nil
		}
	}
	o := p.opening
	if o == nil {
		o = &opening{done: make(chan struct{})}
		p.opening = o
		go p.open(o)
	}
	p.mu.Unlock()
	select {
	case <-o.done:
		return o.flow, o.err
	case <-ctx.Done():
		return nil, lookup.OfContext(ctx)
	}
}

var lookupStream = grpc.StreamDesc{StreamName: "LookupStream", ClientStreams: true, ServerStreams: true}

// open opens a stream for whoever waits for o.
func (p *pipe) open(o *opening) {
	ctx, cancel := context.WithCancel(p.ctx)
	stream, err := p.host.conn.NewStream(ctx, &lookupStream, kindexv1.IndexService_LookupStream_FullMethodName)
	if err != nil {
		cancel()
		o.err = p.fault(err)
	} else {
		o.flow = &flow{
			stream: stream, cancel: cancel, queue: make(chan *pipedCall, queueLength),
			broken: make(chan struct{}), waiting: map[uint64]*pipedCall{},
		}
		go o.flow.send()
		go o.flow.receive(p)
	}
	p.mu.Lock()
	p.flow, p.opening = o.flow, nil
	p.mu.Unlock()
	close(o.done)
}

// fault returns what a stream's err says to those who used it.
func (p *pipe) fault(err error) error {
	if p.ctx.Err() != nil {
		return errClosed
	}
	if errors.Is(err, io.EOF) {
		return lookup.Refuse(ErrUnavailable, "the host ended the stream of lookups")
	}
	return p.host.fault(context.Background(), err)
}

// add makes c wait for its answer.
func (f *flow) add(c *pipedCall) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return &brokenError{f.err}
	}
	f.waiting[c.id] = c
	return nil
}

// remove takes out a call, nil where there is none.
func (f *flow) remove(id uint64) *pipedCall {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.waiting[id]
	delete(f.waiting, id)
	return c
}

func (f *flow) send() {
	for {
		select {
		case c := <-f.queue:
			if f.stream.SendMsg(&c.request) != nil {
				return // the receiver learns why
			}
			c.sent.Store(true)
		case <-f.broken:
			return
		}
	}
}

func (f *flow) receive(p *pipe) {
	var raw lookuppb.Raw
	for {
		if err := f.stream.RecvMsg(&raw); err != nil {
			f.fail(p.fault(err))
			return
		}
		c := f.remove(lookuppb.ResponseID(raw.Bytes))
		if c == nil {
			continue // its caller has gone
		}
		c.done <- c.response.DecodeStream(raw.Bytes, &p.host.names)
	}
}

// fail ends f, and with it all that wait.
func (f *flow) fail(err error) {
	f.mu.Lock()
	f.err = err
	waiting := f.waiting
	f.waiting = nil
	f.mu.Unlock()
	close(f.broken)
	f.cancel()
	for _, c := range waiting {
		c.done <- &brokenError{err}
	}
}
