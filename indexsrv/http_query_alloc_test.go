// SPDX-License-Identifier: Apache-2.0

//go:build !race

package indexsrv

import (
	"fmt"
	"testing"

	"kindex/internal/kv"
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
			if err := q.scan.object(q.fields); err != nil {
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
