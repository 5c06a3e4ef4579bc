// SPDX-License-Identifier: Apache-2.0

package indexclient

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"kindex/internal/lookup"
)

// fakeHost answers as it is told.
type fakeHost struct {
	matches []lookup.Match
	size    int
	err     error
	silent  atomic.Bool // until the call's end
	calls   atomic.Int64
	ended   atomic.Int64 // calls that their contexts ended
	updates chan *lookup.Update
}

func (f *fakeHost) Lookup(ctx context.Context, q *lookup.Query, a *lookup.Answer) error {
	a.Reset()
	f.calls.Add(1)
	if f.silent.Load() {
		<-ctx.Done()
		f.ended.Add(1)
		return lookup.OfContext(ctx)
	}
	if f.err != nil {
		return f.err
	}
	a.BlockSize = f.size
	a.Matches = append(a.Matches, f.matches...)
	if q.Limit > 0 {
		a.Matches = a.Matches[:min(q.Limit, len(a.Matches))]
	}
	return nil
}

func (f *fakeHost) Workers(context.Context, lookup.Filter) ([]lookup.Worker, error) {
	if f.err != nil {
		return nil, f.err
	}
	ws := make([]lookup.Worker, 0, len(f.matches))
	for _, m := range f.matches {
		ws = append(ws, lookup.Worker{Instance: m.Instance})
	}
	return ws, nil
}

func (f *fakeHost) Watch(ctx context.Context, _ lookup.Filter, fn func(*lookup.Update) error) error {
	for {
		select {
		case <-ctx.Done():
			return lookup.OfContext(ctx)
		case u := <-f.updates:
			if u == nil {
				return lookup.Refuse(ErrUnavailable, "broken")
			}
			if err := fn(u); err != nil {
				return err
			}
		}
	}
}

func (f *fakeHost) Close() error { return nil }

func match(instance string, rank int, depth uint32) lookup.Match {
	return lookup.Match{Instance: instance, Rank: rank, Device: depth, Host: depth, Any: depth}
}

// set returns replicas of hosts that are called a, b, and so on from first.
func set(o *Options, first byte, hosts ...*fakeHost) *replicas {
	s := &replicas{o: o}
	for i, h := range hosts {
		h.updates = make(chan *lookup.Update)
		if h.size == 0 {
			h.size = 16
		}
		s.add(string(rune(int(first)+i)), h)
	}
	return s
}

var down = lookup.Refuse(ErrUnavailable, "not there")

// patient is long: no test waits for it.
func patient() *Options {
	o := Options{Timeout: time.Minute, RetryDelay: time.Hour, RetryMax: time.Hour}.withDefaults()
	return &o
}

func show(a *lookup.Answer) string {
	var b strings.Builder
	for _, m := range a.Matches {
		fmt.Fprintf(&b, "%s/%d:%d ", m.Instance, m.Rank, m.Any)
	}
	return fmt.Sprint(strings.TrimSpace(b.String()), " ", a.Missing, " ", a.Twice)
}

// TestUnion: exact and ordered as one; what a part does not know it holds nothing
// of; a rank in two parts is told.
func TestUnion(t *testing.T) {
	a := &fakeHost{matches: []lookup.Match{match("1", 0, 9), match("1", 1, 5), match("3", 0, 5)}}
	b := &fakeHost{matches: []lookup.Match{match("2", 0, 12), match("2", 1, 5), match("4", 0, 1)}}
	o := patient()
	u := newUnion([]*replicas{set(o, 'a', a), set(o, 'b', b)}, o)
	var got lookup.Answer
	want := func(what, answer string, limit int) {
		t.Helper()
		if err := u.Lookup(t.Context(), &lookup.Query{Model: "m", Limit: limit}, &got); err != nil || show(&got) != answer || got.BlockSize != 16 {
			t.Errorf("%s: %s, %v, want %s", what, show(&got), err, answer)
		}
	}
	fails := func(what string, kind error, names ...string) {
		t.Helper()
		err := u.Lookup(t.Context(), &lookup.Query{Model: "m"}, &got)
		if !errors.Is(err, kind) || len(got.Matches) != 0 || got.BlockSize != 0 {
			t.Errorf("%s: %v, %+v, want %v", what, err, got, kind)
			return
		}
		for _, name := range names {
			if !strings.Contains(err.Error(), name) {
				t.Errorf("%s: %v does not name %s", what, err, name)
			}
		}
	}
	want("all", "2/0:12 1/0:9 1/1:5 3/0:5 2/1:5 4/0:1 [] 0", 0)
	want("the deepest", "2/0:12 1/0:9 1/1:5 [] 0", 3)
	b.matches = append(b.matches, match("1", 0, 7), match("3", 0, 6))
	slices.SortFunc(b.matches, func(x, y lookup.Match) int { return x.Compare(&y) })
	want("twice", "2/0:12 1/0:9 3/0:6 1/1:5 2/1:5 4/0:1 [] 2", 0)
	b.matches = b.matches[:1]
	b.err = lookup.Refuse(ErrNotFound, "model_name: none")
	want("one part knows it", "1/0:9 1/1:5 3/0:5 [] 0", 0)
	a.err = b.err
	fails("nobody knows it", ErrNotFound, "a: ")
	a.err, b.err = down, nil
	fails("one is down", ErrUnavailable, "a: not there")
	a.err, b.err = down, lookup.Refuse(ErrDenied, "no")
	fails("both fail", ErrDenied, "a: not there", "b: no")
	var host *HostError
	if err := u.Lookup(t.Context(), &lookup.Query{Model: "m"}, &got); !errors.As(err, &host) || host.Target != "a" || host.Kind != ErrUnavailable {
		t.Errorf("the error of a host: %+v", host)
	}
	o.Partial = true
	fails("partial, but none answers", ErrUnavailable)
	b.err = nil
	want("partial", "2/0:12 [a] 0", 0)
	b.err = lookup.Refuse(ErrInvalid, "limit: no")
	fails("a bad request", ErrInvalid, "limit: no")
	a.err, b.err, b.size = nil, nil, 32
	fails("two block sizes", ErrConflict, "block_size: a has 16", "b has 32")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	a.silent.Store(true)
	if err := u.Lookup(ended, &lookup.Query{Model: "m"}, &got); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	a.silent.Store(false)
	if ws, err := u.Workers(t.Context(), lookup.Filter{}); err != nil || len(ws) != 4 || ws[0].Instance != "1" || ws[3].Instance != "2" {
		t.Errorf("workers: %+v, %v", ws, err)
	}
}

