// SPDX-License-Identifier: Apache-2.0

package asmtest

import (
	"strings"
	"testing"

	"kindex/asm/internal/cpu"
)

// TestReport shows that a level or a variant that nothing tested is named, and one
// that cannot be tested is no fault.
func TestReport(t *testing.T) {
	f := func(ran map[string]map[string]bool, variants map[string][]string, want ...string) {
		t.Helper()
		tested = ran
		var w strings.Builder
		faults := report(&w, variants)
		if len(faults) != len(want) {
			t.Fatalf("got %q, want %d faults", faults, len(want))
		}
		for i := range want {
			if !strings.Contains(faults[i], want[i]) {
				t.Errorf("got %q, want %q in it", faults[i], want[i])
			}
		}
		for _, level := range cpu.All() {
			if why := cpu.Lacks(level); why != "" && !strings.Contains(w.String(), "level "+level+": UNTESTED") {
				t.Errorf("%s: got %q, want it said to be untested", why, w.String())
			}
		}
	}
	all := map[string]map[string]bool{}
	for _, level := range cpu.Had() {
		all[level] = map[string]bool{"a": true}
	}
	f(all, nil)
	f(all, map[string][]string{cpu.Had()[0]: {"a"}})
	f(all, map[string][]string{cpu.Had()[0]: {"b", "a"}}, "level "+cpu.Had()[0]+": kernel b")
	all[cpu.NameGeneric] = nil
	f(all, nil, "level generic: could run")
}

func TestFiltered(t *testing.T) {
	f := func(want bool, args ...string) {
		t.Helper()
		if got := filtered(args); got != want {
			t.Errorf("%q: got %v, want %v", args, got, want)
		}
	}
	f(false)
	f(false, "x.test", "-test.v=true", "-test.run=", "-test.count=2")
	f(true, "x.test", "-test.run=^$")
	f(true, "--test.skip=x")
	f(true, "-test.list=.")
}

// TestForEachLevel shows that every level is set in turn and counted.
func TestForEachLevel(t *testing.T) {
	tested = map[string]map[string]bool{}
	before := cpu.Level()
	var ran []string
	ForEachLevel(t, func(*testing.T) { ran = append(ran, cpu.Level()) }, "a")
	if got, want := strings.Join(ran, " "), strings.Join(cpu.Had(), " "); got != want || cpu.Level() != before {
		t.Errorf("ran at %s and ended at %s, want %s and %s", got, cpu.Level(), want, before)
	}
	for _, level := range cpu.Had() {
		if !tested[level]["a"] {
			t.Errorf("%s: got %v, want a", level, tested[level])
		}
	}
}
