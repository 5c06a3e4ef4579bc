// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"

	"kindex/internal/kv"
)

func TestLiveMessages(t *testing.T) {
	eight := []byte{0, 0, 0, 0, 0, 0, 1, 2}
	topic, payload, seq, err := ParseMessage([][]byte{[]byte("kv"), eight, []byte("p")})
	if err != nil || string(topic) != "kv" || string(payload) != "p" || seq != 0x102 {
		t.Errorf("a message reads as %q %q %d %v", topic, payload, seq, err)
	}
	if _, _, seq, err := ParseMessage([][]byte{{}, bytes.Repeat([]byte{0xff}, 8), {}}); err != nil || seq != math.MaxUint64 {
		t.Errorf("empty topic and payload, the greatest sequence: %d %v", seq, err)
	}
	for name, frames := range map[string][][]byte{
		"no frames":          nil,
		"two frames":         {[]byte("kv"), eight},
		"four frames":        {[]byte("kv"), eight, {}, {}},
		"a short sequence":   {[]byte("kv"), eight[:7], {}},
		"a long sequence":    {[]byte("kv"), append(eight[:8:8], 0), {}},
		"no sequence":        {[]byte("kv"), {}, []byte("p")},
		"nil in every place": {nil, nil, nil},
	} {
		if _, _, _, err := ParseMessage(frames); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: error %v, want ErrMalformed", name, err)
		}
	}
}

func TestReplayMessages(t *testing.T) {
	five, end := []byte{0, 0, 0, 0, 0, 0, 0, 5}, bytes.Repeat([]byte{0xff}, 8)
	for _, c := range []struct {
		name   string
		frames [][]byte
		seq    uint64
		end    bool
	}{
		{"old", [][]byte{{}, five, []byte("p")}, 5, false},
		{"new", [][]byte{{}, []byte("kv"), five, []byte("p")}, 5, false},
		{"new without a topic", [][]byte{{}, {}, five, []byte("p")}, 5, false},
		{"the old end", [][]byte{{}, end, {}}, math.MaxUint64, true},
		{"the new end", [][]byte{{}, {}, end, {}}, math.MaxUint64, true},
		{"an empty batch is no end", [][]byte{{}, five, {}}, 5, false},
	} {
		payload, seq, end, err := ParseReplay(c.frames)
		if err != nil || seq != c.seq || end != c.end || (!end && !bytes.Equal(payload, c.frames[len(c.frames)-1])) {
			t.Errorf("%s: reads as %q %d %v %v", c.name, payload, seq, end, err)
		}
	}
	for name, frames := range map[string][][]byte{
		"no frames":               nil,
		"two frames":              {five, []byte("p")},
		"five frames":             {{}, {}, {}, five, []byte("p")},
		"no delimiter":            {[]byte("kv"), five, []byte("p")},
		"a short sequence":        {{}, five[:3], []byte("p")},
		"an end with a payload":   {{}, end, []byte("p")},
		"a topic for a sequence":  {{}, five, []byte("kv-events"), []byte("p")},
		"an identity before them": {[]byte("\x00abcd"), {}, five, []byte("p")},
	} {
		if _, _, _, err := ParseReplay(frames); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: error %v, want ErrMalformed", name, err)
		}
	}
}

func TestReplayRequests(t *testing.T) {
	for _, c := range []struct {
		start []byte
		want  uint64
	}{
		{nil, 0},
		{[]byte{5}, 5},
		{[]byte{1, 0}, 256},
		{[]byte{0, 0, 0, 0, 0, 0, 0, 9}, 9},
		{bytes.Repeat([]byte{0xff}, 8), math.MaxUint64},
		{append(make([]byte, 20), 7), 7},
		{append([]byte{1}, make([]byte, 8)...), math.MaxUint64},
	} {
		got, err := ParseReplayRequest([][]byte{{}, c.start})
		if err != nil || got != c.want {
			t.Errorf("start %x reads as %d (%v), want %d", c.start, got, err, c.want)
		}
	}
	for name, frames := range map[string][][]byte{
		"no delimiter": {[]byte{5}},
		"text first":   {[]byte("x"), []byte{5}},
		"one too many": {{}, []byte{5}, {}},
		"nothing":      nil,
	} {
		if _, err := ParseReplayRequest(frames); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: error %v, want ErrMalformed", name, err)
		}
	}
}

