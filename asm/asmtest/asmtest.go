// SPDX-License-Identifier: Apache-2.0

// Package asmtest runs tests at every level of the kernels that this machine and
// this build have, and sees to it that none is left out unsaid.
//
// A test of kernels calls [ForEachLevel]; the package's TestMain calls [Main],
// which fails when a level that could run did not, and names those that could
// not. Other packages' tests use both the same way.
package asmtest

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"kindex/asm/internal/cpu"
)

var (
	mu     sync.Mutex
	tested = map[string]map[string]bool{} // level -> names of what ran at it
)

// ForEachLevel runs fn as a subtest at each level that is had, the best first, and
// sets the level back to what it was. names say what fn tests: variants, as
// [Main] is told of them.
//
// Concurrency: neither t nor a level's subtest may call Parallel; tests below those
// may.
func ForEachLevel(t *testing.T, fn func(t *testing.T), names ...string) {
	t.Helper()
	before := cpu.Level()
	defer func() {
		if err := cpu.Set(before); err != nil {
			t.Errorf("level back to %s: %v", before, err)
		}
	}()
	for _, level := range cpu.Had() {
		if err := cpu.Set(level); err != nil {
			t.Fatalf("level %s: %v", level, err)
		}
		passed := false // not skipped, not filtered away
		t.Run(level, func(t *testing.T) {
			fn(t)
			passed = !t.Failed()
		})
		if passed {
			note(level, names)
		}
	}
}

// Each calls fn at each level that is had, the best first, and sets the level back
// to what it was: for fuzz targets and benchmarks, which [Main] does not count.
//
// Concurrency: as [ForEachLevel].
func Each(tb testing.TB, fn func(level string)) {
	tb.Helper()
	set := func(level string) {
		if err := cpu.Set(level); err != nil {
			tb.Fatalf("level %s: %v", level, err)
		}
	}
	before := cpu.Level()
	defer set(before)
	for _, level := range cpu.Had() {
		set(level)
		fn(level)
	}
}

// note keeps that names were tested at level.
func note(level string, names []string) {
	mu.Lock()
	defer mu.Unlock()
	if tested[level] == nil {
		tested[level] = map[string]bool{}
	}
	for _, name := range names {
		tested[level][name] = true
	}
}

// Main runs m and returns the exit code. After a run of all tests that went well
// it fails when a level that is had was not run at all, or some of variants not:
// the names of kernels by level, nil where no kernel is declared. It writes to w which
// levels were tested, and which stayed untested and why.
func Main(m *testing.M, w io.Writer, variants map[string][]string) int {
	code := m.Run()
	if code != 0 || filtered(os.Args) {
		return code
	}
	faults := report(w, variants)
	for _, f := range faults {
		fmt.Fprintln(w, "FAIL:", f)
	}
	if len(faults) > 0 {
		return 1
	}
	return 0
}

// report writes what ran, and returns what should have run and did not.
func report(w io.Writer, variants map[string][]string) (faults []string) {
	mu.Lock()
	defer mu.Unlock()
	for _, level := range cpu.All() {
		of := ""
		if n := len(variants[level]); n > 0 {
			of = fmt.Sprintf(", with %d variants of kernels", n)
		}
		if why := cpu.Lacks(level); why != "" {
			fmt.Fprintf(w, "level %s: UNTESTED%s: %s\n", level, of, why)
			continue
		}
		if tested[level] == nil {
			faults = append(faults, fmt.Sprintf("level %s: could run and no test did", level))
			continue
		}
		fmt.Fprintf(w, "level %s: tested%s\n", level, of)
		for _, name := range slices.Sorted(slices.Values(variants[level])) {
			if !tested[level][name] {
				faults = append(faults, fmt.Sprintf("level %s: kernel %s could run and no test did", level, name))
			}
		}
	}
	return faults
}

// filtered reports whether args leave tests out on purpose.
func filtered(args []string) bool {
	return slices.ContainsFunc(args, func(arg string) bool {
		for _, name := range []string{"run", "skip", "list", "fuzz"} {
			if v, ok := strings.CutPrefix(strings.TrimLeft(arg, "-"), "test."+name+"="); ok && v != "" {
				return true
			}
		}
		return false
	})
}
