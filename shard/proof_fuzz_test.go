// SPDX-License-Identifier: Apache-2.0

package shard_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"kindex/asm/asmtest"
	"kindex/internal/longtest"
	"kindex/shard"
)

// maxScript bounds one fuzzed history: some hundred events.
const maxScript = 2048

// proveScript runs a fuzzed history: the first byte says over which spaces of
// hashes, the rest what happens.
func proveScript(b []byte, subs []subject) (account, error) {
	if len(b) < 2 || len(b) > maxScript {
		return account{}, nil
	}
	sh := wildShapes[int(b[0])%len(wildShapes)]
	w, err := newWild(&script{b[1:]}, sh, subs)
	if err != nil {
		return account{}, err
	}
	if err := w.prove(2); err != nil {
		return w.f.account(w.events), fmt.Errorf("%w\n%s script %x", err, sh.name, b[1:])
	}
	return w.f.account(w.events), nil
}

// FuzzEvents feeds any bytes to the event API of every kind of index, with the
// reference as oracle.
func FuzzEvents(f *testing.F) {
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, err := proveScript(b, subjects()); err != nil {
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
	var sum account
	for _, b := range fuzzSeeds(t) {
		a, err := proveScript(b, subjects())
		if err != nil {
			t.Fatal(err)
		}
		sum.add(a)
	}
	t.Logf("over %s: %v", names(subjects()), sum)
}

// proveFuzz makes random histories, one seed each from first on, until so many
// lookups have been compared. They are short, so that tables are small and in growth.
func proveFuzz(first, lookups uint64, subs []subject) (sum account, seeds uint64, err error) {
	for sum.counts.Lookups < lookups {
		seed := first + seeds
		seeds++
		r := rand.New(rand.NewPCG(seed, 1_000_000))
		sh := wildShapes[r.IntN(len(wildShapes))]
		d := &dice{r: r, left: 20 + r.IntN(300)}
		w, err := newWild(d, sh, subs)
		if err != nil {
			return sum, seeds, err
		}
		if err := w.prove(8); err != nil {
			return sum, seeds, fmt.Errorf("fuzz seed %d, %s: %w", seed, sh.name, shrunk(d.chose, sh, subs, err))
		}
		sum.add(w.f.account(w.events))
	}
	return sum, seeds, nil
}

// TestProofFuzz: a million lookups over random histories in the long suite, at each
// level of the kernels; none may be wrong.
func TestProofFuzz(t *testing.T) {
	lookups := uint64(longtest.N(60_000, 1_000_000))
	if shard.RaceEnabled {
		lookups /= 6
	}
	subs := chainOnly(subjects())
	asmtest.ForEachLevel(t, func(t *testing.T) {
		sum, seeds, err := proveFuzz(0, lookups, subs)
		if err != nil {
			t.Fatal(err)
		}
		sum.want(t)
		t.Logf("%d lookups, 0 wrong; seeds 0 to %d over %s: %v", sum.counts.Lookups, seeds-1, names(subs), sum)
	})
}
