// SPDX-License-Identifier: Apache-2.0

//go:build linux

package indexsrv

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
	"time"

	"kindex/indexclient"
	"kindex/internal/kv"
	"kindex/internal/lookup"
)

// shmHost is a host over shared memory, and a client of it.
type shmHost struct {
	*testHost
	client lookup.Index
	path   string
}

func startShmHost(t *testing.T, change func(*Config)) *shmHost {
	t.Helper()
	h := &shmHost{path: filepath.Join(t.TempDir(), "s")}
	h.testHost = startTestHost(t, func(c *Config) {
		c.Shm.Listen, c.ShardsPerNode = h.path, 3
		if change != nil {
			change(c)
		}
	})
	c, err := indexclient.Dial(t.Context(), "unix:"+h.path, indexclient.Options{Timeout: 20 * time.Second, Wait: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	h.client = c
	return h
}

// randomQuery asks about content that churnContent may have put there.
func randomQuery(r *rand.Rand, instances int) *lookup.Query {
	q := &lookup.Query{Model: []string{"m", "m", "m", "other", "nobody's"}[r.IntN(5)], LoRA: []string{"", "", "ad"}[r.IntN(3)]}
	for range r.IntN(12) {
		q.Hashes = append(q.Hashes, kv.ContentHash(r.IntN(4)))
	}
	if r.IntN(4) == 0 {
		q.Only = []string{}
		for range r.IntN(4) {
			q.Only = append(q.Only, fmt.Sprint(r.IntN(instances+2)))
		}
	}
	if r.IntN(3) == 0 {
		q.Limit = 1 + r.IntN(5)
	}
	switch r.IntN(40) {
	case 0:
		q.Tenant, q.Group = "t", "g"
	case 1:
		q.Extra = [][]byte{{1}}
	case 2:
		q.Model = ""
	case 3:
		q.Limit = -1
	}
	return q
}

// same compares the client's answer with the host's own.
func (h *shmHost) same(q *lookup.Query, want, got *lookup.Answer) {
	h.t.Helper()
	wantErr := h.Lookup(context.Background(), q, want)
	gotErr := h.client.Lookup(context.Background(), q, got)
	if said, ok := errors.AsType[*indexclient.HostError](gotErr); ok {
		gotErr = said.Err
	}
	if lookup.KindOf(wantErr) != lookup.KindOf(gotErr) || wantErr != nil && wantErr.Error() != gotErr.Error() {
		h.t.Fatalf("%+v:\n got %v\nwant %v", q, gotErr, wantErr)
	}
	if wantErr == nil && (want.BlockSize != got.BlockSize || !slices.Equal(want.Matches, got.Matches)) {
		h.t.Fatalf("%+v:\n got %+v\nwant %+v", q, got, want)
	}
}

// TestShmAnswers: over shared memory a host answers as it does in process, while
// instances come and go.
func TestShmAnswers(t *testing.T) {
	h := startShmHost(t, nil)
	r := rand.New(rand.NewPCG(1, 2))
	var want, got lookup.Answer
	const instances = 24
	found := 0
	for i := range instances {
		model := []string{"m", "m", "other"}[i%3]
		reg := Registration{Instance: NumberID(uint64(i)), Model: model, BlockSize: testBlock, Endpoint: fmt.Sprintf("tcp://127.0.0.1:%d", 20_000+10*i), Ranks: 1 + i%3}
		if err := h.Register(t.Context(), reg); err != nil {
			t.Fatal(err)
		}
		for _, w := range h.reg.workers(nil) {
			if w.id.text == fmt.Sprint(i) {
				for _, rk := range *w.ranks.Load() {
					h.churnContent(rk, r, 60)
				}
			}
		}
		for range 100 {
			h.same(randomQuery(r, instances), &want, &got)
			found += len(got.Matches)
		}
		if i%4 == 3 {
			gone := Registration{Instance: NumberID(uint64(i - 2)), Model: []string{"m", "m", "other"}[(i-2)%3]}
			if err := h.Unregister(t.Context(), gone, false); err != nil {
				t.Fatal(err)
			}
			for range 20 {
				h.same(randomQuery(r, instances), &want, &got)
			}
		}
	}
	if found < 1000 {
		t.Errorf("%d matches in all: nothing was compared", found)
	}
	t.Logf("%d matches compared", found)
	ws, err := h.client.Workers(t.Context(), lookup.Filter{Model: "other"})
	own, err2 := h.Workers(t.Context(), lookup.Filter{Model: "other"})
	if err != nil || err2 != nil || len(own) == 0 || !reflect.DeepEqual(ws, own) {
		t.Errorf("workers: got %+v (%v)\nwant %+v (%v)", ws, err, own, err2)
	}
}
