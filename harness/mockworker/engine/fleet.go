// SPDX-License-Identifier: Apache-2.0

// Before: the fronts, which have a request. After: engine.go; journal.go remembers.

package engine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Fleet is some engines in one process, alike but for their addresses: those of
// worker i are those of the config with i added to each port.
//
// Concurrency: any goroutine.
type Fleet struct {
	workers []*Worker
	journal *journal
	burner  burner
}

// Worker is one engine of a fleet, with its fronts.
//
// Concurrency: any goroutine.
type Worker struct {
	Name   string // w0, w1, ...
	Engine *Engine

	fleet  *Fleet
	http   *HTTPFront // nil: none
	grpc   *Front     // nil: none
	events events
	faults faults
	first  histogram

	mu   sync.Mutex
	runs map[string][]*Entry // by the engine's id, oldest first: an id may be used again before its end is told; guarded by mu
}

// OpenFleet starts n engines and their fronts.
//
// Errors: what [Config.Validate] says of one of them, or a socket that cannot be
// bound.
func OpenFleet(c Config, n int) (*Fleet, error) {
	f := &Fleet{journal: newJournal(maxJournal)}
	c.setDefaults()
	for i := range n {
		w, err := f.open(c, i)
		if err != nil {
			f.Close()
			return nil, err
		}
		f.workers = append(f.workers, w)
	}
	for _, w := range f.workers { // whoever asks one asks of all
		if err := w.serve(); err != nil {
			f.Close()
			return nil, err
		}
	}
	return f, nil
}

// open starts worker i, which nobody can ask yet.
func (f *Fleet) open(c Config, i int) (*Worker, error) {
	c, err := c.worker(i)
	if err != nil {
		return nil, err
	}
	if c.GRPC != "" && c.Replay == "" {
		c.Replay = "tcp://127.0.0.1:0" // whoever subscribes there is owed what was before
	}
	w := &Worker{Name: "w" + strconv.Itoa(i), fleet: f, runs: make(map[string][]*Entry)}
	told := c.Ended
	c.Ended = func(s Stats) {
		w.ended(&s)
		if told != nil {
			told(s)
		}
	}
	if w.Engine, err = New(c); err != nil {
		return nil, err
	}
	w.faults.init(w)
	w.events.worker = w
	return w, nil
}

// serve opens the worker's fronts.
func (w *Worker) serve() (err error) {
	c := &w.Engine.cfg
	if c.GRPC != "" {
		w.grpc, err = openFront(w, c.GRPC)
	}
	if err == nil && c.HTTP != "" {
		w.http, err = openHTTP(w, c.HTTP)
	}
	return err
}

// worker returns the config of worker i, whose ports are further up.
func (c Config) worker(i int) (Config, error) {
	var err error
	for _, e := range []struct {
		flag string
		at   *string
		up   int
	}{{"--pub", &c.Pub, i * c.Ranks}, {"--replay", &c.Replay, i * c.Ranks}, {"--load-pub", &c.LoadPub, i * c.Ranks}} {
		if *e.at == "" || *e.at == LoadAuto || i == 0 {
			continue
		}
		if *e.at, err = Endpoint(*e.at, e.up); err != nil {
			return c, fmt.Errorf("%s: %w", e.flag, err)
		}
	}
	for _, e := range []struct {
		flag string
		at   *string
	}{{"--http", &c.HTTP}, {"--grpc", &c.GRPC}} {
		if *e.at == "" || i == 0 {
			continue
		}
		host, port, err := net.SplitHostPort(*e.at)
		n, perr := strconv.ParseUint(port, 10, 16)
		if err = errors.Join(err, perr); err != nil {
			return c, fmt.Errorf("%s %q: must be host:port", e.flag, *e.at)
		}
		if n > 0 {
			n += uint64(i)
		}
		if n > 65_535 {
			return c, fmt.Errorf("%s %q: worker %d would be at port %d, past 65535", e.flag, *e.at, i, n)
		}
		*e.at = net.JoinHostPort(host, strconv.FormatUint(n, 10))
	}
	return c, nil
}

