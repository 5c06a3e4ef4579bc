// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"math"
	"runtime"
	"slices"
	"strings"
	"testing"

	"kindex/internal/kv"
)

func decode(t *testing.T, payload []byte) (*kv.Batch, Drops) {
	t.Helper()
	var d Decoder
	var b kv.Batch
	if err := d.Decode(payload, &b); err != nil {
		t.Fatalf("decode %x: %v", payload, err)
	}
	return &b, d.Drops()
}

// stored is a stored event in the map form; more are keys and values that
// replace those there or come behind.
func stored(more ...any) pairs {
	p := pairs{
		"type", "BlockStored", "block_hashes",
		list{7, 8},
		"parent_block_hash", nil,
		"token_ids",
		list{1, 2, 3, 4},
		"block_size", 2, "lora_id", nil, "medium", "GPU",
	}
replacing:
	for ; len(more) > 0; more = more[2:] {
		for i := 0; i < len(p); i += 2 {
			if p[i] == more[0] {
				p[i+1] = more[1]
				continue replacing
			}
		}
		p = append(p, more[0], more[1])
	}
	return p
}

func TestReads(t *testing.T) {
	digest := bytes.Repeat([]byte{0xab}, 32)
	binary.BigEndian.PutUint64(digest[24:], 0xfedc_ba98_7654_3210)
	for _, c := range []struct {
		name  string
		event any
		want  string // the facts, as JSON
	}{
		{
			"the array form of the oldest release",
			list{"BlockStored", list{1}, nil, list{5, 6}, 2, nil},
			`{"type":"BlockStored","block_hashes":[1],"token_ids":[5,6],"block_size":2}`,
		},
		{
			"an array without a LoRA id",
			list{"BlockStored", list{1}, 9, list{5, 6}, 2},
			`{"type":"BlockStored","block_hashes":[1],"parent_block_hash":9,"token_ids":[5,6],"block_size":2}`,
		},
		{
			"an array of all known fields and two more",
			list{
				"BlockStored",
				list{1},
				nil,
				list{5, 6},
				2, 3, "CPU", "ad",
				list{list{"ad", list{"img", -4}}},
				1, "sliding_window", 64,
				list{list{1}},
				pairs{"a", 1},
			},
			`{"type":"BlockStored","block_hashes":[1],"token_ids":[5,6],"block_size":2,"lora_id":3,"medium":"CPU","lora_name":"ad",
			 "extra_keys":[["ad",["img",-4]]],"group_idx":1,"kv_cache_spec_kind":"sliding_window","kv_cache_spec_sliding_window":64}`,
		},
		{
			"an array cut after the medium",
			list{"BlockStored", list{1}, nil, list{}, 0, nil, "STORAGE"},
			`{"type":"BlockStored","block_hashes":[1],"token_ids":[],"block_size":0,"medium":"STORAGE"}`,
		},
		{"a removal as an array", list{"BlockRemoved", list{1, 2}}, `{"type":"BlockRemoved","block_hashes":[1,2]}`},
		{
			"a removal with a group and more",
			list{"BlockRemoved", list{1}, "GPU", 2, nil, "x"},
			`{"type":"BlockRemoved","block_hashes":[1],"medium":"GPU","group_idx":2}`,
		},
		{"a clear as an array", list{"AllBlocksCleared"}, `{"type":"AllBlocksCleared"}`},
		{"a clear with fields", list{"AllBlocksCleared", "GPU", 3}, `{"type":"AllBlocksCleared"}`},
		{"a clear as a map", pairs{"type", "AllBlocksCleared", "medium", 7}, `{"type":"AllBlocksCleared"}`},
		{
			"a map with its tag last",
			pairs{
				"token_ids",
				list{1, 2},
				"block_size", 2, "block_hashes",
				list{5},
				"extra",
				list{pairs{1, 2}},
				"type", "BlockStored",
			},
			`{"type":"BlockStored","block_hashes":[5],"token_ids":[1,2],"block_size":2}`,
		},
		{
			"unknown keys, of any type",
			pairs{
				3,
				list{"type"},
				"type", "BlockRemoved", nil, 1, "token_ids", "not ours", "block_hashes",
				list{5},
				list{1},
				2, "medium", nil,
			},
			`{"type":"BlockRemoved","block_hashes":[5]}`,
		},
		{
			"unsigned and negative hashes", stored("block_hashes", list{uint64(math.MaxUint64), math.MinInt64}, "parent_block_hash", -2),
			`{"type":"BlockStored","block_hashes":[18446744073709551615,9223372036854775808],"parent_block_hash":18446744073709551614,
			 "token_ids":[1,2,3,4],"block_size":2,"medium":"GPU"}`,
		},
		{
			"hashes as bytes", stored("block_hashes", list{digest, digest[16:]}, "parent_block_hash", digest),
			`{"type":"BlockStored","block_hashes":["` + strings.Repeat("ab", 24) + `fedcba9876543210","` + strings.Repeat("ab", 8) + `fedcba9876543210"],
			 "parent_block_hash":"` + strings.Repeat("ab", 24) + `fedcba9876543210","token_ids":[1,2,3,4],"block_size":2,"medium":"GPU"}`,
		},
		{
			"pairs of tokens", stored("token_ids", list{list{1, 2}, list{2, 3}, list{300, 301}, list{300, 70000}}),
			`{"type":"BlockStored","block_hashes":[7,8],"token_ids":[[1,2],[2,3],[300,301],[300,70000]],"block_size":2,"medium":"GPU"}`,
		},
		{
			"tokens of every width, the widest included",
			stored("token_ids", list{0, 127, 128, 255, 256, 65535, 65536, uint64(math.MaxUint32), raw{int8b, 5}, raw{int64b, 0, 0, 0, 0, 0, 0, 1, 0}, raw{uint64b, 0, 0, 0, 0, 0, 0, 0, 9}}),
			`{"type":"BlockStored","block_hashes":[7,8],"token_ids":[0,127,128,255,256,65535,65536,4294967295,5,256,9],"block_size":2,"medium":"GPU"}`,
		},
		{
			"no hashes", stored("block_hashes", list{}, "extra_keys", list{}),
			`{"type":"BlockStored","block_hashes":[],"token_ids":[1,2,3,4],"block_size":2,"medium":"GPU"}`,
		},
		{
			"extra keys of every shape",
			stored("extra_keys", list{list{"ad", list{"img", -16}, list{"img2", 3}, "salt", []byte{1, 2}}, nil}),
			`{"type":"BlockStored","block_hashes":[7,8],"token_ids":[1,2,3,4],"block_size":2,"medium":"GPU",
			 "extra_keys":[["ad",["img",-16],["img2",3],"salt","0102"],null]}`,
		},
		{
			"an empty list of extra keys", stored("extra_keys", list{}),
			`{"type":"BlockStored","block_hashes":[7,8],"token_ids":[1,2,3,4],"block_size":2,"medium":"GPU"}`,
		},
		{
			"locality, owner, session, salt, lookahead", stored("locality", "REMOTE", "ownership", "lmcache", "session_id", "s",
				"cache_salt", "", "lora_name", "ad", "lookahead_token_ids", list{list{1, 2}, list{}}),
			`{"type":"BlockStored","block_hashes":[7,8],"token_ids":[1,2,3,4],"block_size":2,"medium":"GPU","locality":"REMOTE",
			 "ownership":"lmcache","session_id":"s","cache_salt":"","lora_name":"ad","lookahead_token_ids":[[1,2],[]]}`,
		},
		{
			"a field twice: the last counts", append(stored(), "block_hashes", list{9}, "block_size", 4, "type", "BlockStored"),
			`{"type":"BlockStored","block_hashes":[9],"token_ids":[1,2,3,4],"block_size":4,"medium":"GPU"}`,
		},
		{
			"pairs, then singles", append(stored("token_ids", list{list{1, 2}}), "token_ids", list{3, 4}),
			`{"type":"BlockStored","block_hashes":[7,8],"token_ids":[3,4],"block_size":2,"medium":"GPU"}`,
		},
		{
			"nil where a field may be absent", stored("extra_keys", nil, "group_idx", nil, "kv_cache_spec_kind", nil,
				"kv_cache_spec_sliding_window", nil, "locality", nil, "ownership", nil, "session_id", nil, "cache_salt", nil,
				"lookahead_token_ids", nil, "lora_name", nil, "medium", nil),
			`{"type":"BlockStored","block_hashes":[7,8],"token_ids":[1,2,3,4],"block_size":2}`,
		},
	} {
		var want map[string]any
		dec := json.NewDecoder(strings.NewReader(c.want))
		dec.UseNumber()
		if err := dec.Decode(&want); err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		b, drops := decode(t, batchOf(c.event, list{"AllBlocksCleared"}))
		if drops.Total() != 0 {
			t.Errorf("%s: left out: %v", c.name, drops)
			continue
		}
		if s := Disagreement(b, []map[string]any{want, {"type": "AllBlocksCleared"}}); s != "" {
			t.Errorf("%s: %s", c.name, s)
		}
	}
}

