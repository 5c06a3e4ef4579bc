// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"kindex/internal/kv"
	"kindex/relay/wire"
)

// BenchmarkRequest makes requests of 15,000 tokens, 95 % of them cached, and 200
// tokens of answer, ten at once, in a model's time: what an engine costs besides its
// fronts. hash is the hashing of the prompt alone; wire is with the batches encoded.
func BenchmarkRequest(b *testing.B) {
	const tokens, fresh, answer, atOnce = 15_000, 750, 200, 10
	for _, hash := range []string{"sha256_cbor", "sha256", "xxhash_cbor"} {
		cfg := Config{Engine: VLLM, Hash: hash, Blocks: 20_000, Timing: DefaultTiming()}
		m, err := NewModel(cfg)
		if err != nil {
			b.Fatal(err)
		}
		rng := rand.New(rand.NewPCG(1, 1))
		var bases [10][]uint32
		for i := range bases {
			bases[i] = make([]uint32, tokens-fresh)
			for k := range bases[i] {
				bases[i][k] = rng.Uint32N(100_000)
			}
		}
		prompt := func() []uint32 {
			p := append(make([]uint32, 0, tokens), bases[rng.IntN(len(bases))]...)
			for range fresh {
				p = append(p, rng.Uint32N(100_000))
			}
			return p
		}
		b.Run(hash+"/hash", func(b *testing.B) {
			p := prompt()
			b.ReportAllocs()
			for b.Loop() {
				m.Prompt(p, "", "")
			}
		})
		b.Run(hash+"/whole", func(b *testing.B) {
			layout, err := wire.LayoutFor(VLLM, "0.32.0")
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			var buf []byte
			cached, asked := 0, 0
			open := map[int]<-chan Output{}
			for b.Loop() {
				for len(open) == atOnce {
					events, _ := m.Step()
					if len(events) > 0 {
						batch := kv.Batch{HasRank: true, Events: events}
						buf = wire.AppendBatch(buf[:0], &batch, layout)
					}
					for i, out := range open {
						for len(out) > 0 {
							if o := <-out; o.Finish != "" {
								cached += o.Cached
								delete(open, i)
							}
						}
					}
				}
				out, err := m.Submit(Request{ID: fmt.Sprint(asked), Tokens: prompt(), MaxTokens: answer})
				if err != nil {
					b.Fatal(err)
				}
				open[asked] = out
				asked++
			}
			if done := asked - len(open); done > 2*atOnce {
				b.ReportMetric(float64(cached)/float64(done*tokens)*100, "%cached")
			}
		})
	}
}