// Close ends every request and the sockets.
func (f *Fleet) Close() {
	for _, w := range f.workers {
		w.close()
	}
}

func (w *Worker) close() {
	w.faults.clear()
	if w.http != nil {
		w.http.Close()
	}
	if w.grpc != nil {
		w.grpc.Close()
	}
	w.events.close()
	w.Engine.Close()
}

// Workers returns the fleet's workers, in order.
func (f *Fleet) Workers() []*Worker { return f.workers }

// Worker returns the worker of a name: w0, or one of its ports as http:8000 or
// grpc:50051. Nil: there is none.
func (f *Fleet) Worker(name string) *Worker {
	kind, port, ok := strings.Cut(name, ":")
	for _, w := range f.workers {
		switch {
		case w.Name == name,
			ok && kind == "http" && w.http != nil && strings.HasSuffix(w.http.Addr, ":"+port),
			ok && kind == "grpc" && w.grpc != nil && strings.HasSuffix(w.grpc.Addr, ":"+port):
			return w
		}
	}
	return nil
}

// HTTP returns the host:port of the worker's OpenAI front; "": none.
func (w *Worker) HTTP() string {
	if w.http == nil {
		return ""
	}
	return w.http.Addr
}

// GRPC returns the host:port of the worker's gRPC front; "": none.
func (w *Worker) GRPC() string {
	if w.grpc == nil {
		return ""
	}
	return w.grpc.Addr
}

// Reset forgets all requests that ended, and empties the caches, as
// [Engine.Reset] does.
func (f *Fleet) Reset() bool {
	all := true
	for _, w := range f.workers {
		all = w.Engine.Reset() && all
	}
	f.journal.forget()
	return all
}

// origin is what a front knows of a request beyond what its engine needs.
type origin struct {
	id     string // as the client is told
	client string // as the client told
	model  string
}

// submit begins a request; see [Engine.Submit]. It is remembered, with what the
// best worker would have found cached of it now.
func (w *Worker) submit(q Request, t origin) (<-chan Output, *Entry, error) {
	if q.Prompt == nil {
		q.Prompt = w.Engine.PromptOf(&q)
	}
	e := &Entry{
		ID: t.id, ClientID: t.client, Model: t.model, Worker: w.Name, Arrived: unix(time.Now()), Rank: q.Rank,
		Prompt: len(q.Tokens), Best: w.fleet.best(&q),
	}
	w.fleet.journal.add(e)
	w.mu.Lock()
	w.runs[q.ID] = append(w.runs[q.ID], e)
	w.mu.Unlock()
	out, err := w.Engine.Submit(q)
	if err != nil {
		w.forget(q.ID, true)
		w.fleet.journal.change(e, func(e *Entry) { e.Finish, e.Ended, e.Error = failed, unix(time.Now()), err.Error() })
		return nil, nil, err
	}
	w.faults.arrived()
	return out, e, nil
}

// best returns how many tokens of a request's prompt the best rank of the fleet would
// not compute again.
func (f *Fleet) best(q *Request) int {
	most := 0
	for _, w := range f.workers {
		p := q.Prompt
		if !p.fits(&w.Engine.cfg, len(q.Tokens)) {
			p = w.Engine.PromptOf(q)
		}
		for _, r := range w.Engine.ReuseOf(p) {
			most = max(most, r.Used*w.Engine.cfg.BlockSize)
		}
	}
	return most
}

// forget takes the oldest request of an id out of those that run, or the newest.
func (w *Worker) forget(id string, newest bool) *Entry {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := w.runs[id]
	if len(all) == 0 {
		return nil
	}
	i := 0
	if newest {
		i = len(all) - 1
	}
	e := all[i]
	if len(all) == 1 {
		delete(w.runs, id)
	} else {
		w.runs[id] = slices.Delete(all, i, i+1)
	}
	return e
}