func TestFormsOfHashes(t *testing.T) {
	digest := []byte{9, 8, 7, 6, 5, 4, 3, 2, 1, 0}
	for _, c := range []struct {
		name   string
		hashes list
		parent any
		want   []kv.EngineHash
		form   kv.HashForm
	}{
		{"small", list{1, 2}, nil, []kv.EngineHash{1, 2}, kv.FormUnsigned},
		{"great", list{uint64(1 << 63)}, 1, []kv.EngineHash{1 << 63}, kv.FormUnsigned},
		{"negative", list{-1}, 1, []kv.EngineHash{math.MaxUint64}, kv.FormSigned},
		{"a negative parent", list{1}, -1, []kv.EngineHash{1}, kv.FormSigned},
		{"bytes", list{digest, digest[:3]}, nil, []kv.EngineHash{0x0706050403020100, 0x090807}, kv.FormBytes},
		{"one of bytes", list{5, digest}, nil, []kv.EngineHash{5, 0x0706050403020100}, kv.FormBytes},
	} {
		b, _ := decode(t, batchOf(stored("block_hashes", c.hashes, "parent_block_hash", c.parent)))
		e := &b.Events[0]
		if !slices.Equal(e.Hashes, c.want) || e.Form != c.form {
			t.Errorf("%s: %x in form %d, want %x in form %d", c.name, e.Hashes, e.Form, c.want, c.form)
		}
		if (e.Digests != nil) != (c.form == kv.FormBytes) {
			t.Errorf("%s: digests are %v", c.name, e.Digests)
		}
		if c.form == kv.FormBytes && !bytes.Equal(e.Digests[len(e.Digests)-1], c.hashes[len(c.hashes)-1].([]byte)) {
			t.Errorf("%s: digest %x, want %x", c.name, e.Digests[len(e.Digests)-1], c.hashes[len(c.hashes)-1])
		}
	}
}

