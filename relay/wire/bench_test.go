// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"

	"kindex/internal/kv"
)

const (
	benchEvents = 10
	benchBlocks = 20
	benchTokens = 16
)

// typical returns a batch of stored events as a busy engine publishes them,
// with token ids below vocabulary.
func typical(vocabulary uint32, digests bool) *kv.Batch {
	rng := rand.New(rand.NewPCG(1, uint64(vocabulary)))
	b := &kv.Batch{Timestamp: 1796010953.37, HasRank: true}
	for range benchEvents {
		e := kv.Event{
			Kind: kv.KindStored, BlockSize: benchTokens, Medium: "GPU",
			HasExtra: true, HasGroup: true, SpecName: "full_attention", Spec: kv.SpecFull,
			SessionID: "session-1", HasParent: true, Parent: kv.EngineHash(rng.Uint64()),
			Extra: make([][]kv.ExtraKey, benchBlocks),
		}
		for range benchBlocks {
			e.Hashes = append(e.Hashes, kv.EngineHash(rng.Uint64()))
			for range benchTokens {
				e.Tokens = append(e.Tokens, rng.Uint32N(vocabulary))
			}
		}
		if digests {
			e.Form = kv.FormBytes
			e.Digests = make([][]byte, benchBlocks)
			for i, h := range e.Hashes {
				e.Digests[i] = binary.BigEndian.AppendUint64(make([]byte, 24), uint64(h))
			}
			e.ParentDigest = make([]byte, 32)
		}
		b.Events = append(b.Events, e)
	}
	return b
}

func layout(t testing.TB, engine, version string) *Layout {
	t.Helper()
	l, err := LayoutFor(engine, version)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// BenchmarkDecode measures ns per block of 16 tokens, payload to events.
func BenchmarkDecode(b *testing.B) {
	for _, c := range []struct {
		form, version string
	}{{"map", "0.32.0"}, {"array", "0.22.0"}} {
		for _, digests := range []bool{false, true} {
			for _, vocabulary := range []uint32{2048, 32000, 151936} {
				hashes := "int"
				if digests {
					hashes = "bytes"
				}
				b.Run(fmt.Sprintf("%s/%s/vocabulary=%d", c.form, hashes, vocabulary), func(b *testing.B) {
					payload := AppendBatch(nil, typical(vocabulary, digests), layout(b, "vllm", c.version))
					var d Decoder
					var out kv.Batch
					b.ReportAllocs()
					b.SetBytes(int64(len(payload)))
					for b.Loop() {
						if err := d.Decode(payload, &out); err != nil {
							b.Fatal(err)
						}
					}
					b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*benchEvents*benchBlocks), "ns/block")
				})
			}
		}
	}
}

// BenchmarkDecodePairs measures ns per page of 16 pairs of tokens.
func BenchmarkDecodePairs(b *testing.B) {
	batch := typical(32000, false)
	for i := range batch.Events {
		e := &batch.Events[i]
		e.Second = append(e.Tokens[1:len(e.Tokens):len(e.Tokens)], 1)
	}
	payload := AppendBatch(nil, batch, layout(b, "sglang", "0.5.23"))
	var d Decoder
	var out kv.Batch
	b.ReportAllocs()
	for b.Loop() {
		if err := d.Decode(payload, &out); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*benchEvents*benchBlocks), "ns/block")
}

// BenchmarkSkip measures stepping over a whole batch.
func BenchmarkSkip(b *testing.B) {
	payload := AppendBatch(nil, typical(32000, false), layout(b, "vllm", "0.32.0"))
	for b.Loop() {
		r := reader{buf: payload}
		if !r.skip() {
			b.Fatal(r.err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*benchEvents*benchBlocks), "ns/block")
}

// BenchmarkEncode measures the way back.
func BenchmarkEncode(b *testing.B) {
	batch, l := typical(32000, false), layout(b, "vllm", "0.32.0")
	var out []byte
	for b.Loop() {
		out = AppendBatch(out[:0], batch, l)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*benchEvents*benchBlocks), "ns/block")
}
