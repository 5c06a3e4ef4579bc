// SPDX-License-Identifier: Apache-2.0

package verify

import (
	"math/rand/v2"
	"path/filepath"
	"testing"

	"kindex/harness/record"
	"kindex/internal/kv"
)

// TestFalsified falsifies what the engine said of itself. A rule that explained
// any number would let it pass: each falsified answer, and each falsified table,
// must be reported wrong.
func TestFalsified(t *testing.T) {
	var answers, tables int
	for i, path := range fixtures(t, "*") {
		rng := rand.New(rand.NewPCG(7, uint64(i))) //nolint:gosec // seeded on purpose
		f, err := record.Read(path)
		if err != nil {
			t.Fatal(err)
		}
		size := f.Header.MainBlockSize()
		falseAnswers, falseTables := 0, 0
		for j := range f.Lines {
			l := &f.Lines[j]
			switch {
			case l.Resp != nil && falsifyAnswer(l.Resp, size, rng):
				falseAnswers++
			case l.State != nil && falsifyTable(l.State, rng):
				falseTables++
			}
		}
		if falseAnswers+falseTables == 0 {
			continue
		}
		r, err := File(f, Options{Index: "reference", truthOnly: true})
		if err != nil {
			t.Fatal(err)
		}
		if r.OK() || r.Credit.Wrong < falseAnswers || r.EngineTable.Wrong < falseTables {
			t.Errorf("%s: %d of %d false answers and %d of %d false tables were seen", filepath.Base(path),
				r.Credit.Wrong, falseAnswers, r.EngineTable.Wrong, falseTables)
			for _, j := range r.Judged {
				if j.OK {
					t.Logf("    request %s: predicted %d, told %d, rule %q", j.ID, j.Predicted, j.Cached, j.Rule)
				}
			}
		}
		answers += falseAnswers
		tables += falseTables
	}
	t.Logf("%d false answers, %d false tables", answers, tables)
}

// falsifyAnswer moves the cached tokens by one block, to a number that could be.
func falsifyAnswer(r *record.Resp, size int, rng *rand.Rand) bool {
	if r.Cached == nil {
		return false
	}
	up, down := *r.Cached+size, *r.Cached-size
	switch {
	case down >= 0 && (up > r.PromptTokens || rng.IntN(2) == 0):
		*r.Cached = down
	case up <= r.PromptTokens:
		*r.Cached = up
	default:
		return false
	}
	return true
}

// falsifyTable adds an entry, takes one away, or puts one in another tier.
func falsifyTable(st *record.State, rng *rand.Rand) bool {
	n := len(st.Cached)
	at := rng.IntN(max(n, 1))
	switch what := rng.IntN(3); {
	case n > 0 && what == 0:
		st.Cached = append(st.Cached[:at:at], st.Cached[at+1:]...)
	case n > 0 && what == 1:
		st.Cached[at].Hash ^= 1
	default:
		c := record.Cached{Hash: kv.EngineHash(rng.Uint64()), Copies: 1}
		if n > 0 {
			c.Group, c.Tiers = st.Cached[at].Group, st.Cached[at].Tiers
		}
		st.Cached = append(st.Cached, c)
	}
	return true
}