func TestTiersAndKinds(t *testing.T) {
	for medium, want := range map[any]kv.Tier{
		nil: kv.TierDevice, "": kv.TierDevice, "GPU": kv.TierDevice, "CPU": kv.TierHost, "CPU_PINNED": kv.TierHost,
		"DISK": kv.TierDisk, "STORAGE": kv.TierDisk, "EXTERNAL": kv.TierRemote, "gpu": kv.TierUnknown, "TAPE": kv.TierUnknown,
	} {
		b, _ := decode(t, batchOf(stored("medium", medium)))
		if got := b.Events[0].Tier; got != want {
			t.Errorf("medium %v is tier %s, want %s", medium, got, want)
		}
	}
	for name, want := range map[any]kv.SpecKind{
		nil: kv.SpecUnstated, "full_attention": kv.SpecFull, "mla_attention": kv.SpecFull, "sliding_window": kv.SpecWindow,
		"sliding_window_mla": kv.SpecWindow, "mamba": kv.SpecOther, "chunked_local_attention": kv.SpecOther, "new": kv.SpecOther,
	} {
		b, _ := decode(t, batchOf(stored("kv_cache_spec_kind", name)))
		if got := b.Events[0].Spec; got != want {
			t.Errorf("kind %v is %d, want %d", name, got, want)
		}
	}
}

