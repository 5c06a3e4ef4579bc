// SPDX-License-Identifier: Apache-2.0

// Before: measure.go, in the process that measures. After: a gateway, or a worker.

package gatewaybench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"kindex/harness/trial"
)

// Order is one trial, as the client is told.
type Order struct {
	Addr  string        `json:"addr"` // host:port
	Kind  string        `json:"kind"`
	Conns int           `json:"conns"`
	Warm  time.Duration `json:"warm"`
	For   time.Duration `json:"for"`
	Seed  uint64        `json:"seed"`
	First uint64        `json:"first"` // number of the first request, where none comes twice
}

// Seen is what the client tells of a trial: once, empty, when it begins to count, and
// once at its end. Times are in nanoseconds.
type Seen struct {
	Counting bool           `json:"counting,omitempty"`
	Requests int            `json:"requests"` // answered while it counted
	Last     uint64         `json:"last"`     // number of the last request sent
	WallNS   int64          `json:"wall_ns"`  // that it counted for
	Total    *trial.Latency `json:"total"`    // from before a request's first byte to its answer's last
	First    *trial.Latency `json:"first"`    // to the first of its body
	Wrong    int            `json:"wrong"`    // faults and answers that are not the worker's, counting or not
	Why      string         `json:"why,omitempty"`
}

// answerTime bounds one answer.
const answerTime = 30 * time.Second

// ServeClient carries out orders, one a line, until in ends.
func ServeClient(ctx context.Context, in io.Reader, out io.Writer) error {
	lines, tell := json.NewDecoder(in), json.NewEncoder(out)
	for {
		var o Order
		if err := lines.Decode(&o); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		l := load{order: &o, requests: requests(o.Kind, o.Addr, o.Seed), answer: []byte(answer(o.Kind))}
		seen, err := l.run(ctx, func() error { return tell.Encode(Seen{Counting: true}) })
		if err != nil {
			return err
		}
		if err := tell.Encode(seen); err != nil {
			return err
		}
	}
}

// load is one trial.
type load struct {
	order    *Order
	requests [][]byte
	answer   []byte
	next     atomic.Uint64
	counting atomic.Bool
	over     atomic.Bool
	wrong    atomic.Int64
	why      atomic.Pointer[string]
}

// times are one connection's, of counted requests.
type times struct{ total, first []uint32 }

func (l *load) run(ctx context.Context, counting func() error) (*Seen, error) {
	o := l.order
	l.next.Store(o.First)
	all := make([]times, o.Conns)
	var conns sync.WaitGroup
	for i := range all {
		conns.Go(func() { l.connection(&all[i]) })
	}
	err := pause(ctx, o.Warm)
	began := time.Now()
	if err == nil {
		l.counting.Store(true)
		if err = counting(); err == nil {
			err = pause(ctx, o.For)
		}
	}
	l.over.Store(true)
	wall := time.Since(began)
	conns.Wait()
	if err != nil {
		return nil, err
	}
	var sum times
	for i := range all {
		sum.total, sum.first = append(sum.total, all[i].total...), append(sum.first, all[i].first...)
	}
	s := &Seen{
		Requests: len(sum.total), Last: l.next.Load(), WallNS: wall.Nanoseconds(), Total: trial.NewLatency(sum.total), First: trial.NewLatency(sum.first),
		Wrong: int(l.wrong.Load()),
	}
	if why := l.why.Load(); why != nil {
		s.Why = *why
	}
	return s, nil
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// maxWrong is how many faults end a connection's requests.
const maxWrong = 10

// connection sends one request after the other on one connection, a new one after a
// fault, until it is over.
func (l *load) connection(t *times) {
	var c net.Conn
	defer func() {
		if c != nil {
			_ = c.Close()
		}
	}()
	var in *bufio.Reader
	var own, body []byte
	for faults := 0; !l.over.Load() && faults < maxWrong; {
		if c == nil {
			dialed, err := net.DialTimeout("tcp", l.order.Addr, answerTime)
			if err != nil {
				l.fault(err)
				return
			}
			c, in = dialed, bufio.NewReaderSize(dialed, 64<<10)
		}
		n := l.next.Add(1) - 1
		request := l.requests[n%uint64(len(l.requests))]
		if l.order.Kind == Fresh {
			own = append(own[:0], request...)
			number(own, bytes.Index(own, []byte(serial))+1, n)
			request = own
		}
		began := time.Now()
		_ = c.SetDeadline(began.Add(answerTime))
		_, err := c.Write(request)
		var first time.Time
		if err == nil {
			first, body, err = read(in, body[:0])
		}
		now := time.Now()
		if err == nil && !bytes.Equal(body, l.answer) {
			err = fmt.Errorf("another body than the worker's: %.200q", body)
		}
		if err != nil {
			faults++
			l.fault(err)
			_ = c.Close()
			c = nil
			continue
		}
		if l.counting.Load() && !l.over.Load() {
			t.total, t.first = append(t.total, nanos(now.Sub(began))), append(t.first, nanos(first.Sub(began)))
		}
	}
}

func nanos(d time.Duration) uint32 { return uint32(min(d, 1<<32-1)) } //nolint:gosec // bounded

func (l *load) fault(err error) {
	l.wrong.Add(1)
	why := err.Error()
	l.why.CompareAndSwap(nil, &why)
}

// read reads one answer, its body behind into. It returns when the body's first byte
// was there.
func read(in *bufio.Reader, into []byte) (first time.Time, body []byte, err error) {
	line, err := in.ReadSlice('\n')
	if err != nil {
		return first, into, err
	}
	if len(line) < 12 || string(line[9:12]) != "200" {
		return first, into, fmt.Errorf("answered %.60q", bytes.TrimSpace(line))
	}
	length, chunked := -1, false
	for {
		if line, err = in.ReadSlice('\n'); err != nil {
			return first, into, err
		}
		name, value, ok := bytes.Cut(bytes.TrimSpace(line), []byte(":"))
		if len(name) == 0 {
			break
		}
		switch value = bytes.TrimSpace(value); {
		case !ok:
		case bytes.EqualFold(name, []byte("content-length")):
			length, err = strconv.Atoi(string(value))
		case bytes.EqualFold(name, []byte("transfer-encoding")):
			chunked = bytes.EqualFold(value, []byte("chunked"))
		}
		if err != nil {
			return first, into, err
		}
	}
	if !chunked {
		if length < 0 || length > 1<<20 {
			return first, into, fmt.Errorf("a body of %d bytes", length)
		}
		if _, err := in.Peek(min(length, 1)); err != nil {
			return first, into, err
		}
		first = time.Now()
		body, err = more(in, into, length)
		return first, body, err
	}
	return readChunks(in, into)
}

// readChunks reads a chunked body.
func readChunks(in *bufio.Reader, into []byte) (first time.Time, body []byte, err error) {
	for {
		line, err := in.ReadSlice('\n')
		if err != nil {
			return first, into, err
		}
		if first.IsZero() {
			first = time.Now()
		}
		n, err := strconv.ParseUint(string(bytes.TrimSpace(line)), 16, 20)
		if err != nil {
			return first, into, err
		}
		if into, err = more(in, into, int(n)); err != nil {
			return first, into, err
		}
		if _, err = in.Discard(len("\r\n")); err != nil || n == 0 {
			return first, into, err
		}
	}
}

// more appends the next n bytes of in.
func more(in *bufio.Reader, into []byte, n int) ([]byte, error) {
	at := len(into)
	into = append(into, make([]byte, n)...)
	_, err := io.ReadFull(in, into[at:])
	return into, err
}
