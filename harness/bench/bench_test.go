// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"kindex/relay/wire"

	"kindex/internal/kv"
	"kindex/shard"
)

// TestRuns measures a small part of the work: every figure must be there.
func TestRuns(t *testing.T) {
	for _, kind := range shard.Kinds {
		r, err := Run(t.Context(), Options{Index: kind, Seed: 1, Repeats: 1, Short: true})
		if err != nil {
			t.Fatalf("%s: %v", kind, err)
		}
		if len(r.Apply) != 2 || len(r.Lookups) != 12 || len(r.Memory) != 6 {
			t.Fatalf("%s: %d, %d and %d figures, want 2, 12 and 6", kind, len(r.Apply), len(r.Lookups), len(r.Memory))
		}
		for _, a := range r.Apply {
			if a.Decode.Min <= 0 || a.Hash.Min <= 0 || a.Index.Min <= 0 || a.Total.Median < a.Decode.Min {
				t.Errorf("%s: %s: %+v", kind, a.Workload, a)
			}
		}
		if r.Apply[0].Removed != 0 || r.Apply[1].Removed == 0 {
			t.Errorf("%s: %d and %d blocks removed, want none and some", kind, r.Apply[0].Removed, r.Apply[1].Removed)
		}
		for _, l := range r.Lookups {
			if l.P50.Min <= 0 || l.P99.Median < l.P50.Median {
				t.Errorf("%s: %+v", kind, l)
			}
		}
		for _, m := range r.Memory {
			if full := m.Blocks * uint64(m.Holders); m.Blocks > 16*64 || m.Memberships > full || m.Workload == "whole chains" && (m.Memberships != full || m.Blocks != 16*64) {
				t.Errorf("%s: %d memberships of %d blocks by %d holders", kind, m.Memberships, m.Blocks, m.Holders)
			}
		}
		var text, js bytes.Buffer
		if err := r.WriteText(&text); err != nil || !strings.Contains(text.String(), "| whole chains: 512 blocks, 128 holders") {
			t.Errorf("%s: %v:\n%s", kind, err, text.String())
		}
		var back Report
		if err := r.WriteJSON(&js); err != nil || json.Unmarshal(js.Bytes(), &back) != nil || len(back.Lookups) != 12 {
			t.Errorf("%s: %v: %s", kind, err, js.String())
		}
	}
}

// TestWorkload decodes what was generated: the frames hold the batches.
func TestWorkload(t *testing.T) {
	s := shape{prompts: 50, blocks: 8, shared: 4, cache: 100, family: 5}
	w := generate(s, 7)
	var d wire.Decoder
	var b kv.Batch
	stored, removed := 0, 0
	for i, f := range w.frames {
		if err := d.Decode(f, &b); err != nil {
			t.Fatal(err)
		}
		if len(b.Events) != len(w.batches[i].Events) {
			t.Fatalf("batch %d: %d events, want %d", i, len(b.Events), len(w.batches[i].Events))
		}
		for _, ev := range b.Events {
			if ev.Kind == kv.KindRemoved {
				removed += len(ev.Hashes)
				continue
			}
			stored += len(ev.Hashes)
			if len(ev.Tokens) != blockSize*len(ev.Hashes) {
				t.Fatalf("batch %d: %d tokens for %d blocks", i, len(ev.Tokens), len(ev.Hashes))
			}
		}
	}
	if want := 10*8 + 40*4; stored != want || w.stored != want || removed != w.removed || stored-removed > s.cache {
		t.Errorf("%d stored and %d removed, want %d stored and at most %d left", stored, removed, want, s.cache)
	}
}