// deep returns a value that nests n arrays.
func deep(n int) raw { return append(bytes.Repeat([]byte{fixArray | 1}, n), nilByte) }

func TestBadEventCostsItself(t *testing.T) {
	long := strings.Repeat("x", 300)
	for _, c := range []struct {
		name  string
		event any
		want  Reason
	}{
		{"unknown tag", list{"BlockMoved", list{1}, 2}, UnknownEvent},
		{"unknown tag in a map", pairs{"type", "BlockMoved", "block_hashes", "?"}, UnknownEvent},
		{"unknown tag last in a map", pairs{"block_hashes", 3, "type", "BlockMoved"}, UnknownEvent},
		{"unknown tag over a million levels", list{"BlockMoved", deep(1_000_000)}, UnknownEvent},
		{"empty tag", list{""}, UnknownEvent},
		{"nil", nil, BadEvent},
		{"a number", 5, BadEvent},
		{"a string", "BlockStored", BadEvent},
		{"an extension", raw{fixExt1, 1, 2}, BadEvent},
		{"an empty array", list{}, BadEvent},
		{"an empty map", pairs{}, BadEvent},
		{"a map without a tag", pairs{"block_hashes", list{1}}, BadEvent},
		{"a tag that is a number", list{1, list{1}}, BadEvent},
		{"a tag in a map that is nil", pairs{"type", nil}, BadEvent},
		{"no hashes", list{"BlockRemoved"}, MissingField},
		{"no tokens", list{"BlockStored", list{1}, nil}, MissingField},
		{"no block size", list{"BlockStored", list{1}, nil, list{1}}, MissingField},
		{"no tokens in a map", pairs{"type", "BlockStored", "block_hashes", list{1}, "block_size", 1}, MissingField},
		{"hashes that are nil", stored("block_hashes", nil), BadField},
		{"hashes that are a number", stored("block_hashes", 1), BadField},
		{"hashes that are a map", stored("block_hashes", pairs{1, 2}), BadField},
		{"a hash that is a float", stored("block_hashes", list{1, 1.0}), BadField},
		{"a hash that is a string", stored("block_hashes", list{"12345678"}), BadField},
		{"a hash that is nil", stored("block_hashes", list{nil}), BadField},
		{"a hash that is true", stored("block_hashes", list{true}), BadField},
		{"a hash of no bytes", stored("block_hashes", list{[]byte{}}), BadField},
		{"a parent that is a list", stored("parent_block_hash", list{1}), BadField},
		{"a parent that is a float", stored("parent_block_hash", 2.0), BadField},
		{"tokens that are nil", stored("token_ids", nil), BadField},
		{"tokens that are bytes", stored("token_ids", []byte{1, 2}), BadField},
		{"a negative token", stored("token_ids", list{1, -1, 2, 3}), BadField},
		{"a token past 32 bits", stored("token_ids", list{uint64(1 << 32)}), BadField},
		{"a token that is a float", stored("token_ids", list{1, 2, 3, 4, 5, 6, 7, 8.0}), BadField},
		{"a token that is nil", stored("token_ids", list{1, 2, 3, nil}), BadField},
		{"a single among pairs", stored("token_ids", list{list{1, 2}, 3}), BadField},
		{"a pair among singles", stored("token_ids", list{1, list{2, 3}}), BadField},
		{"a triple", stored("token_ids", list{list{1, 2, 3}}), BadField},
		{"a pair with a string", stored("token_ids", list{list{1, "2"}}), BadField},
		{"lookahead that is a number", stored("lookahead_token_ids", 1), BadField},
		{"lookahead for one of two", stored("lookahead_token_ids", list{list{1}}), BadField},
		{"lookahead with nil", stored("lookahead_token_ids", list{nil, nil}), BadField},
		{"a negative block size", stored("block_size", -16), BadField},
		{"a block size past 31 bits", stored("block_size", 1<<31), BadField},
		{"a block size that is a float", stored("block_size", 16.0), BadField},
		{"a block size that is nil", stored("block_size", nil), BadField},
		{"extra keys that are a string", stored("extra_keys", "x"), BadField},
		{"extra keys for one of two", stored("extra_keys", list{list{"x"}}), BadField},
		{"extra keys with a number", stored("extra_keys", list{nil, list{1}}), BadField},
		{"extra keys with an item of three", stored("extra_keys", list{nil, list{list{"mm", "id", 3}}}), BadField},
		{"extra keys with a number behind the offset", stored("extra_keys", list{nil, list{list{"id", 3, 4}}}), BadField},
		{"extra keys with no offset", stored("extra_keys", list{nil, list{list{"id"}}}), BadField},
		{"extra keys with an offset of text", stored("extra_keys", list{nil, list{list{"id", "3"}}}), BadField},
		{"extra keys that are no UTF-8", stored("extra_keys", list{nil, list{raw{fixStr | 1, 0xff}}}), BadField},
		{"a medium that is a number", stored("medium", 3), BadField},
		{"a medium that is no UTF-8", stored("medium", raw{fixStr | 2, 0xc3, 0x28}), BadField},
		{"a LoRA id that is text", stored("lora_id", "3"), BadField},
		{"a LoRA id past 63 bits", stored("lora_id", uint64(1<<63)), BadField},
		{"a LoRA name that is a number", stored("lora_name", 3), BadField},
		{"a negative group", stored("group_idx", -1), BadField},
		{"a group that is text", stored("group_idx", "0"), BadField},
		{"a window that is a float", stored("kv_cache_spec_sliding_window", 64.0), BadField},
		{"a kind that is a number", stored("kv_cache_spec_kind", 1), BadField},
		{"a locality of another name", stored("locality", "NEAR"), BadField},
		{"an owner that is a list", stored("ownership", list{long}), BadField},
		{"a session that is a number", stored("session_id", 1), BadField},
		{"a salt that is bytes", stored("cache_salt", []byte("s")), BadField},
		{"a bad group of a removal", list{"BlockRemoved", list{1}, "GPU", "one"}, BadField},
	} {
		for _, first := range []bool{true, false} {
			good := []any{stored("session_id", "before"), c.event, list{"BlockRemoved", list{3}}}
			if !first { // the other order: what follows the bad one is read as well
				good = []any{c.event, stored(), c.event, c.event, list{"BlockRemoved", list{3}}, c.event}
			}
			b, drops := decode(t, batchOf(good...))
			want := Drops{}
			want[c.want] = uint64(len(good) - 2)
			if drops != want {
				t.Errorf("%s: counted %v, want %v", c.name, drops, want)
			}
			if len(b.Events) != 2 || b.Events[0].Kind != kv.KindStored || b.Events[1].Kind != kv.KindRemoved ||
				!slices.Equal(b.Events[0].Hashes, []kv.EngineHash{7, 8}) || !slices.Equal(b.Events[0].Tokens, []uint32{1, 2, 3, 4}) {
				t.Errorf("%s: the good events read as %+v", c.name, b.Events)
			}
			if !b.HasRank || b.Rank != 0 {
				t.Errorf("%s: the rank behind the events is lost", c.name)
			}
		}
	}
}