// TestReplicas: the one that answers is asked on; one that fails is left alone, and
// tried again by one call when its time has come.
func TestReplicas(t *testing.T) {
	a, b, c := &fakeHost{matches: []lookup.Match{match("a", 0, 1)}}, &fakeHost{matches: []lookup.Match{match("b", 0, 1)}}, &fakeHost{matches: []lookup.Match{match("c", 0, 1)}}
	o := patient()
	s := set(o, 'a', a, b, c)
	var got lookup.Answer
	ask := func() (string, error) {
		err := s.Lookup(t.Context(), &lookup.Query{Model: "m"}, &got)
		return show(&got), err
	}
	want := func(what, answer string, calls ...int64) {
		t.Helper()
		if got, err := ask(); got != answer+"/0:1 [] 0" || err != nil {
			t.Errorf("%s: %s, %v, want %s", what, got, err, answer)
		}
		for i, h := range []*fakeHost{a, b, c} {
			if n := h.calls.Load(); n != calls[i] {
				t.Errorf("%s: host %d was asked %d times, want %d", what, i, n, calls[i])
			}
		}
	}
	want("the first", "a", 1, 0, 0)
	want("again", "a", 2, 0, 0)
	a.err = down
	want("a is down", "b", 3, 1, 0)
	want("b is asked on", "b", 3, 2, 0)
	a.err = nil
	want("also when a is back", "b", 3, 3, 0)
	b.err = down
	want("b is down, a still left alone", "c", 3, 4, 1)
	c.err = down
	s.hosts[0].until = time.Time{} // its time has come
	want("c is down, a is tried", "a", 4, 4, 2)
	want("and asked on", "a", 5, 4, 2)
	a.err = down
	if _, err := ask(); !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "a: not there") || !strings.Contains(err.Error(), "b: not there") || !strings.Contains(err.Error(), "c: not there") {
		t.Errorf("all are down: %v", err)
	}
	b.err = nil
	want("b is back: the last resort", "b", 8, 7, 4)
	b.err = lookup.Refuse(ErrInvalid, "limit: no")
	if _, err := ask(); !errors.Is(err, ErrInvalid) || b.calls.Load() != 8 || c.calls.Load() != 4 {
		t.Errorf("a bad request: %v, asked %d and %d times", err, b.calls.Load(), c.calls.Load())
	}
	b.err = nil
	b.silent.Store(true)
	c.err = nil
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := s.Lookup(ctx, &lookup.Query{Model: "m"}, &got); err != nil || show(&got) != "c/0:1 [] 0" || ctx.Err() != nil {
		t.Errorf("a silent replica: %s, %v, within its time: %v", show(&got), err, ctx.Err() == nil)
	}
}

