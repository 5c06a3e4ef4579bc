// SPDX-License-Identifier: Apache-2.0

// Package longtest is the one switch between the suite that everyone runs and
// the one that takes minutes.
package longtest

import (
	"os"
	"testing"
)

// Env is the variable that turns long tests on when it is not empty.
const Env = "KINDEX_LONG"

// Enabled reports whether long tests run.
func Enabled() bool { return os.Getenv(Env) != "" }

// Skip skips t unless long tests run.
func Skip(t testing.TB) {
	t.Helper()
	if !Enabled() {
		t.Skipf("long test: set %s=1 (make test-long)", Env)
	}
}

// N returns short in the fast suite and long in the long one: how often to
// repeat, how many events to make.
func N(short, long int) int {
	if Enabled() {
		return long
	}
	return short
}