func TestMalformed(t *testing.T) {
	good := batchOf(stored(), list{"AllBlocksCleared"})
	claim := func(format byte, n uint32) raw {
		return binary.BigEndian.AppendUint32(raw{format}, n)
	}
	inEvent := func(field string, v raw) []byte {
		return slices.Concat([]byte{fixArray | 3}, pack(1.5), []byte{fixArray | 1, fixMap | 2}, pack("type"), pack("BlockStored"), pack(field), v)
	}
	for _, c := range []struct {
		name    string
		payload []byte
	}{
		{"nothing", nil},
		{"nil", pack(nil)},
		{"a map", pack(pairs{"ts", 1.5, "events", list{}})},
		{"an array of one", pack(list{1.5})},
		{"a timestamp of text", pack(list{"now", list{}, 0})},
		{"a timestamp that is nil", pack(list{nil, list{}, 0})},
		{"events that are nil", pack(list{1.5, nil, 0})},
		{"events that are a map", pack(list{1.5, pairs{}, 0})},
		{"events that are bytes", pack(list{1.5, []byte{fixArray}, 0})},
		{"a rank of text", pack(list{1.5, list{list{"AllBlocksCleared"}}, "0"})},
		{"a negative rank", pack(list{1.5, list{list{"AllBlocksCleared"}}, -1})},
		{"a byte behind", append(slices.Clone(good), 0)},
		{"itself twice", append(slices.Clone(good), good...)},
		{"the byte of no format", pack(list{1.5, list{list{"AllBlocksCleared"}, raw{unused}}, 0})},
		{"the byte of no format, deep", pack(list{1.5, list{list{"AllBlocksCleared"}, list{"New", list{list{raw{unused}}}}}, 0})},
		{"an event too many", slices.Concat([]byte{fixArray | 2}, pack(1.5), []byte{fixArray | 2}, pack(list{"AllBlocksCleared"}))},
		{"4 GiB of events", slices.Concat([]byte{fixArray | 2}, pack(1.5), claim(array32, math.MaxUint32))},
		{"4 GiB of hashes", inEvent("block_hashes", claim(array32, math.MaxUint32))},
		{"4 GiB of tokens", inEvent("token_ids", claim(array32, math.MaxUint32))},
		{"4 GiB of extra keys", inEvent("extra_keys", claim(array32, math.MaxUint32))},
		{"4 GiB of lookahead", inEvent("lookahead_token_ids", claim(array32, math.MaxUint32))},
		{"4 GiB of text", inEvent("medium", claim(str8+2, math.MaxUint32))},
		{"4 GiB of bytes", inEvent("parent_block_hash", claim(bin8+2, math.MaxUint32))},
		{"4 GiB of an unknown field", inEvent("new", claim(map32, math.MaxUint32))},
		{"4 GiB of an extension", inEvent("new", claim(ext8+2, math.MaxUint32))},
		{"a million open arrays", bytes.Repeat([]byte{fixArray | 1}, 1_000_000)},
		{"a million open maps in an event", inEvent("new", bytes.Repeat([]byte{fixMap | 1}, 1_000_000))},
		{"arrays that multiply", inEvent("new", bytes.Repeat([]byte{array16, 0xff, 0xff}, 1000))},
		{"text", []byte("GET / HTTP/1.1\r\n\r\n")},
	} {
		var d Decoder
		b := kv.Batch{Rank: 3, HasRank: true, Events: []kv.Event{{Kind: kv.KindCleared}}}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		err := d.Decode(c.payload, &b)
		runtime.ReadMemStats(&after)
		if !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: error %v, want ErrMalformed", c.name, err)
			continue
		}
		if len(b.Events) != 0 || b.HasRank {
			t.Errorf("%s: left %+v in the batch", c.name, b)
		}
		if drops := d.Drops(); drops.Total() != 0 {
			t.Errorf("%s: counted %v of a payload that did not decode", c.name, drops)
		}
		if got := after.TotalAlloc - before.TotalAlloc; got > 64<<10 {
			t.Errorf("%s: allocated %d bytes", c.name, got)
		}
		if err := d.Decode(good, &b); err != nil || len(b.Events) != 2 {
			t.Errorf("%s: the decoder is no use after it: %v", c.name, err)
		}
	}
	if err := new(Decoder).Decode(make([]byte, MaxPayload+1), new(kv.Batch)); !errors.Is(err, ErrMalformed) {
		t.Errorf("a payload too long: %v", err)
	}
}

