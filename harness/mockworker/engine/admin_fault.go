// SPDX-License-Identifier: Apache-2.0

// Before: admin.go, which has a call. After: fault.go.

package engine

import (
	"fmt"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// maxFault bounds how long a fault holds something back, in ms.
const maxFault = 3_600_000

// settings reads a fault's numbers from a query. The first fault of it is kept.
type settings struct {
	query url.Values
	known []string
	err   error
}

// number returns a setting from 0 on; absent it is otherwise, unless that is below 0.
func (s *settings) number(name string, most, otherwise float64) float64 {
	s.known = append(s.known, name)
	return s.read(name, "number", 0, most, otherwise)
}

// whole is number of one that must be whole, from least on.
func (s *settings) whole(name string, least, most, otherwise int) int {
	s.known = append(s.known, name)
	return int(s.read(name, wholeNumber, float64(least), float64(most), float64(otherwise)))
}

const wholeNumber = "whole number"

func (s *settings) read(name, kind string, least, most, otherwise float64) float64 {
	text := s.query.Get(name)
	if text == "" && otherwise >= least {
		return otherwise
	}
	n, err := strconv.ParseFloat(text, 64)
	if s.err == nil && (err != nil || !(n >= least && n <= most) || kind == wholeNumber && n != math.Trunc(n)) {
		said := strconv.Quote(text)
		if text == "" {
			said = "missing"
		}
		plain := func(n float64) string { return strconv.FormatFloat(n, 'f', -1, 64) }
		s.err = fmt.Errorf("%s: %s: must be a %s from %s to %s", name, said, kind, plain(least), plain(most))
	}
	return n
}

// word returns a setting that is one of all, the first where it is absent.
func (s *settings) word(name string, all ...string) string {
	s.known = append(s.known, name)
	text := s.query.Get(name)
	if text == "" {
		return all[0]
	}
	if s.err == nil && !slices.Contains(all, text) {
		s.err = fmt.Errorf("%s: %q: must be %s", name, text, strings.Join(all, " or "))
	}
	return text
}

// rest returns a setting that nobody asked for, which may be a misspelled one, else the
// first fault.
func (s *settings) rest() error {
	for name := range s.query {
		if !slices.Contains(s.known, name) {
			return fmt.Errorf("%s: no such setting: known are %s", name, strings.Join(s.known, ", "))
		}
	}
	return s.err
}

func ms(n float64) time.Duration { return time.Duration(n * float64(time.Millisecond)) }

// set reads a fault of a kind, and returns what sets it.
func (f *faults) set(kind string, query url.Values) (func() error, error) {
	s := &settings{query: query}
	var do func()
	var try func() error
	switch kind {
	case FaultDrop:
		n, keep, ranks := s.whole("batches", 0, maxMany, -1), s.whole("keep", 0, 1, 0), f.ranks(s)
		do = func() { f.publishers(ranks, func(p *Publisher) { p.Drop(n, keep == 1) }) }
	case FaultDelay:
		n, ranks := s.number("ms", maxFault, -1), f.ranks(s)
		do = func() { f.publishers(ranks, func(p *Publisher) { p.Delay(ms(n)) }) }
	case FaultCorrupt:
		n, ranks := s.whole("frames", 0, maxMany, -1), f.ranks(s)
		do = func() { f.publishers(ranks, func(p *Publisher) { p.Corrupt(n) }) }
	case FaultRestart:
		kept := s.word("cache", "kept", "emptied") == "kept"
		try = func() error { return f.restart(kept) }
	case FaultAdmitWait:
		n := s.number("ms", maxFault, -1)
		do = func() { _, apart := f.admission(); f.slowAdmission(ms(n), apart) }
	case FaultAdmitRate:
		n := s.number("per_sec", 1e6, -1)
		do = func() {
			delay, _ := f.admission()
			f.slowAdmission(delay, perSecond(n))
		}
	case FaultPause, "resume":
		do = func() { f.pause(kind == FaultPause) }
	case FaultRefuse:
		on := s.whole("on", 0, 1, 1) != 0
		try = func() error { return f.refuse(on) }
	case FaultStall:
		n := s.whole("after_tokens", -1, maxContext, -2)
		do = func() { f.stall(n) }
	case FaultFail:
		status, count, secs := s.whole("status", 0, 599, -1), s.whole("count", -1, maxMany, -1), s.number("secs", maxFault/1e3, 0)
		if s.err == nil && status != 0 && status < 400 {
			s.err = fmt.Errorf("status: %d: must be 400 to 599, or 0 to end it", status)
		}
		do = func() { f.failWith(status, count, ms(1e3*secs)) }
	case FaultStarve:
		share := s.number("share", mostStarved, -1)
		do = func() { f.starve(share) }
	case "clear":
		do = f.clear
	default:
		return nil, fmt.Errorf("fault %q: must be one of %s, resume, clear", kind, strings.Join(Faults(), ", "))
	}
	if try == nil {
		try = func() error { do(); return nil }
	}
	return try, s.rest()
}

// perSecond returns how far apart n a second are; 0: not at all.
func perSecond(n float64) time.Duration {
	if n == 0 {
		return 0
	}
	return time.Duration(min(float64(time.Second)/n, float64(time.Hour)))
}

// ranks returns the rank that a setting names, below 0: all.
func (f *faults) ranks(s *settings) int {
	return s.whole("rank", -1, f.worker.Engine.cfg.Ranks-1, -1)
}

// publishers calls do for the publisher of a rank, below 0 of all.
func (f *faults) publishers(rank int, do func(*Publisher)) {
	for i, p := range f.worker.Engine.Publishers() {
		if rank < 0 || i == rank {
			do(p)
		}
	}
}

func (a *Admin) fault(w http.ResponseWriter, r *http.Request) {
	worker := a.named(w, r)
	if worker == nil {
		return
	}
	do, err := worker.faults.set(r.PathValue("kind"), r.URL.Query())
	if err != nil {
		say(w, http.StatusBadRequest, err.Error())
		return
	}
	if err := do(); err != nil {
		say(w, http.StatusConflict, err.Error())
		return
	}
	say(w, http.StatusOK, map[string]any{"worker": worker.Name, "faults": worker.faults.states()})
}

func (a *Admin) faults(w http.ResponseWriter, _ *http.Request) {
	out := make(map[string]map[string]FaultState)
	for _, worker := range a.fleet.workers {
		out[worker.Name] = worker.faults.states()
	}
	say(w, http.StatusOK, out)
}