func TestLoadReadings(t *testing.T) {
	l, err := DecodeLoad(pack(list{"LoadStat", 1, 2, 3, 4, nil}))
	if want := (kv.Load{Running: 1, Waiting: 2, UsedTokens: 3, MaxTokens: 4, Fields: 5, Nils: 1 << 4}); err != nil || l != want {
		t.Errorf("the old shape reads as %+v (%v), want %+v", l, err, want)
	}
	l, err = DecodeLoad(pack(list{"LoadStat", 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, "more", list{}}))
	want := kv.Load{
		Running: 1, Waiting: 2, UsedTokens: 3, MaxTokens: 4, Rank: 5, WaitingUncachedTokens: 6, TotalTokens: 7,
		MaxRunning: 8, PrefillUncachedTokens: 9, PrefillBusyMicros: 10, Fields: 10,
	}
	if err != nil || l != want {
		t.Errorf("a later shape reads as %+v (%v), want %+v", l, err, want)
	}
	for name, v := range map[string]any{
		"nil": nil, "a map": pairs{"type", "LoadStat"}, "four figures": list{"LoadStat", 1, 2, 3, 4},
		"another tag": list{"LoadStats", 1, 2, 3, 4, 5}, "no tag": list{1, 2, 3, 4, 5, 6},
		"a float": list{"LoadStat", 1.5, 2, 3, 4, 5}, "text": list{"LoadStat", "1", 2, 3, 4, 5},
		"64 bits and more": list{"LoadStat", uint64(math.MaxUint64), 2, 3, 4, 5},
		"a byte behind":    raw(append(pack(list{"LoadStat", 1, 2, 3, 4, 5}), 0)),
		"a broken end":     raw(append(pack(list{"LoadStat", 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, "x"})[:1+9+10], unused)),
		"a huge claim":     raw{array32, 0xff, 0xff, 0xff, 0xff},
	} {
		if l, err := DecodeLoad(pack(v)); !errors.Is(err, ErrMalformed) || l != (kv.Load{}) {
			t.Errorf("%s: reads as %+v, error %v, want ErrMalformed", name, l, err)
		}
	}
}

func TestLayoutFor(t *testing.T) {
	for _, c := range []struct{ engine, version, since string }{
		{"vllm", "0.9.2", "0.9.0"},
		{"vllm", "0.10.1", "0.9.0"},
		{"vllm", "0.10.2", "0.10.2"},
		{"vllm", "v0.10.2rc1", "0.10.2"},
		{"vllm", "0.13", "0.10.2"},
		{"vllm", "0.23.5", "0.22.0"},
		{"vllm", "0.32.0.dev3+cpu", "0.30.0"},
		{"vllm", "1.0", "0.33.0"},
		{"sglang", "0.5.8", "0.4.8"},
		{"sglang", "0.5.16", "0.5.9"},
		{"sglang", "0.5.23", "0.5.22"},
		{"tokenspeed", "0.1.1", "0.1.0"},
	} {
		l, err := LayoutFor(c.engine, c.version)
		if err != nil || l.Engine != c.engine || l.Since != c.since {
			t.Errorf("%s %s has layout %+v (%v), want that of %s", c.engine, c.version, l, err, c.since)
		}
	}
	for _, c := range []struct{ engine, version, says string }{
		{"vllm", "0.8.5", "oldest known release is 0.9.0"},
		{"trt", "1.0", "vllm"},
		{"vllm", "latest", "must be like"},
		{"vllm", "", "must be like"},
		{"vllm", "0.x", "must be like"},
	} {
		if _, err := LayoutFor(c.engine, c.version); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s %q: error %v, want one that says %q", c.engine, c.version, err, c.says)
		}
	}
	a, _ := LayoutFor("vllm", "0.32.0")
	a.Stored[0].Field = FieldSalt
	if b, _ := LayoutFor("vllm", "0.32.0"); b.Stored[0].Field != FieldHashes {
		t.Error("a layout given out is shared with the next caller")
	}
}

