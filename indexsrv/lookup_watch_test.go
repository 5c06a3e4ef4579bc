// SPDX-License-Identifier: Apache-2.0

package indexsrv

import (
	"context"
	"errors"
	"testing"
	"time"

	"kindex/internal/lookup"
	"kindex/relay/feed"
)

// watch runs a watch of h; updates come on the channel, and its end on the other.
func watch(t *testing.T, h lookup.Index, f lookup.Filter) (<-chan *lookup.Update, <-chan error, context.CancelFunc) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	updates, ended := make(chan *lookup.Update), make(chan error, 1)
	go func() {
		ended <- h.Watch(ctx, f, func(u *lookup.Update) error {
			select {
			case updates <- u:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	}()
	t.Cleanup(cancel)
	return updates, ended, cancel
}

func next[T any](t *testing.T, ch <-chan T, what string) (v T) {
	t.Helper()
	select {
	case v = <-ch:
	case <-time.After(10 * time.Second):
		t.Fatalf("%s: nothing within 10 s", what)
	}
	return v
}

// applyUpdate applies u to a table of statuses by instance.
func applyUpdate(table map[string]string, u *lookup.Update) {
	if u.Whole {
		clear(table)
	}
	for _, n := range u.Gone {
		delete(table, n.Instance)
	}
	for i := range u.Workers {
		table[u.Workers[i].Instance] = u.Workers[i].Status
	}
}

// TestWatch: the whole table, then each change of it and nothing else; versions
// grow; a watch of one model sees that one.
func TestWatch(t *testing.T) {
	h := startTestHost(t, nil)
	h.register(reg("1", "m", ""))
	h.register(reg("1", "other", ""))
	updates, ended, cancel := watch(t, h, lookup.Filter{Model: "m"})
	u := next(t, updates, "the table")
	if !u.Whole || len(u.Workers) != 1 || u.Workers[0].Name() != (lookup.WorkerName{Instance: "1", Model: "m", Group: "default", Tenant: "default"}) ||
		len(u.Workers[0].Ranks) != 1 || u.Epoch != h.epoch {
		t.Fatalf("first: %+v", u)
	}
	table, version := map[string]string{}, u.Version
	applyUpdate(table, u)
	step := func(what string, want map[string]string) {
		t.Helper()
		for {
			u := next(t, updates, what)
			if u.Whole || u.Version <= version || len(u.Workers)+len(u.Gone) == 0 {
				t.Fatalf("%s: %+v after version %d", what, u, version)
			}
			version = u.Version
			applyUpdate(table, u)
			same := len(table) == len(want)
			for id, status := range want {
				same = same && (table[id] == status || status == "" && table[id] != "")
			}
			if same {
				return
			}
		}
	}
	h.register(reg(`"b"`, "m", ""))
	step("another", map[string]string{"1": "", "b": ""})
	h.register(reg("7", "other", "")) // not of this watch

	r := h.rank("m", "", "b", 0)
	before := r.stream.current()
	setState(r, feed.StateFailed)
	h.reg.changes.note()
	u = next(t, updates, "a standing")
	if len(u.Workers) != 1 || u.Workers[0].Instance != "b" || len(u.Gone) != 0 {
		t.Fatalf("a changed standing: %+v", u)
	}
	version = u.Version
	setState(r, before)

	if err := h.Unregister(t.Context(), Registration{Instance: NumberID(1), Model: "m"}, false); err != nil {
		t.Fatal(err)
	}
	step("one less", map[string]string{"b": ""})

	cancel()
	if err := next(t, ended, "the end"); !errors.Is(err, context.Canceled) {
		t.Errorf("ended with %v", err)
	}
	updates, ended, _ = watch(t, h, lookup.Filter{})
	if u := next(t, updates, "the table"); !u.Whole || len(u.Workers) != 3 {
		t.Fatalf("of all: %+v", u)
	}
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	if err := next(t, ended, "the end"); !errors.Is(err, ErrUnavailable) {
		t.Errorf("a stopped host ends a watch with %v", err)
	}
}
