// SPDX-License-Identifier: Apache-2.0

// Before: go tool pprof, go tool trace, operators. After: the Go runtime.

package indexsrv

import (
	"bytes"
	"fmt"
	"runtime"
	"runtime/pprof"
	"runtime/trace"
	"strconv"
	"strings"
	"time"

	"github.com/valyala/fasthttp"
)

// Limits of profiles that take their time. Chosen, not measured.
const (
	profileSeconds = 30
	traceSeconds   = 1
	maxProfile     = 120 // seconds
	maxTrace       = 10  // seconds: a busy host writes some MiB in each
	mutexFraction  = 10  // of a mutex profile: one in so many waits
	blockRate      = 10_000
)

// serveProfile answers /debug/pprof/NAME with a profile of the process, for go
// tool pprof, or as text with ?debug=1. profile, trace, and with ?seconds=N mutex
// and block, take their time, one of them at once.
func (h *Host) serveProfile(ctx *fasthttp.RequestCtx, _ *queryScratch) {
	name := strings.TrimPrefix(string(ctx.Path()), "/debug/pprof/")
	args := ctx.QueryArgs()
	debug, err := numberArg(args, "debug", 0, 2)
	if err != nil {
		refuseErr(ctx, err)
		return
	}
	var b bytes.Buffer
	switch p := pprof.Lookup(name); {
	case name == "":
		listProfiles(&b)
		debug = 1
	case name == "profile":
		err = h.timed(ctx, profileSeconds, maxProfile, func() error { return pprof.StartCPUProfile(&b) }, pprof.StopCPUProfile)
	case name == "trace":
		err = h.timed(ctx, traceSeconds, maxTrace, func() error { return trace.Start(&b) }, trace.Stop)
	case p == nil:
		err = refuse(ErrNotFound, "%.100q: no such profile; /debug/pprof/ lists them", name)
	case args.Has("seconds") && name == "mutex":
		was := 0
		err = h.timed(ctx, profileSeconds, maxProfile, func() error { was = runtime.SetMutexProfileFraction(mutexFraction); return nil }, func() { runtime.SetMutexProfileFraction(was) })
	case args.Has("seconds") && name == "block":
		err = h.timed(ctx, profileSeconds, maxProfile, func() error { runtime.SetBlockProfileRate(blockRate); return nil }, func() { runtime.SetBlockProfileRate(0) })
	case args.Has("seconds"):
		err = refuse(ErrInvalid, "seconds: must be left out, profile, trace, mutex and block have it")
	}
	if err != nil {
		refuseErr(ctx, err)
		return
	}
	if p := pprof.Lookup(name); p != nil {
		if string(args.Peek("gc")) == "1" && (name == "heap" || name == "allocs") {
			runtime.GC()
		}
		if err := p.WriteTo(&b, debug); err != nil {
			panic("BUG: indexsrv: a profile cannot be written: " + err.Error())
		}
	}
	ctx.SetContentType("application/octet-stream")
	if debug > 0 {
		ctx.SetContentType("text/plain; charset=utf-8")
	}
	ctx.SetBody(b.Bytes())
}

func listProfiles(b *bytes.Buffer) {
	b.WriteString("profile?seconds=30\ntrace?seconds=1\n")
	for _, p := range pprof.Profiles() {
		fmt.Fprintf(b, "%s %d\n", p.Name(), p.Count())
	}
	b.WriteString("mutex?seconds=30\nblock?seconds=30\n")
}

// timed runs start, waits for as many seconds as the request says, or until the
// host drains, and runs stop.
func (h *Host) timed(ctx *fasthttp.RequestCtx, usual, most int, start func() error, stop func()) error {
	seconds, err := numberArg(ctx.QueryArgs(), "seconds", 1, most)
	if err != nil {
		return err
	}
	if seconds == 0 {
		seconds = usual
	}
	if ctx.IsHead() {
		return nil
	}
	if !h.profiling.CompareAndSwap(false, true) {
		return refuse(ErrUnavailable, "busy: another profile is under way, try again")
	}
	defer h.profiling.Store(false)
	if err := start(); err != nil {
		return refuse(ErrUnavailable, "busy: %v", err)
	}
	defer stop()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	end := time.Now().Add(time.Duration(seconds) * time.Second)
	for now := range tick.C {
		if h.draining.Load() || !now.Before(end) {
			break
		}
	}
	return nil
}

// numberArg returns an optional argument of a query; 0 where it is left out.
func numberArg(args *fasthttp.Args, name string, lo, hi int) (int, error) {
	if !args.Has(name) {
		return 0, nil
	}
	n, err := strconv.Atoi(string(args.Peek(name)))
	if err != nil || n < lo || n > hi {
		return 0, refuse(ErrInvalid, "%s: must be an integer from %d to %d", name, lo, hi)
	}
	return n, nil
}
