// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"github.com/tinylib/msgp/msgp"

	"kindex/internal/kv"
)

// checkDecode decodes payload every way there is and compares.
func checkDecode(t *testing.T, payload []byte) {
	t.Helper()
	if len(payload) > 1<<16 {
		return // the oracle recurses
	}
	rest, skipErr := msgp.Skip(payload)
	r := reader{buf: payload}
	if ok := r.skip(); ok != (skipErr == nil) || (ok && r.left() != len(rest)) {
		t.Fatalf("skip %x: %v with %d left, the oracle says %v with %d left", payload, ok, r.left(), skipErr, len(rest))
	}

	var d Decoder
	var b kv.Batch
	err := d.Decode(payload, &b)
	if err != nil && !errors.Is(err, ErrMalformed) {
		t.Fatalf("decode %x: error %v is not ErrMalformed", payload, err)
	}
	if err != nil && (len(b.Events) > 0 || d.Drops() != Drops{}) {
		t.Fatalf("decode %x: %d events and drops %v beside error %v", payload, len(b.Events), d.Drops(), err)
	}
	want, drops, ok := oracleDecode(payload)
	if ok != (err == nil) {
		t.Fatalf("decode %x: error %v, the oracle says %v", payload, err, ok)
	}
	if err != nil {
		return
	}
	if got := oracleLines(&b); !slices.Equal(got, want) || d.Drops() != drops {
		t.Fatalf("decode %x:\n got %q, left out %v\nwant %q, left out %v", payload, got, d.Drops(), want, drops)
	}
	used := cap(b.Events)*64 + cap(b.Storage.Hashes) + cap(b.Storage.Tokens) + cap(b.Storage.Digests) +
		cap(b.Storage.Keys) + cap(b.Storage.KeyLists) + cap(b.Storage.TokenLists)
	if most := 16*len(payload) + 4096; used > most {
		t.Fatalf("decode %x: %d elements taken for %d bytes", payload, used, len(payload))
	}

	// A decoder and a batch that have seen other things read the same.
	var worn Decoder
	for _, other := range wear {
		if err := worn.Decode(other, &b); err != nil {
			t.Fatal(err)
		}
	}
	before := worn.Drops()
	if err := worn.Decode(payload, &b); err != nil {
		t.Fatalf("decode %x again: %v", payload, err)
	}
	after := worn.Drops()
	for i := range after {
		after[i] -= before[i]
	}
	if got := oracleLines(&b); !slices.Equal(got, want) || after != drops {
		t.Fatalf("decode %x again:\n got %q, left out %v\nwant %q, left out %v", payload, got, after, want, drops)
	}
}

var wear = func() (out [][]byte) {
	for i, l := range Layouts() {
		out = append(out, small(&l, uint64(i)))
	}
	return append(out, batchOf(stored("medium", 1), nil, list{"New"}))
}()

// small returns a payload in layout l that a mutation can still find its way
// in.
func small(l *Layout, seed uint64) []byte {
	for {
		if p := AppendBatch(nil, randomBatch(testRand(seed), l, 3), l); len(p) < 1000 {
			return p
		}
		seed += 100
	}
}

func FuzzDecode(f *testing.F) {
	for i, l := range Layouts() {
		f.Add(small(&l, uint64(i)))
	}
	f.Add(batchOf(stored("extra_keys", list{nil, list{list{"id", -3}, "salt", []byte{1}}}, "lookahead_token_ids", list{list{1}, list{2}})))
	f.Add(batchOf(stored("token_ids", list{list{1, 2}, list{2, 3}}), pairs{"x", 1, "type", "BlockRemoved", "block_hashes", list{[]byte("0123456789")}}))
	f.Add(batchOf(list{"New", 1}, nil, list{}, pairs{}, stored("medium", 1), stored("block_hashes", list{1.5})))
	f.Fuzz(checkDecode)
}