// ended notes what became of a request.
func (w *Worker) ended(s *Stats) {
	if e := w.forget(s.ID, false); e != nil {
		w.fleet.journal.change(e, func(e *Entry) { e.end(s) })
	}
	if !s.FirstToken.IsZero() {
		w.first.add(s.Rank, s.FirstToken.Sub(s.Arrived).Seconds())
	}
}

// failed is how a request ended that was not taken.
const failed = "error"

// errMatched ends an answer whose text has what a client wants to stop at.
var errMatched = errors.New("a stop text came")

// run is a request that an engine has.
//
// Concurrency: one goroutine.
type run struct {
	worker *Worker
	id     string // the engine's
	entry  *Entry
	out    <-chan Output
}

// begin begins a request, or fails it where that was asked for.
//
// Errors: a [faultError], what [Engine.Submit] says.
func (w *Worker) begin(q Request, t origin) (*run, error) {
	if q.ID == "" {
		q.ID = fmt.Sprintf("unnamed-%d", w.Engine.named.Add(1))
	}
	if t.id == "" {
		t.id = q.ID
	}
	if t.model == "" {
		t.model = w.Engine.cfg.Model
	}
	if err := w.faults.fail(); err != nil {
		return nil, err
	}
	out, e, err := w.submit(q, t)
	if err != nil {
		return nil, err
	}
	return &run{w, q.ID, e, out}, nil
}

// follow hands each output on. A client that goes away, or an error of each, aborts
// the request.
//
// Errors: ctx's, what each says.
func (r *run) follow(ctx context.Context, each func(Output) error) error {
	for {
		select {
		case o, more := <-r.out:
			if !more {
				return nil
			}
			err := r.worker.faults.stalled(ctx, o.Generated)
			if err == nil {
				err = each(o)
			}
			switch {
			case errors.Is(err, errMatched):
				r.worker.fleet.journal.change(r.entry, func(e *Entry) { e.Finish = stopped })
				r.abort()
				return nil
			case err != nil:
				r.abort()
				return err
			}
		case <-ctx.Done():
			r.abort()
			return ctx.Err()
		}
	}
}

func (r *run) abort() { r.worker.Engine.Abort(r.id) }

// answer runs a request n times side by side, once where n is 0, and hands each output
// on, one at a time, with the number of its choice and all its tokens so far; see begin
// and follow. Of several choices each is known by the request's id and its own number.
func (w *Worker) answer(ctx context.Context, q Request, n uint32, each func(choice uint32, o Output, tokens []uint32) error) error {
	if n > maxChoices {
		return fmt.Errorf("n: must be at most %d, got %d", maxChoices, n)
	}
	runs := make([]*run, max(n, 1))
	for i := range runs {
		one := q
		if len(runs) > 1 && q.ID != "" {
			one.ID = fmt.Sprintf("%s-%d", q.ID, i)
		}
		var err error
		if runs[i], err = w.begin(one, origin{}); err != nil {
			for _, r := range runs[:i] {
				r.abort()
			}
			return err
		}
	}
	var mu sync.Mutex
	return sideBySide(ctx, len(runs), func(ctx context.Context, i int) error {
		var tokens []uint32
		return runs[i].follow(ctx, func(o Output) error {
			if o.Finish != aborted {
				tokens = append(tokens, o.Token)
			}
			mu.Lock()
			defer mu.Unlock()
			return each(uint32(i), o, tokens)
		})
	})
}

// sideBySide calls do for each number below n at once and waits for all. The first that
// fails ends the others' context.
func sideBySide(ctx context.Context, n int, do func(ctx context.Context, i int) error) error {
	if n == 1 {
		return do(ctx, 0)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	errs := make([]error, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			if errs[i] = do(ctx, i); errs[i] != nil {
				cancel()
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}