func TestBatchShapes(t *testing.T) {
	for _, c := range []struct {
		name    string
		payload []byte
		rank    int
		has     bool
		ts      float64
	}{
		{"two elements", pack(list{1.5, list{}}), 0, false, 1.5},
		{"a nil rank", pack(list{1.5, list{}, nil}), 0, false, 1.5},
		{"a rank", pack(list{1.5, list{}, 7}), 7, true, 1.5},
		{"more elements", pack(list{1.5, list{}, 7, "x", list{pairs{1, 2}}}), 7, true, 1.5},
		{"an integer timestamp", pack(list{3, list{}, 7}), 7, true, 3},
		{"a short float", pack(list{raw{float32b, 0x3f, 0xc0, 0, 0}, list{}, 7}), 7, true, 1.5},
		{"no number", pack(list{math.NaN(), list{}, 7}), 7, true, 0},
		{"infinity", pack(list{math.Inf(1), list{}, 7}), 7, true, 0},
		{"a 32-bit header", slices.Concat([]byte{array32, 0, 0, 0, 2}, pack(1.5), []byte{array16, 0, 0}), 0, false, 1.5},
	} {
		b, _ := decode(t, c.payload)
		if b.Rank != c.rank || b.HasRank != c.has || b.Timestamp != c.ts || len(b.Events) != 0 {
			t.Errorf("%s: reads as %+v", c.name, b)
		}
	}
}

