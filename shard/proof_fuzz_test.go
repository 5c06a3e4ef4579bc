// SPDX-License-Identifier: Apache-2.0

package shard_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"kindex/shard/compare"
)

// maxScript bounds one fuzzed history: some hundred events.
const maxScript = 2048

// proveScript runs a fuzzed history: the first byte says over which spaces of
// hashes, the rest what happens.
func proveScript(b []byte, subs []subject) (compare.Counts, int, error) {
	if len(b) < 2 || len(b) > maxScript {
		return compare.Counts{}, 0, nil
	}
	sh := wildShapes[int(b[0])%len(wildShapes)]
	w, err := newWild(&script{b[1:]}, sh, subs)
	if err != nil {
		return compare.Counts{}, 0, err
	}
	if err := w.prove(2); err != nil {
		return w.f.cmp.Counts(), w.events, fmt.Errorf("%w\n%s script %x", err, sh.name, b[1:])
	}
	return w.f.cmp.Counts(), w.events, nil
}

// FuzzEvents feeds any bytes to the event API of every kind of index, with the
// reference as oracle.
func FuzzEvents(f *testing.F) {
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, _, err := proveScript(b, subjects(1)); err != nil {
			t.Fatal(err)
		}
	})
}

// fuzzSeeds reads the committed scripts.
func fuzzSeeds(t *testing.T) [][]byte {
	t.Helper()
	names, err := filepath.Glob("testdata/fuzz/FuzzEvents/*")
	if err != nil || len(names) == 0 {
		t.Fatalf("no scripts in testdata: %v", err)
	}
	var all [][]byte
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSpace(string(text)), "\n")
		quoted := strings.TrimSuffix(strings.TrimPrefix(lines[len(lines)-1], "[]byte("), ")")
		b, err := strconv.Unquote(quoted)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		all = append(all, []byte(b))
	}
	return all
}

// TestProofFuzzSeeds says how much the committed scripts compare.
func TestProofFuzzSeeds(t *testing.T) {
	var counts compare.Counts
	events := 0
	for _, b := range fuzzSeeds(t) {
		c, n, err := proveScript(b, subjects(1))
		if err != nil {
			t.Fatal(err)
		}
		counts.Add(c)
		events += n
	}
	t.Logf("%d events over %v; compared %v", events, kinds(), counts)
}