// TestHedge: the second is asked when the first is silent, the first that answers
// wins, the other is cancelled and gone when the call returns.
func TestHedge(t *testing.T) {
	a, b := &fakeHost{matches: []lookup.Match{match("a", 0, 1)}}, &fakeHost{matches: []lookup.Match{match("b", 0, 1)}}
	o := patient()
	o.HedgeAfter = 5 * time.Millisecond
	s := set(o, 'a', a, b)
	var got lookup.Answer
	a.silent.Store(true)
	if err := s.Lookup(t.Context(), &lookup.Query{Model: "m"}, &got); err != nil || show(&got) != "b/0:1 [] 0" {
		t.Fatalf("%s, %v", show(&got), err)
	}
	if a.calls.Load() != 1 || a.ended.Load() != 1 {
		t.Errorf("the loser was asked %d times and has ended %d times", a.calls.Load(), a.ended.Load())
	}
	a.silent.Store(false)
	if err := s.Lookup(t.Context(), &lookup.Query{Model: "m"}, &got); err != nil || show(&got) != "b/0:1 [] 0" {
		t.Errorf("the winner is asked on: %s, %v", show(&got), err)
	}
	b.err = down
	if err := s.Lookup(t.Context(), &lookup.Query{Model: "m"}, &got); err != nil || show(&got) != "a/0:1 [] 0" {
		t.Errorf("one that fails needs no waiting: %s, %v", show(&got), err)
	}
	a.silent.Store(true)
	b.err = nil
	b.silent.Store(true)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	if err := s.Lookup(ctx, &lookup.Query{Model: "m"}, &got); !errors.Is(err, ErrDeadline) || len(got.Matches) != 0 {
		t.Errorf("both silent: %s, %v", show(&got), err)
	}
	if a.calls.Load() != a.ended.Load()+1 {
		t.Errorf("a was asked %d times, %d of which were ended", a.calls.Load(), a.ended.Load())
	}
}

// TestUnionWatch: one table of all parts, then what changes; a part that comes again
// makes it told anew.
func TestUnionWatch(t *testing.T) {
	a, b := &fakeHost{}, &fakeHost{}
	o := patient()
	o.RetryDelay, o.RetryMax = time.Millisecond, time.Millisecond
	u := newUnion([]*replicas{set(o, 'a', a), set(o, 'b', b)}, o)
	worker := func(id string) lookup.Worker { return lookup.Worker{Instance: id, Model: "m"} }
	ctx, cancel := context.WithCancel(t.Context())
	seen, ended := make(chan string, 16), make(chan error, 1)
	go func() {
		ended <- u.Watch(ctx, lookup.Filter{}, func(up *lookup.Update) error {
			text := fmt.Sprint(up.Version, " ", up.Whole)
			for _, w := range up.Workers {
				text += " +" + w.Instance
			}
			for _, n := range up.Gone {
				text += " -" + n.Instance
			}
			seen <- text
			return nil
		})
	}()
	want := func(text string) {
		t.Helper()
		select {
		case got := <-seen:
			if got != text {
				t.Errorf("told %q, want %q", got, text)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("not told %q", text)
		}
	}
	a.updates <- &lookup.Update{Whole: true, Workers: []lookup.Worker{worker("1"), worker("2")}}
	b.updates <- &lookup.Update{Whole: true, Workers: []lookup.Worker{worker("3")}}
	want("1 true +1 +2 +3")
	a.updates <- &lookup.Update{Workers: []lookup.Worker{worker("4")}, Gone: []lookup.WorkerName{{Instance: "1", Model: "m"}}}
	want("2 false +4 -1")
	b.updates <- nil // the connection breaks
	b.updates <- &lookup.Update{Whole: true, Workers: []lookup.Worker{worker("5")}}
	want("3 true +2 +4 +5")
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("ended with %v", err)
	}
}

// TestTargets: what can never work is refused, in one line.
func TestTargets(t *testing.T) {
	for target, form := range map[string]string{
		"":              "must be host:port",
		"a":             "must be host:port",
		"a:0":           "must be host:port",
		"a:99999":       "must be host:port",
		"a:1,":          "must be host:port",
		"http://a:1":    "must be host:port",
		"a:1|a:1":       "is given twice",
		"unix:relative": "unix:/path",
		"a:1,b:2,":      "must be host:port",
	} {
		c, err := Dial(t.Context(), target, Options{})
		if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), form) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %v, %v, want ...%s", target, c, err, form)
		}
	}
	var many []string
	for i := range maxHosts + 1 {
		many = append(many, fmt.Sprintf("h%d:1", i))
	}
	if _, err := Dial(t.Context(), strings.Join(many, ","), Options{}); !errors.Is(err, ErrInvalid) {
		t.Errorf("%d hosts: %v", len(many), err)
	}
	if _, err := Dial(t.Context(), "a:1", Options{HedgeAfter: -1}); !errors.Is(err, ErrInvalid) {
		t.Errorf("a negative option: %v", err)
	}
	parts, err := parseTarget("a:1|b:2, c:3")
	if err != nil || fmt.Sprint(parts) != "[[a:1 b:2] [c:3]]" {
		t.Errorf("%v, %v", parts, err)
	}
}

// Loads tells who holds what, and no more.
func (f *fakeHost) Loads(ctx context.Context, _ lookup.Filter, fn func(*lookup.LoadUpdate) error) error {
	if f.err != nil {
		return f.err
	}
	u := &lookup.LoadUpdate{Whole: true}
	for _, m := range f.matches {
		u.Loads = append(u.Loads, lookup.Load{LoadName: lookup.LoadName{Instance: m.Instance, Rank: m.Rank}, Held: uint64(m.Any)})
	}
	if err := fn(u); err != nil {
		return err
	}
	<-ctx.Done()
	return lookup.OfContext(ctx)
}
