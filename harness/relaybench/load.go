// SPDX-License-Identifier: Apache-2.0

// Before: nothing, a seed. After: a relay's sockets.

package relaybench

import (
	"context"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"runtime"
	"time"

	"kindex/harness/publish"
	"kindex/internal/kv"
	"kindex/numa"
	"kindex/relay/wire"
)

// Shape of the stream: as in the measurement of the peer that ours is held against.
const (
	blockTokens = 16
	vocabulary  = 150_000
	perChain    = 16 // batches of one chain
	fillBlocks  = 256
	fillBurst   = 25      // batches under way
	napMost     = 500_000 // ns
)

// load makes batches and sends them.
type load struct {
	raw    *publish.Raw
	layout *wire.Layout
	rng    *rand.Rand
	blocks int // of a batch
	seq    uint64
	stored int // blocks so far
	chain  int // batches of this chain so far
	parent kv.EngineHash
}

func newLoad(raw *publish.Raw, blocks int, seed uint64) (*load, error) {
	layout, err := wire.LayoutFor("vllm", "0.32.0")
	if err != nil {
		return nil, err
	}
	return &load{raw: raw, layout: layout, rng: rand.New(rand.NewPCG(seed, 0x6c6f6164)), blocks: blocks}, nil //nolint:gosec // seeded on purpose
}

// payload makes the next batch, of n blocks, without its time.
func (l *load) payload(n int, root bool) []byte {
	e := kv.Event{
		Kind: kv.KindStored, BlockSize: blockTokens, Medium: "GPU",
		Group: 0, HasGroup: true, SpecName: "full_attention", Spec: kv.SpecFull,
	}
	if root || l.chain%perChain == 0 {
		l.chain = 0
	} else {
		e.Parent, e.HasParent = l.parent, true
	}
	l.chain++
	for range n {
		e.Hashes = append(e.Hashes, kv.EngineHash(l.rng.Uint64()))
		for range blockTokens {
			e.Tokens = append(e.Tokens, uint32(l.rng.IntN(vocabulary)))
		}
	}
	l.parent = e.Hashes[n-1]
	l.stored += n
	b := kv.Batch{Rank: 0, HasRank: true, Events: []kv.Event{e}}
	return wire.AppendBatch(nil, &b, l.layout)
}

// stamp puts the present time into a payload, whose first element it is.
func stamp(payload []byte) {
	const at = 2 // behind the array's header and the float's tag
	binary.BigEndian.PutUint64(payload[at:], math.Float64bits(float64(time.Now().UnixNano())/1e9))
}

func (l *load) send(payload []byte) error {
	stamp(payload)
	err := l.raw.Send(l.seq, payload)
	l.seq++
	return err
}

// run sends n batches, rate a second, each when it is due.
func (l *load) run(ctx context.Context, n, rate int) error {
	ready := make([][]byte, n)
	for i := range ready {
		ready[i] = l.payload(l.blocks, false)
	}
	// Naps are the thread's.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	began := time.Now()
	for i, payload := range ready {
		due := began.Add(time.Duration(float64(i) / float64(rate) * float64(time.Second)))
		for left := time.Until(due); left > 0; left = time.Until(due) {
			numa.Nap(min(int64(left), napMost))
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err := l.send(payload); err != nil {
			return err
		}
	}
	return nil
}

// fill sends what is missing to so many stored blocks, in large batches, a few at a
// time: arrived waits until the subscriber has them.
func (l *load) fill(ctx context.Context, state int, arrived func() error) error {
	for i := 1; l.stored < state; i++ {
		if err := l.send(l.payload(min(fillBlocks, state-l.stored), true)); err != nil {
			return err
		}
		if i%fillBurst > 0 && l.stored < state {
			continue
		}
		if err := arrived(); err != nil {
			return err
		}
	}
	return ctx.Err()
}