// TestEveryCut cuts payloads of every layout, at every byte near the ends: no part of one is
// a batch, and none leaves an event behind.
func TestEveryCut(t *testing.T) {
	for _, l := range Layouts() {
		b := randomBatch(testRand(5), &l, 3)
		payload := AppendBatch(nil, b, &l)
		var d Decoder
		var out kv.Batch
		step := max(1, len(payload)/500)
		for n := 0; n < len(payload); n++ {
			if n > 300 && n < len(payload)-300 {
				n = min(n+step, len(payload)-300)
			}
			if err := d.Decode(payload[:n], &out); !errors.Is(err, ErrMalformed) || len(out.Events) != 0 {
				t.Fatalf("%s %s cut at %d of %d: error %v, %d events", l.Engine, l.Since, n, len(payload), err, len(out.Events))
			}
		}
		if err := d.Decode(payload, &out); err != nil || len(out.Events) != len(b.Events) {
			t.Fatalf("%s %s whole: %v", l.Engine, l.Since, err)
		}
	}
}

func TestDecodeDoesNotAllocate(t *testing.T) {
	for _, version := range []string{"0.9.0", "0.22.0", "0.32.0", "0.33.0"} {
		for _, digests := range []bool{false, true} {
			payload := AppendBatch(nil, typical(151936, digests), layout(t, "vllm", version))
			var d Decoder
			var b kv.Batch
			n := testing.AllocsPerRun(100, func() {
				if err := d.Decode(payload, &b); err != nil {
					t.Fatal(err)
				}
			})
			if n != 0 {
				t.Errorf("vllm %s, digests %v: %v allocations a batch, want 0", version, digests, n)
			}
		}
	}
}

