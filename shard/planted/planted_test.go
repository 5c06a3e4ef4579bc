// SPDX-License-Identifier: Apache-2.0

package planted_test

import (
	"testing"

	"kindex/internal/kv"
	"kindex/shard"
	"kindex/shard/planted"
)

// An index with a fault still answers what the fault does not touch.
func TestFaultsAreNarrow(t *testing.T) {
	for f := range planted.NumFaults {
		inner, err := shard.NewSharded("chain", make([]shard.Options, 2)...)
		if err != nil {
			t.Fatal(err)
		}
		idx := planted.New(inner, f)
		h, err := idx.AddHolder(0)
		if err != nil {
			t.Fatal(err)
		}
		st := &shard.Store{Namespace: 1, Engines: []kv.EngineHash{11, 12, 13}, Contents: []kv.ContentHash{1, 2, 3}}
		if err := idx.Store(h, st); err != nil {
			t.Fatal(err)
		}
		if err := idx.Remove(h, &shard.Remove{Engines: []kv.EngineHash{13}}); err != nil {
			t.Fatal(err)
		}
		want := kv.Match{Holder: uint32(h), Device: 2, Host: 2, Any: 2}
		if got := idx.Lookup(1, st.Contents, nil); len(got) != 1 || got[0] != want {
			t.Errorf("an index that %s: %v, want %v", f, got, want)
		}
		if g, ok := idx.(shard.Grouper); ok {
			var a shard.Answer
			g.LookupGroups(1, st.Contents, &a)
			if got := a.Append(nil); len(got) != 1 || got[0] != want {
				t.Errorf("an index that %s: %v in groups, want %v", f, got, want)
			}
		}
	}
}
