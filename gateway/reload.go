// SPDX-License-Identifier: Apache-2.0

// Before: SIGHUP, and the file system, which tells that the configuration changed.
// After: the parts that can change while they run.

package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"sync"

	"kindex/gateway/fleet"
)

// reloadable are the settings that a running gateway takes over. The others need a
// restart, which a reload says. What lies in files of keys and certificates is read
// again by itself.
var reloadable = []string{
	"worker-stall-secs", "worker-wedge-secs", "worker-stale-secs",
	"worker-overload-token-usage", "worker-overload-waiting", "worker-overload-shed",
	"health-interval", "health-timeout", "health-failures", "health-successes",
	"breaker-failures", "breaker-open", "breaker-successes",
	"retries", "max-inflight", "queue", "queue-timeout",
	"drain-delay", "drain-timeout", "log-level",
}

// workerSet are the workers as a configuration changes them, by their URLs.
type workerSet interface {
	add(s fleet.Spec) error
	// update changes what can be while w serves.
	update(s fleet.Spec) error
	// replace puts another worker in the place of one at once: what that one has in
	// flight goes on.
	replace(s fleet.Spec) error
	// remove has a worker end what it has.
	remove(url string) error
}

// reloader holds what the configuration said last against what it says now.
//
// Concurrency: any goroutine; one reload happens at a time.
type reloader struct {
	args    []string
	log     *slog.Logger
	audit   *audit
	workers workerSet
	apply   func(*Config) // takes the settings that are reloadable

	mu   sync.Mutex // guards last
	last *Config    // what was read last without a fault
}

// reload reads flags and file again. why says what it is asked by. What cannot be right
// changes nothing. There is one line in the log, besides those about workers.
//
// A worker belongs to the configuration where the configuration brought it: one that
// was registered by POST /workers is neither removed nor changed, and one that was
// removed by DELETE /workers does not come back while the file says the same of it.
func (r *reloader) reload(why string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	next, _, faults := parseArgs(r.args)
	if len(faults) > 0 {
		err := errors.Join(faults...)
		r.log.Warn("configuration not read again: what was in force stays", "because", why, "faults", len(faults), "first", faults[0].Error())
		return err
	}
	changed, restart := changes(r.last, next)
	merged := r.merge(next)
	r.apply(merged)
	done := r.changeWorkers(next)
	r.last = next
	level := slog.LevelInfo
	if len(restart) > 0 || done.failed > 0 {
		level = slog.LevelWarn
	}
	r.log.Log(context.Background(), level, "configuration read again", "because", why,
		"changed", list(changed), "needs_restart", list(restart),
		"workers_added", done.added, "workers_changed", done.changed, "workers_removed", done.removed, "workers_failed", done.failed)
	return nil
}

func list(names []string) string {
	if len(names) == 0 {
		return "nothing"
	}
	return strings.Join(names, ",")
}

// changes returns the settings in which two configurations differ: those that are taken
// over, and those that are not.
func changes(old, next *Config) (changed, restart []string) {
	was := old.options()
	for i, o := range next.options() {
		switch {
		case o.Value() == was[i].Value():
		case slices.Contains(reloadable, o.Name):
			changed = append(changed, o.Name)
		default:
			restart = append(restart, o.Name)
		}
	}
	return changed, restart
}

// merge returns what is in force with the reloadable settings of next.
func (r *reloader) merge(next *Config) *Config {
	c := *r.last
	to := c.options()
	for i, o := range next.options() {
		if slices.Contains(reloadable, o.Name) {
			if err := to[i].Set(o.Value()); err != nil {
				panic(fmt.Sprintf("BUG: gateway: %s: refuses its own value: %v", o.Name, err))
			}
		}
	}
	return &c
}

// workerChanges counts what a reload did.
type workerChanges struct{ added, changed, removed, failed int }

// changeWorkers brings the workers from what the configuration said last to what it
// says now.
func (r *reloader) changeWorkers(next *Config) (n workerChanges) {
	old := byURL(r.last.Workers)
	now := byURL(next.Workers)
	do := func(action, url string, count *int, f func() error) {
		err := f()
		r.audit.changed(actorConfig, action, err, slog.String("url", url))
		if err != nil {
			n.failed++
		} else {
			*count++
		}
	}
	for i := range r.last.Workers {
		if url := r.last.Workers[i].URL; now[url] == nil {
			do("remove", url, &n.removed, func() error { return r.workers.remove(url) })
		}
	}
	for i := range next.Workers {
		s := &next.Workers[i]
		was := old[s.URL]
		switch {
		case was == nil:
			do("register", s.URL, &n.added, func() error { return r.workers.add(*s) })
		case !reflect.DeepEqual(was, s):
			do("update", s.URL, &n.changed, func() error { return r.change(was, s) })
		}
	}
	return n
}

// change makes a worker of was into s: in service where that is possible, else as
// another worker in its place.
func (r *reloader) change(was, s *fleet.Spec) error {
	same := *was
	same.Terms = s.Terms
	if reflect.DeepEqual(&same, s) {
		return r.workers.update(*s)
	}
	return r.workers.replace(*s)
}

func byURL(specs []fleet.Spec) map[string]*fleet.Spec {
	m := make(map[string]*fleet.Spec, len(specs))
	for i := range specs {
		m[specs[i].URL] = &specs[i]
	}
	return m
}
