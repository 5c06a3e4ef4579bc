// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"strconv"
	"testing"
	"time"

	"kindex/indexsrv"
	"kindex/internal/kv"
	"kindex/shard"
)

// reference is the oracle for one worker: its ranks' streams through the same
// decoding into plain maps, without sockets, HTTP or threads.
type reference struct {
	block int
	model kv.ModelKey
	idx   *indexsrv.Writer
	feeds map[int]*indexsrv.Feed // by rank
	ranks map[shard.Holder]int
}

func newReference(t *testing.T, block int) *reference {
	t.Helper()
	idx, err := shard.New("reference", shard.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return &reference{
		block: block, model: kv.MakeModelKey("", "reference", ""), idx: indexsrv.NewWriter(idx),
		feeds: map[int]*indexsrv.Feed{}, ranks: map[shard.Holder]int{},
	}
}

// add begins one rank's stream.
func (r *reference) add(t *testing.T, rank int, p *publisher) {
	t.Helper()
	h, err := r.idx.AddHolder(r.model)
	if err != nil {
		t.Fatal(err)
	}
	r.ranks[h] = rank
	f := indexsrv.NewFeed(indexsrv.StreamConfig{
		Rank: rank, Endpoint: p.Live, ReplayEndpoint: p.Replay, Model: r.model, BlockSize: r.block,
	}, r.idx, h)
	r.feeds[rank] = f
	f.Connected(time.Now())
	r.settle(rank, p)
}

// live takes one batch of a rank's stream.
func (r *reference) live(rank int, p *publisher, seq uint64, payload []byte) {
	r.feeds[rank].Live(seq, payload, time.Now())
	r.settle(rank, p)
}

// settle answers what the feed wants replayed from the publisher's own buffer.
func (r *reference) settle(rank int, p *publisher) {
	f := r.feeds[rank]
	for {
		req, ask, _ := f.Next(time.Now())
		if !ask {
			return
		}
		for i, payload := range p.from(req.Start) {
			f.ReplayBatch(req.ID, req.Start+uint64(i), payload, time.Now())
		}
		f.ReplayEnd(req.ID, time.Now())
	}
}

// answer returns what an index host must reply to q about worker id.
func (r *reference) answer(q *question, id string) reply {
	out := reply{Scores: map[string]map[string]int{}, Instances: map[string]instance{}}
	seed := kv.ContentSeed(q.LoRA, q.Salt)
	var chain []kv.ContentHash
	for _, h := range q.Hashes {
		chain = append(chain, kv.ContentHash(h))
	}
	if q.Hashes == nil {
		blocks := kv.Blocks{Tokens: q.Tokens, BlockSize: r.block}
		chain = blocks.AppendHashes(nil, seed)
	}
	found := r.idx.Lookup(r.model.Namespace(seed), chain, nil)
	if len(found) == 0 {
		return out
	}
	in := instance{Ranks: map[string]int{}}
	for _, m := range found {
		rank := strconv.Itoa(r.ranks[shard.Holder(m.Holder)])
		device := int(m.Device) * r.block
		in.Ranks[rank] = device
		in.GPU = max(in.GPU, device)
		in.CPU = max(in.CPU, int(m.Host)*r.block)
		in.Disk = max(in.Disk, int(m.Any)*r.block)
		if device > 0 {
			if out.Scores[id] == nil {
				out.Scores[id] = map[string]int{}
			}
			out.Scores[id][rank] = device
		}
	}
	in.Longest = in.Disk
	out.Instances[id] = in
	return out
}