// TestLayoutOmits shows each rule for what is left out.
func TestLayoutOmits(t *testing.T) {
	b := &kv.Batch{Timestamp: 1.5, Events: []kv.Event{{
		Kind: kv.KindStored, Form: kv.FormSigned, Hashes: []kv.EngineHash{math.MaxUint64}, Tokens: []uint32{1}, BlockSize: 1,
		SessionID: "s", HasExtra: true, Extra: [][]kv.ExtraKey{{{Kind: kv.ExtraItem, ID: "img", Offset: -3}}},
	}}}
	for _, c := range []struct {
		engine, version string
		want            any
	}{
		{"vllm", "0.9.2", list{1.5, list{list{"BlockStored", list{-1}, nil, list{1}, 1, nil}}}},
		{"vllm", "0.17.1", list{1.5, list{list{"BlockStored", list{-1}, nil, list{1}, 1, nil, nil, nil, list{list{"img"}}}}}},
		{"vllm", "0.20.2", list{1.5, list{list{"BlockStored", list{-1}, nil, list{1}, 1, nil, nil, nil, list{list{list{"img", -3}}}, nil}}}},
		{"vllm", "0.30.0", list{1.5, list{pairs{
			"type", "BlockStored", "block_hashes",
			list{-1},
			"parent_block_hash", nil, "token_ids",
			list{1},
			"block_size", 1,
			"lora_id", nil, "medium", nil, "lora_name", nil, "extra_keys",
			list{list{list{"img", -3}}},
			"session_id", "s",
		}}}},
		{"sglang", "0.4.8", list{1.5, list{list{"BlockStored", list{-1}, nil, list{1}, 1, nil}}}},
		{"sglang", "0.5.9", list{1.5, list{list{"BlockStored", list{-1}, nil, list{1}, 1, nil}}}},
		{"sglang", "0.5.17", list{1.5, list{list{"BlockStored", list{-1}, nil, list{1}, 1, nil, nil}}, nil}},
		{"sglang", "0.5.20", list{1.5, list{pairs{
			"type", "BlockStored", "block_hashes",
			list{-1},
			"parent_block_hash", nil, "token_ids",
			list{1},
			"block_size", 1,
			"lora_id", nil, "session_id", "s",
		}}, nil}},
		{"tokenspeed", "0.1.1", list{1.5, list{list{"BlockStored", list{-1}, nil, list{1}, 1}}, nil}},
	} {
		got := AppendBatch([]byte("x"), b, layout(t, c.engine, c.version))
		if want := append([]byte("x"), pack(c.want)...); !bytes.Equal(got, want) {
			t.Errorf("%s %s:\n got %x\nwant %x", c.engine, c.version, got, want)
		}
	}
}

