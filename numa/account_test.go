// SPDX-License-Identifier: Apache-2.0

package numa

import (
	"testing"
)

// accountOf returns the account of p, an empty one where there is none.
func accountOf(p Placement) Account {
	for _, a := range Accounts(64) {
		if a.Want.String() == p.String() {
			return a
		}
	}
	return Account{}
}

// TestAccounts counts blocks while they live.
func TestAccounts(t *testing.T) {
	const words = 1 << 19
	near, nowhere := OnNode(0), OnNode(999)
	before := accountOf(near)
	var blocks []*Block
	for _, p := range []Placement{near, near, nowhere, {}} {
		b, err := NewBlock(words, p)
		if err != nil {
			t.Fatal(err)
		}
		blocks = append(blocks, b)
	}
	got := accountOf(near)
	if got.Pieces-before.Pieces != 2 || got.Bytes-before.Bytes != 2*words*8 {
		t.Errorf("near: got %+v after %+v", got, before)
	}
	var sum uint64
	for _, n := range got.ByPolicy {
		sum += n
	}
	if sum != got.Bytes {
		t.Errorf("near: %d bytes by policy, %d in all", sum, got.Bytes)
	}
	if got := accountOf(nowhere); got.Pieces != 1 || got.ByPolicy[PolicyFirstTouch] != words*8 || got.Why == "" || got.Remote != got.Checked {
		t.Errorf("nowhere: %+v", got)
	}
	if got := accountOf(Placement{}); got.Pieces != 0 {
		t.Errorf("what was never asked for is counted: %+v", got)
	}
	for _, b := range blocks {
		if err := b.Release(); err != nil {
			t.Error(err)
		}
	}
	if got := accountOf(nowhere); got.Pieces != 0 {
		t.Errorf("after Release: %+v", got)
	}
	if got := accountOf(near); got.Pieces != before.Pieces || got.Bytes != before.Bytes {
		t.Errorf("after Release: %+v, want %+v", got, before)
	}
}