// TestDamaged changes recorded and made payloads at random places: whatever
// comes of it is read as the oracle reads it.
func TestDamaged(t *testing.T) {
	rng := testRand(77)
	damage := func(p []byte) []byte {
		p = bytes.Clone(p)
		for range 1 + rng.IntN(3) {
			at := rng.IntN(len(p))
			switch rng.IntN(4) {
			case 0:
				p[at] = byte(rng.Uint32())
			case 1:
				p[at] = pick(rng, byte(nilByte), unused, array32, map16, str8, bin8, uint64b, int64b, float64b, fixArray, fixMap, 0xff)
			case 2:
				p = slices.Delete(p, at, min(len(p), at+1+rng.IntN(9)))
			case 3:
				p = slices.Insert(p, at, pick(rng, pack(nil), pack("type"), pack(list{1, 2}), pack(-1), pack(2.5), pack(pairs{1, nil}))...)
			}
			if len(p) == 0 {
				return p
			}
		}
		return p
	}
	n, decoded := 0, 0
	count := func(p []byte) {
		n++
		if (&Decoder{}).Decode(p, new(kv.Batch)) == nil {
			decoded++
		}
		checkDecode(t, p)
	}
	for i, l := range Layouts() {
		for range 200 {
			p := AppendBatch(nil, randomBatch(testRand(uint64(i)+rng.Uint64N(50)), &l, 2), &l)
			if len(p) < 4000 {
				count(damage(p))
			}
		}
	}
	files := recordings(t)
	for i := 0; i < len(files); i += 3 {
		step := 0
		eachPayload(t, readRecording(t, files[i]), func(_ string, _ uint64, payload []byte) {
			if step++; step%20 == 0 {
				count(damage(payload))
			}
		})
	}
	t.Logf("%d damaged payloads, of which %d still decode", n, decoded)
	if decoded < n/20 || decoded > n*19/20 {
		t.Error("the damage is too much or too little to prove anything")
	}
}

func FuzzSkip(f *testing.F) {
	f.Add(pack(list{1, "x", pairs{1, list{2.5}}, []byte{1}, uint64(1 << 63), -1}))
	f.Add([]byte{ext8, 3, 1, 2, 3, 4})
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 1<<16 {
			return
		}
		rest, err := msgp.Skip(b)
		r := reader{buf: b}
		if ok := r.skip(); ok != (err == nil) || (ok && r.left() != len(rest)) {
			t.Fatalf("skip %x: %v with %d left, the oracle says %v with %d left", b, ok, r.left(), err, len(rest))
		}
	})
}

func FuzzRoundTrip(f *testing.F) {
	for i := range Layouts() {
		f.Add(uint64(i), uint8(i), uint8(3))
	}
	f.Fuzz(func(t *testing.T, seed uint64, which, events uint8) {
		all := Layouts()
		l := &all[int(which)%len(all)]
		checkRoundTrip(t, new(Decoder), randomBatch(testRand(seed), l, int(events%12)), l)
	})
}

// FuzzFrames: whatever the parts of a message, an answer and no panic.
func FuzzFrames(f *testing.F) {
	f.Add([]byte("kv-events"), []byte{0, 0, 0, 0, 0, 0, 0, 1}, []byte("payload"), uint8(3))
	f.Add([]byte{}, []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, []byte{}, uint8(3))
	f.Fuzz(func(t *testing.T, a, b, c []byte, n uint8) {
		frames := [][]byte{a, b, c, a, b}[:n%6]
		topic, payload, seq, err := ParseMessage(frames)
		if (err == nil) != (len(frames) == 3 && len(b) == 8) {
			t.Fatalf("live %x: error %v", frames, err)
		}
		if err == nil && !sameFrames(MakeMessage(string(topic), seq, payload), frames) {
			t.Fatalf("live %x: made again as %x", frames, MakeMessage(string(topic), seq, payload))
		}
		if payload, seq, end, err := ParseReplay(frames); err == nil && !end {
			again := MakeReplay(ReplayFrames(len(frames)-3), string(frames[1]), seq, payload)
			if !sameFrames(again, frames) {
				t.Fatalf("replay %x: made again as %x", frames, again)
			}
		}
		if start, err := ParseReplayRequest(frames); err == nil && len(frames[1]) == 8 && !sameFrames(MakeReplayRequest(start), frames) {
			t.Fatalf("request %x: made again as %x", frames, MakeReplayRequest(start))
		}
		if l, err := DecodeLoad(c); err == nil {
			if _, err := DecodeLoad(AppendLoad(nil, &l)); err != nil {
				t.Fatalf("load %x: cannot be read again: %v", c, err)
			}
		}
	})
}
