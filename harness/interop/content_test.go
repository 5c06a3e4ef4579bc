// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"kindex/harness/mockworker/engine"
	"kindex/internal/kv"
)

// holding is one block that a rank holds: what it is called, and where it stands.
type holding struct {
	Rank     int
	Engine   kv.EngineHash
	Position engine.Position
	Tier     string
}

// content is all that a worker holds, in copies.
type content map[holding]int

// truthContent is what a mock engine says that it holds in the main group of its
// caches, the one after its windows, in places of its own: an index knows no other.
func truthContent(truth []engine.Truth, windows int) content {
	out := content{}
	for _, rank := range truth {
		for _, b := range rank.Blocks {
			if b.Group == windows && b.Tier != engine.TierRemote {
				out[holding{rank.Rank, b.Engine, b.Position, b.Tier}] = b.Copies
			}
		}
	}
	return out
}

// dumped is an index host's dump.
type dumped map[string]struct {
	Events []struct {
		Tier  string `json:"storage_tier"`
		Event struct {
			Rank int `json:"dp_rank"`
			Data struct {
				Stored *struct {
					Parent *kv.EngineHash `json:"parent_hash"`
					Blocks []struct {
						Engine  kv.EngineHash  `json:"block_hash"`
						Content kv.ContentHash `json:"tokens_hash"`
					} `json:"blocks"`
					Seed *uint64 `json:"namespace_seed"`
				} `json:"stored"`
				Removed *struct {
					Hashes []kv.EngineHash `json:"block_hashes"`
				} `json:"removed"`
			} `json:"data"`
		} `json:"event"`
	} `json:"events"`
	Streams map[string]map[string]struct {
		Status  string `json:"status"`
		Orphans int    `json:"orphans"`
	} `json:"streams"`
}

// dumpContent returns what an index host holds of one model's only worker, and
// whether all of its streams are exact with nothing waiting.
func (h *indexHost) dumpContent(t *testing.T, model string) (c content, exact bool) {
	t.Helper()
	var d dumped
	h.must(t, http.StatusOK, http.MethodGet, "/dump?model_name="+model, nil, &d)
	c, exact = content{}, true
	for _, m := range d {
		places := map[holding]engine.Position{} // without position: where the name stands
		for _, e := range m.Events {
			at := holding{Rank: e.Event.Rank, Tier: e.Tier}
			if s := e.Event.Data.Stored; s != nil {
				place := engine.Root(kv.HashSeed)
				if s.Seed != nil {
					place = engine.Root(*s.Seed)
				}
				if s.Parent != nil {
					var ok bool
					if place, ok = places[holding{Rank: at.Rank, Engine: *s.Parent}]; !ok {
						t.Fatalf("the dump stores below %d, which it did not tell before", *s.Parent)
					}
				}
				for _, b := range s.Blocks {
					place = place.Below(b.Content)
					places[holding{Rank: at.Rank, Engine: b.Engine}] = place
					at.Engine, at.Position = b.Engine, place
					c[at]++
				}
			}
			if r := e.Event.Data.Removed; r != nil {
				for _, h := range r.Hashes {
					at.Engine, at.Position = h, places[holding{Rank: at.Rank, Engine: h}]
					if c[at]--; c[at] == 0 {
						delete(c, at)
					}
				}
			}
		}
		for _, ranks := range m.Streams {
			for _, s := range ranks {
				exact = exact && s.Status == "active" && s.Orphans == 0
			}
		}
	}
	return c, exact
}

// awaitContent waits until the host holds exactly want, and says so.
func (h *indexHost) awaitContent(t *testing.T, limit time.Duration, model, what string, want func() content) {
	t.Helper()
	began := time.Now()
	blocks := 0
	eventually(t, limit, what+": the index to be exact", func() (bool, string) {
		w := want()
		got, exact := h.dumpContent(t, model)
		blocks = len(w)
		if exact && cmp.Equal(w, got) {
			return true, ""
		}
		return false, fmt.Sprintf("%d blocks, want %d; exact %v; differences %d: %s", len(got), len(w), exact, differing(w, got), h.listeners(model))
	})
	t.Logf("%s: exact, %d blocks, after %.0f ms", what, blocks, float64(time.Since(began).Microseconds())/1e3)
}

