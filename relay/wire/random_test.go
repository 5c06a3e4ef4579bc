// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"math/rand/v2"
	"reflect"
	"testing"

	"kindex/internal/kv"
)

func testRand(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 1)) }

func pick[T any](rng *rand.Rand, of ...T) T { return of[rng.IntN(len(of))] }

// randomBatch makes a batch of n events with only what layout l can say.
func randomBatch(rng *rand.Rand, l *Layout, n int) *kv.Batch {
	b := &kv.Batch{Timestamp: rng.Float64() * 2e9}
	if rng.IntN(4) > 0 {
		b.Rank, b.HasRank = pick(rng, 0, 1, 200, 70000), true
	}
	for range n {
		b.Events = append(b.Events, randomEvent(rng, l))
	}
	return b
}

func randomEvent(rng *rand.Rand, l *Layout) kv.Event {
	e := kv.Event{Kind: pick(rng, kv.KindStored, kv.KindStored, kv.KindRemoved, kv.KindCleared)}
	if e.Kind == kv.KindCleared {
		return e
	}
	if l.Signed {
		e.Form = kv.FormSigned
	} else {
		e.Form = pick(rng, kv.FormUnsigned, kv.FormBytes)
	}
	hashes := pick(rng, 0, 1, 2, 15, 16, 40)
	if e.Form == kv.FormBytes && hashes > 0 {
		e.Digests = make([][]byte, hashes)
	}
	e.Hashes = make([]kv.EngineHash, hashes)
	for i := range e.Hashes {
		var digest []byte
		if e.Hashes[i], digest = randomHash(rng, e.Form); digest != nil {
			e.Digests[i] = digest
		}
	}
	for _, f := range l.fields(e.Kind) {
		if f.Always || rng.IntN(2) == 0 {
			randomField(rng, &e, f.Field, l)
		}
	}
	return e
}

func randomHash(rng *rand.Rand, form kv.HashForm) (kv.EngineHash, []byte) {
	v := rng.Uint64() >> pick(rng, 0, 0, 0, 1, 32, 50, 57)
	if form != kv.FormBytes {
		return kv.EngineHash(v), nil
	}
	digest := make([]byte, pick(rng, 16, 32, 8, 9))
	for i := range digest {
		digest[i] = byte(rng.Uint32())
	}
	return kv.EngineHash(binary.BigEndian.Uint64(digest[len(digest)-8:])), digest
}

func randomTokens(rng *rand.Rand, n int) []uint32 {
	out := make([]uint32, n)
	bits := pick(rng, 0, 0, 12, 16, 20, 25)
	for i := range out {
		out[i] = rng.Uint32() >> bits
	}
	return out
}

func randomField(rng *rand.Rand, e *kv.Event, f Field, l *Layout) {
	words := []string{"s", "über", string(make([]byte, 31)), string(make([]byte, 32))}
	if rng.IntN(20) == 0 {
		words = []string{string(make([]byte, 255)), string(make([]byte, 256)), string(make([]byte, 70000))}
	}
	switch f {
	case FieldParent:
		if e.HasParent = rng.IntN(2) == 0; e.HasParent {
			e.Parent, e.ParentDigest = randomHash(rng, e.Form)
		}
	case FieldTokens:
		n := pick(rng, 0, 1, 3, 4, 5, 16, 64, 257)
		if e.Tokens = randomTokens(rng, n); l.Engine == "sglang" && n > 0 && rng.IntN(3) == 0 {
			e.Second = randomTokens(rng, n)
		}
	case FieldBlockSize:
		e.BlockSize = pick(rng, 0, 1, 16, 64, 1024, 1<<20)
	case FieldLoRAID:
		if e.HasLoRAID = rng.IntN(2) == 0; e.HasLoRAID {
			e.LoRAID = pick[int64](rng, 0, 1, -1, -33, -129, -40000, -1<<40, 1<<40)
		}
	case FieldMedium:
		e.Medium = pick(rng, "", "GPU", "CPU", "CPU_PINNED", "DISK", "STORAGE", "EXTERNAL", "TAPE")
		e.Tier = TierOf(e.Medium)
	case FieldLoRAName:
		e.LoRAName = pick(rng, append(words, "")...)
	case FieldExtraKeys:
		randomExtra(rng, e, l)
	case FieldGroup:
		e.Group, e.HasGroup = pick(rng, 0, 1, 200), true
	case FieldSpec:
		e.SpecName = pick(rng, "full_attention", "sliding_window", "mamba")
		e.Spec = SpecOf(e.SpecName)
	case FieldWindow:
		e.Window, e.HasWindow = pick(rng, 0, 64, 4096), true
	case FieldLocality:
		e.Locality = pick(rng, kv.LocalityUnstated, kv.LocalityLocal, kv.LocalityRemote)
	case FieldOwnership:
		e.Ownership = pick(rng, words...)
	case FieldSession:
		e.SessionID = pick(rng, words...)
	case FieldSalt:
		e.Salt, e.HasSalt = pick(rng, append(words, "")...), true
	case FieldLookahead:
		e.Lookahead = make([][]uint32, len(e.Hashes))
		for i := range e.Lookahead {
			e.Lookahead[i] = randomTokens(rng, rng.IntN(5))
		}
	default:
	}
}

