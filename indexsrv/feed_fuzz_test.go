// SPDX-License-Identifier: Apache-2.0

package indexsrv

import (
	"errors"
	"testing"
	"time"

	"github.com/tinylib/msgp/msgp"

	"kindex/internal/kv"
)

// One bad event costs itself: an unknown tag beside a store, unknown fields, a
// field of a wrong type; and no batch is lost.
func TestBadEventsCostThemselves(t *testing.T) {
	batch := func(events ...[]byte) []byte {
		b := msgp.AppendArrayHeader(nil, 3)
		b = msgp.AppendFloat64(b, 1)
		b = msgp.AppendArrayHeader(b, uint32(len(events)))
		for _, e := range events {
			b = append(b, e...)
		}
		return msgp.AppendInt(b, 0)
	}
	hashes := func(b []byte) []byte {
		b = msgp.AppendArrayHeader(b, 4)
		for h := range uint64(4) {
			b = msgp.AppendUint64(b, 11+h)
		}
		return b
	}
	tokens := func(b []byte) []byte {
		b = msgp.AppendArrayHeader(b, 4*testBlock)
		for h := range uint64(4) {
			for _, token := range blockTokens(11 + h) {
				b = msgp.AppendUint32(b, token)
			}
		}
		return b
	}
	unknown := msgp.AppendInt(msgp.AppendString(msgp.AppendArrayHeader(nil, 2), "BlockPinned"), 7)
	array := msgp.AppendString(msgp.AppendArrayHeader(nil, 7), "BlockStored")
	array = msgp.AppendNil(hashes(array))
	array = msgp.AppendInt(tokens(array), testBlock)
	array = msgp.AppendString(msgp.AppendNil(array), "GPU")
	object := func(tokens func([]byte) []byte) []byte {
		b := msgp.AppendMapHeader(nil, 8)
		b = msgp.AppendString(msgp.AppendString(b, "type"), "BlockStored")
		b = hashes(msgp.AppendString(b, "block_hashes"))
		b = msgp.AppendNil(msgp.AppendString(b, "parent_block_hash"))
		b = tokens(msgp.AppendString(b, "token_ids"))
		b = msgp.AppendInt(msgp.AppendString(b, "block_size"), testBlock)
		b = msgp.AppendNil(msgp.AppendString(b, "lora_id"))
		b = msgp.AppendMapHeader(msgp.AppendString(b, "tomorrow"), 0)
		return msgp.AppendBool(msgp.AppendString(b, "and_after"), true)
	}
	for _, tc := range []struct {
		name   string
		frame  []byte
		depth  int
		reason string
	}{
		{"unknown tag, then an array", batch(unknown, array), 4, "unknown_event"},
		{"map with unknown fields", batch(object(tokens)), 4, ""},
		{"tokens are a string", batch(object(func(b []byte) []byte { return msgp.AppendString(b, "1,2,3") })), 0, "bad_field"},
	} {
		f := newFeedTest(t, false, nil).connect()
		f.Live(0, tc.frame, f.now)
		f.live(1, storeOf(0, 77))
		if got := depth(f.w, f.h, 11, 12, 13, 14); got != tc.depth {
			t.Errorf("%s: depth %d, want %d", tc.name, got, tc.depth)
		}
		want := map[string]uint64{}
		if tc.reason != "" {
			want[tc.reason] = 1
		}
		st := f.Status()
		if got := nonzero(st.Dropped); len(got) != len(want) || got[tc.reason] != want[tc.reason] {
			t.Errorf("%s: dropped %v, want %v", tc.name, got, want)
		}
		if st.Batches != 2 || st.Lost != 0 {
			t.Errorf("%s: got %s; want 2 batches, 0 lost", tc.name, statusLine(st))
		}
	}
}

// FuzzFeed drives a feed with any inputs in any order. It must not panic, must
// keep within its bounds, and must never ask for more than one thing at a time.
func FuzzFeed(f *testing.F) {
	f.Add(true, []byte("C\x00L\x00\x00L\x03\x01R\x01\x00E\x00D\x00C\x00"))
	f.Add(false, []byte("C\x00L\x05\x00L\x00\x01L\x01\x02D\x00C\x00L\x02\x00"))
	f.Add(true, []byte("C\x00R\x00\x00R\x02\x01E\x00F\x00T\x00R\x01\x03E\x00"))
	payloads := [][]byte{
		payload(storeOf(0, 1, 2)), payload(storeOf(2, 3), removeOf(1)), payload(clearAll()), payload(storeOf(9, 4)),
		payload(kv.Event{Kind: kv.KindStored, Hashes: []kv.EngineHash{1}, Medium: "CPU"}),
		{},
		[]byte("garbage"),
		payload(),
	}
	f.Fuzz(func(t *testing.T, replay bool, ops []byte) {
		feed := newFeedTest(t, replay, func(c *StreamConfig) { c.Limits.HeldBatches = 4 })
		var id uint64
		for len(ops) >= 3 {
			op, arg, p := ops[0], uint64(ops[1]), payloads[int(ops[2])%len(payloads)]
			ops = ops[3:]
			if arg > 250 {
				arg = 1<<64 - 256 + arg // numbers at the end of the range
			}
			switch op % 8 {
			case 0:
				feed.Connected(feed.now)
			case 1:
				feed.Disconnected("test", feed.now)
			case 2, 3:
				feed.Live(arg, p, feed.now)
			case 4:
				feed.ReplayBatch(id, arg, p, feed.now)
			case 5:
				feed.ReplayEnd(id, feed.now)
			case 6:
				feed.ReplayFailed(id, errors.New("test"), feed.now)
			case 7:
				feed.now = feed.now.Add(time.Duration(arg) * time.Second)
			}
			req, ask, _ := feed.Next(feed.now)
			if ask {
				if !replay || req.ID <= id {
					t.Fatalf("request %d after %d, replay %v", req.ID, id, replay)
				}
				id = req.ID
				if _, again, _ := feed.Next(feed.now); again {
					t.Fatal("asked twice")
				}
			}
			st := feed.Status()
			if st.HeldBatches > 4 || (st.HeldBatches == 0) != (st.HeldBytes == 0) {
				t.Fatalf("held %d batches, %d bytes", st.HeldBatches, st.HeldBytes)
			}
			if !replay && (st.HeldBatches > 0 || st.Repairing && st.Connected) {
				t.Fatalf("waiting without a replay socket: %s", statusLine(st))
			}
		}
	})
}