// TestBatchesShareNothing decodes two batches with one decoder: the second
// leaves the first as it was.
func TestBatchesShareNothing(t *testing.T) {
	var d Decoder
	var a, b kv.Batch
	l := layout(t, "vllm", "0.33.0")
	first := AppendBatch(nil, randomBatch(testRand(1), l, 8), l)
	second := AppendBatch(nil, randomBatch(testRand(2), l, 8), l)
	for range 3 {
		if err := errors.Join(d.Decode(first, &a), d.Decode(second, &b)); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(AppendBatch(nil, &a, l), first) || !bytes.Equal(AppendBatch(nil, &b, l), second) {
			t.Fatal("a batch changed when another was decoded")
		}
		a, b = b, a
	}
}

// maxAllocPerByte is the most that [Decoder.Decode] may allocate, in bytes per
// byte of payload.
const maxAllocPerByte = 100

// TestMemoryIsBounded decodes payloads made to need much memory: the most per
// byte, and none of it kept.
func TestMemoryIsBounded(t *testing.T) {
	const n = 50_000
	many := func(v any) list {
		out := make(list, n)
		for i := range out {
			out[i] = v
		}
		return out
	}
	for _, c := range []struct {
		name    string
		payload []byte
	}{
		{"clears", batchOf(many(list{"AllBlocksCleared"})...)},
		{"removals of nothing", batchOf(many(list{"BlockRemoved", list{}})...)},
		{"nil events", batchOf(many(nil)...)},
		{"hashes", batchOf(stored("block_hashes", many(1)))},
		{"digests", batchOf(stored("block_hashes", many([]byte{1})))},
		{"tokens", batchOf(stored("token_ids", many(1)))},
		{"pairs", batchOf(stored("token_ids", many(list{1, 2})))},
		{"entries of extra keys", batchOf(stored("extra_keys", many(nil)))},
		{"extra keys", batchOf(stored("extra_keys", list{many("x"), nil}))},
		{"extra keys all different", batchOf(stored("extra_keys", list{nil, func() list {
			out := make(list, n)
			for i := range out {
				out[i] = string([]byte{byte(i) & 0x7f, byte(i>>7) & 0x7f})
			}
			return out
		}()}))},
		{"lookahead", batchOf(stored("lookahead_token_ids", many(list{})))},
		{"names", batchOf(func() []any {
			out := make([]any, 5000)
			for i := range out {
				out[i] = stored("session_id", strings.Repeat(string(rune('a'+i%26)), i%300)+string(rune(i)))
			}
			return out
		}()...)},
	} {
		var d Decoder
		var b kv.Batch
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if err := d.Decode(c.payload, &b); err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		runtime.ReadMemStats(&after)
		perByte := float64(after.TotalAlloc-before.TotalAlloc) / float64(len(c.payload))
		t.Logf("%s: %.1f bytes allocated per payload byte", c.name, perByte)
		if perByte > maxAllocPerByte {
			t.Errorf("%s: %.1f bytes allocated per payload byte, more than %d", c.name, perByte, maxAllocPerByte)
		}
		for range 2 {
			if err := d.Decode(pack(list{1.5, list{}}), &b); err != nil {
				t.Fatal(err)
			}
		}
		s := &b.Storage
		if cap(b.Events) > keepEvents || cap(s.Hashes) > keepHashes || cap(s.Tokens) > keepTokens || cap(s.Digests) > keepHashes ||
			cap(s.Keys) > keepHashes || cap(s.KeyLists) > keepHashes || cap(s.TokenLists) > keepHashes {
			t.Errorf("%s: memory kept past its limits", c.name)
		}
		if len(d.names.known) > internEntries {
			t.Errorf("%s: %d names kept", c.name, len(d.names.known))
		}
	}
}

func TestReasonsHaveNames(t *testing.T) {
	seen := map[string]bool{}
	for r := range NumReasons {
		name := r.String()
		if name == "" || seen[name] || strings.ContainsAny(name, " ()") {
			t.Errorf("reason %d is called %q", r, name)
		}
		seen[name] = true
	}
}