func randomExtra(rng *rand.Rand, e *kv.Event, l *Layout) {
	if len(e.Hashes) == 0 {
		return // an empty list says the same as none
	}
	e.HasExtra, e.Extra = true, make([][]kv.ExtraKey, len(e.Hashes))
	for i := range e.Extra {
		for range rng.IntN(3) {
			k := kv.ExtraKey{ID: pick(rng, "a", "adapter", "0123456789abcdef0123456789abcdef0123456789abcdef")}
			switch rng.IntN(3) {
			case 0:
				if !l.BareItems {
					k.Kind, k.Offset = kv.ExtraItem, pick[int64](rng, 0, 5, -5, -300, 1<<40)
				}
			case 1:
				k.Kind, k.ID = kv.ExtraBytes, string([]byte{0xff, byte(rng.Uint32()), 0})
			}
			e.Extra[i] = append(e.Extra[i], k)
		}
	}
}

// checkRoundTrip encodes b and wants from the decoder the same facts, and from
// them the same bytes.
func checkRoundTrip(t *testing.T, d *Decoder, b *kv.Batch, l *Layout) {
	t.Helper()
	payload := AppendBatch(nil, b, l)
	var got kv.Batch
	if err := d.Decode(payload, &got); err != nil {
		t.Fatalf("%s %s: %v", l.Engine, l.Since, err)
	}
	if drops := d.Drops(); drops.Total() != 0 {
		t.Fatalf("%s %s: left out %v", l.Engine, l.Since, drops)
	}
	if got.Timestamp != b.Timestamp || got.Rank != b.Rank || got.HasRank != b.HasRank || len(got.Events) != len(b.Events) {
		t.Fatalf("%s %s: the batch reads as %+v, want %+v", l.Engine, l.Since, got, b)
	}
	for i := range b.Events {
		g, w := &got.Events[i], &b.Events[i]
		if g.Kind != w.Kind || g.Tier != w.Tier || g.Spec != w.Spec {
			t.Fatalf("%s %s event %d: reads as %+v, want %+v", l.Engine, l.Since, i, g, w)
		}
		for f := FieldHashes; f < numFields; f++ {
			if have, want := fact(g, f), fact(w, f); !reflect.DeepEqual(have, want) {
				t.Fatalf("%s %s event %d: %s reads as %v, want %v", l.Engine, l.Since, i, f, have, want)
			}
		}
	}
	if again := AppendBatch(nil, &got, l); string(again) != string(payload) {
		t.Fatalf("%s %s: encoded again\n got %x\nwant %x", l.Engine, l.Since, again, payload)
	}
}

func TestRoundTrip(t *testing.T) {
	for _, l := range Layouts() {
		var d Decoder
		for seed := range uint64(30) {
			rng := testRand(seed)
			checkRoundTrip(t, &d, randomBatch(rng, &l, rng.IntN(20)), &l)
		}
	}
}
