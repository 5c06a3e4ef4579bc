// SPDX-License-Identifier: Apache-2.0

//go:build linux && !race

package indexsrv

import (
	"context"
	"math/rand/v2"
	"testing"

	"kindex/internal/kv"
	"kindex/internal/lookup"
)

// TestShmAllocs: a lookup over shared memory allocates nothing, on either side.
func TestShmAllocs(t *testing.T) {
	h := startShmHost(t, nil)
	if err := h.Register(t.Context(), Registration{Instance: NumberID(1), Model: "m", BlockSize: testBlock, Endpoint: "tcp://127.0.0.1:20000"}); err != nil {
		t.Fatal(err)
	}
	rk := (*h.reg.workers(nil)[0].ranks.Load())[0]
	h.churnContent(rk, rand.New(rand.NewPCG(3, 4)), 200)
	q := &lookup.Query{Model: "m", Hashes: []kv.ContentHash{0, 1, 2, 3}}
	var a lookup.Answer
	one := func() {
		if err := h.client.Lookup(context.Background(), q, &a); err != nil {
			t.Fatal(err)
		}
	}
	one()
	if n := testing.AllocsPerRun(300, one); n > 0.2 {
		t.Errorf("%v allocations a lookup, want none", n)
	}
}