// differing counts the holdings whose copies differ.
func differing(a, b content) int {
	n := 0
	for h, copies := range a {
		if b[h] != copies {
			n++
		}
	}
	for h := range b {
		if _, ok := a[h]; !ok {
			n++
		}
	}
	return n
}

// listeners tells what the host says of a model's streams.
func (h *indexHost) listeners(model string) string {
	var ws []worker
	if _, err := h.call(http.MethodGet, "/workers?model_name="+model, nil, &ws); err != nil {
		return err.Error()
	}
	var out []string
	for _, w := range ws {
		for rank, l := range w.Listeners {
			seq := "none"
			if l.LastSeq != nil {
				seq = strconv.FormatUint(*l.LastSeq, 10)
			}
			out = append(out, fmt.Sprintf("rank %s %s, batch %s, epoch %d, %d gaps, %d lost, %d restarts, %q", rank, l.Status, seq, l.Epoch, l.Gaps, l.Lost, l.Restarts, l.Error))
		}
	}
	slices.Sort(out)
	return strings.Join(out, "; ")
}

// ledger rebuilds what one rank holds from its events alone: plain maps, no
// orphans, one tier. An engine's whole history needs no more.
type ledger struct {
	rank   int
	blocks map[kv.EngineHash]*ledgerBlock
}

type ledgerBlock struct {
	place  engine.Position
	seed   uint64
	copies int
}

func newLedger(rank int) *ledger { return &ledger{rank, map[kv.EngineHash]*ledgerBlock{}} }

// apply applies one batch of a vLLM engine with one cache group.
func (l *ledger) apply(b *kv.Batch) error {
	for i := range b.Events {
		e := &b.Events[i]
		switch e.Kind {
		case kv.KindCleared:
			clear(l.blocks)
		case kv.KindRemoved:
			for _, h := range e.Hashes {
				at := l.blocks[h]
				if at == nil {
					return fmt.Errorf("block %d is removed and not there", h)
				}
				if at.copies--; at.copies == 0 {
					delete(l.blocks, h)
				}
			}
		case kv.KindStored:
			if err := l.store(e); err != nil {
				return err
			}
		}
	}
	return nil
}

func (l *ledger) store(e *kv.Event) error {
	if len(e.Tokens) != e.BlockSize*len(e.Hashes) {
		return fmt.Errorf("%d tokens in %d blocks of %d", len(e.Tokens), len(e.Hashes), e.BlockSize)
	}
	seed := uint64(kv.HashSeed)
	place := engine.Root(seed)
	if e.HasParent {
		above := l.blocks[e.Parent]
		if above == nil {
			return fmt.Errorf("a store below %d, which is not there", e.Parent)
		}
		seed, place = above.seed, above.place
	} else if len(e.Extra) > 0 && len(e.Extra[0]) > 0 {
		seed = kv.ContentSeed("", e.Extra[0][0].ID)
		place = engine.Root(seed)
	}
	for i, h := range e.Hashes {
		place = place.Below(kv.HashBlock(seed, e.Tokens[i*e.BlockSize:(i+1)*e.BlockSize], nil))
		at := l.blocks[h]
		if at == nil || at.place != place {
			at = &ledgerBlock{place: place, seed: seed}
			l.blocks[h] = at
		}
		at.copies++
	}
	return nil
}

// add adds what the rank holds to a content.
func (l *ledger) add(c content) {
	for h, b := range l.blocks {
		c[holding{l.rank, h, b.place, "device"}] = b.copies
	}
}