// TestDisagreementSees changes each fact of an event in turn: a comparison
// that misses one would prove nothing.
func TestDisagreementSees(t *testing.T) {
	const truth = `[{"type":"BlockStored","block_hashes":[1,2],"parent_block_hash":-5,"token_ids":[1,2,3,4],"block_size":2,"lora_id":3,
		"medium":"CPU","lora_name":"ad","extra_keys":[["ad",["img",-4]],null],"group_idx":1,"kv_cache_spec_kind":"sliding_window",
		"kv_cache_spec_sliding_window":64,"locality":"LOCAL","ownership":"o","session_id":"s","cache_salt":"salt","lookahead_token_ids":[[1],[2]]}]`
	read := func(s string) (out []map[string]any) {
		d := json.NewDecoder(strings.NewReader(s))
		d.UseNumber()
		if err := d.Decode(&out); err != nil {
			t.Fatal(err)
		}
		return out
	}
	event := func() *kv.Batch {
		b, drops := decode(t, batchOf(pairs{
			"type", "BlockStored", "block_hashes",
			list{1, 2},
			"parent_block_hash", -5, "token_ids",
			list{1, 2, 3, 4},
			"block_size", 2,
			"lora_id", 3, "medium", "CPU", "lora_name", "ad", "extra_keys",
			list{list{"ad", list{"img", -4}}, nil},
			"group_idx", 1,
			"kv_cache_spec_kind", "sliding_window", "kv_cache_spec_sliding_window", 64, "locality", "LOCAL", "ownership", "o",
			"session_id", "s", "cache_salt", "salt", "lookahead_token_ids",
			list{list{1}, list{2}},
		}))
		if drops.Total() != 0 {
			t.Fatal(drops)
		}
		return b
	}
	if s := Disagreement(event(), read(truth)); s != "" {
		t.Fatalf("equal events disagree: %s", s)
	}
	for i, change := range []func(*kv.Event){
		func(e *kv.Event) { e.Kind = kv.KindRemoved },
		func(e *kv.Event) { e.Hashes[1] = 3 },
		func(e *kv.Event) { e.Hashes = e.Hashes[:1] },
		func(e *kv.Event) { e.Parent = 5 },
		func(e *kv.Event) { e.HasParent = false },
		func(e *kv.Event) { e.Tokens[3] = 5 },
		func(e *kv.Event) { e.Second = slices.Clone(e.Tokens) },
		func(e *kv.Event) { e.BlockSize = 4 },
		func(e *kv.Event) { e.LoRAID = 0 },
		func(e *kv.Event) { e.HasLoRAID = false },
		func(e *kv.Event) { e.Medium = "GPU" },
		func(e *kv.Event) { e.LoRAName = "" },
		func(e *kv.Event) { e.Extra[0][1].Offset = 4 },
		func(e *kv.Event) { e.Extra[0][0].ID = "other" },
		func(e *kv.Event) { e.Extra[0] = nil },
		func(e *kv.Event) { e.HasExtra = false },
		func(e *kv.Event) { e.Group = 0 },
		func(e *kv.Event) { e.SpecName = "full_attention" },
		func(e *kv.Event) { e.HasWindow = false },
		func(e *kv.Event) { e.Locality = kv.LocalityRemote },
		func(e *kv.Event) { e.Ownership = "" },
		func(e *kv.Event) { e.SessionID = "t" },
		func(e *kv.Event) { e.HasSalt = false },
		func(e *kv.Event) { e.Lookahead[1][0] = 1 },
	} {
		b := event()
		change(&b.Events[0])
		if Disagreement(b, read(truth)) == "" {
			t.Errorf("change %d is not seen", i)
		}
	}
	b := event()
	for _, other := range []string{
		`[]`, strings.Replace(truth, `"session_id":"s",`, "", 1), strings.Replace(truth, `"session_id"`, `"new_field"`, 1),
	} {
		if Disagreement(b, read(other)) == "" {
			t.Errorf("agrees with %s", other)
		}
	}
}

// TestDigestsAgree shows the ways in which bytes may be written down.
func TestDigestsAgree(t *testing.T) {
	b, _ := decode(t, batchOf(list{"BlockRemoved", list{[]byte("0123456789abcdef")}}))
	for want, agree := range map[any]bool{
		"30313233343536373839616263646566": true,
		"MDEyMzQ1Njc4OWFiY2RlZg==":         true,
		"30313233343536373839616263646567": false,
		json.Number(decimal("89abcdef")):   true,
		json.Number(decimal("01234567")):   false,
		"MDEyMzQ1Njc4OWFiY2RlZw==":         false,
		json.Number("-1"):                  false,
	} {
		s := Disagreement(b, []map[string]any{{"type": "BlockRemoved", "block_hashes": []any{want}}})
		if (s == "") != agree {
			t.Errorf("%v: %q, want agreement %v", want, s, agree)
		}
	}
}

// decimal returns 8 bytes as a big-endian number in decimal.
func decimal(s string) string { return strconv.FormatUint(binary.BigEndian.Uint64([]byte(s)), 10) }
