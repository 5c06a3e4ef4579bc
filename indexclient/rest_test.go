// SPDX-License-Identifier: Apache-2.0

package indexclient

import (
	"context"
	"errors"
	"testing"
	"time"

	"kindex/internal/lookup"
)

// TestRest: a part that is silent costs a few lookups their time and the others
// nothing; trials are nobody's; it is back once it answers. Where all parts rest they
// are asked.
func TestRest(t *testing.T) {
	a := &fakeHost{matches: []lookup.Match{match("1", 0, 9)}}
	b := &fakeHost{matches: []lookup.Match{match("2", 0, 5)}}
	o := Options{Timeout: time.Minute, RetryDelay: 5 * time.Millisecond, RetryMax: 10 * time.Millisecond, Partial: true}.withDefaults()
	u := newUnion([]*replicas{set(&o, 'a', a), set(&o, 'b', b)}, &o)
	defer u.Close()
	var got lookup.Answer
	ask := func(within time.Duration) (string, error) {
		ctx, cancel := context.WithTimeout(t.Context(), within)
		defer cancel()
		err := u.Lookup(ctx, &lookup.Query{Model: "m"}, &got)
		return show(&got), err
	}
	b.silent.Store(true)
	for range restAfter {
		if answer, err := ask(10 * time.Millisecond); err != nil || answer != "1/0:9 [b] 0" {
			t.Fatalf("one is silent: %s, %v", answer, err)
		}
	}
	before := b.calls.Load()
	for range 20 { // a minute each, were it asked
		if answer, err := ask(time.Minute); err != nil || answer != "1/0:9 [b] 0" {
			t.Fatalf("one rests: %s, %v", answer, err)
		}
	}
	for b.calls.Load() == before { // a trial
		if _, err := ask(time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	b.silent.Store(false)
	// That trial waits for its time to end: another part answers for it meanwhile.
	u.rests[1].mu.Lock()
	u.rests[1].until.Store(0)
	u.rests[1].mu.Unlock()
	if answer, err := ask(time.Minute); err != nil || answer != "1/0:9 2/0:5 [] 0" {
		t.Errorf("it answers again: %s, %v", answer, err)
	}
	a.silent.Store(true)
	b.silent.Store(true)
	for range 3 * restAfter {
		if _, err := ask(time.Millisecond); !errors.Is(err, ErrDeadline) || errors.Is(err, errResting) {
			t.Fatalf("all are silent: %v, want that they were asked", err)
		}
	}
	a.silent.Store(false)
	b.silent.Store(false)
	if answer, err := ask(time.Minute); err != nil || answer != "1/0:9 2/0:5 [] 0" {
		t.Errorf("all rest, and are asked: %s, %v", answer, err)
	}
}
