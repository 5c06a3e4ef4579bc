// SPDX-License-Identifier: Apache-2.0

//go:build !race

package indexsrv

import (
	"fmt"
	"testing"

	"kindex/internal/kv"
	"kindex/internal/lookup"
)

// The race detector allocates on its own: this file is not for it.

// TestQueryAllocations: a query of any length costs no allocation of its own.
func TestQueryAllocations(t *testing.T) {
	h := startTestHost(t, nil)
	for id := range 16 {
		h.register(reg(fmt.Sprint(id), "m", ""))
		h.put(h.rank("m", "", fmt.Sprint(id), 0), kv.TierDevice, "", "", 1, tokens(1, 4096), nil)
	}
	for name, body := range map[string]string{
		"plain":    query(t, tokens(1, 4096), ""),
		"filtered": query(t, tokens(1, 4096), `,"instances":[1,2,"3"],"max_results":2,"routing_group":"default"`),
	} {
		q := newQueryScratch(0)
		q.body = []byte(body)
		one := func() {
			q.reset()
			if err := q.scan.Object(q.fields); err != nil {
				t.Fatal(err)
			}
			if _, err := h.ask(q, false); err != nil {
				t.Fatal(err)
			}
			q.out = appendAnswer(q.out[:0], q.rows, 4)
		}
		one()
		if len(q.rows) == 0 {
			t.Fatalf("%s: no answer", name)
		}
		if got := testing.AllocsPerRun(50, one); got > 0 {
			t.Errorf("%s: %v allocations a query, want none", name, got)
		}
	}
}

// TestLookupAllocations: neither does one in process, of tokens or of hashes, with
// all that a query can have.
func TestLookupAllocations(t *testing.T) {
	h := startTestHost(t, nil)
	for id := range 16 {
		h.register(reg(fmt.Sprint(id), "m", ""))
		h.put(h.rank("m", "", fmt.Sprint(id), 0), kv.TierDevice, "ad", "s", 1, tokens(1, 4096), nil)
	}
	prompt := kv.Blocks{Tokens: tokens(1, 4096), BlockSize: 4}
	hashes := prompt.AppendHashes(nil, kv.ContentSeed("ad", "s"))
	for name, q := range map[string]lookup.Query{
		"tokens": {Tokens: prompt.Tokens},
		"hashes": {Hashes: hashes},
		"few":    {Tokens: prompt.Tokens, Extra: make([][]byte, 1024), Only: []string{"7", "3", "12"}, Limit: 2},
		"keys":   {Hashes: hashes, Extra: make([][]byte, 1024)},
	} {
		q.Model, q.Group, q.Tenant, q.LoRA, q.Salt = "m", "default", "default", "ad", "s"
		var a lookup.Answer
		one := func() {
			if err := h.Lookup(t.Context(), &q, &a); err != nil {
				t.Fatal(err)
			}
		}
		one()
		if len(a.Matches) == 0 || a.Matches[0].Any != 1024 {
			t.Fatalf("%s: %+v", name, a)
		}
		if got := testing.AllocsPerRun(50, one); got > 0 {
			t.Errorf("%s: %v allocations a lookup, want none", name, got)
		}
	}
}
