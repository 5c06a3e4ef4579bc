// SPDX-License-Identifier: Apache-2.0

package lookuppb

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"kindex/internal/kv"
	"kindex/internal/lookup"
	kindexv1 "kindex/proto/kindex/v1"
)

// generated is q in the generated type.
func generated(q *lookup.Query) *kindexv1.Query {
	m := &kindexv1.Query{
		ModelName: q.Model, RoutingGroup: q.Group, TenantId: q.Tenant, LoraName: q.LoRA, CacheSalt: q.Salt,
		TokenIds: q.Tokens, ExtraKeys: q.Extra, Limit: uint32(q.Limit),
	}
	for _, h := range q.Hashes {
		m.BlockHashes = append(m.BlockHashes, uint64(h))
	}
	if q.Only != nil {
		m.Instances = &kindexv1.Instances{Ids: q.Only}
	}
	return m
}

// plain is m as the server would take it: nothing is nil.
func plain(m *kindexv1.Query) *lookup.Query {
	q := &lookup.Query{
		Model: m.GetModelName(), Group: m.GetRoutingGroup(), Tenant: m.GetTenantId(), LoRA: m.GetLoraName(), Salt: m.GetCacheSalt(),
		Tokens: m.GetTokenIds(), Extra: m.GetExtraKeys(), Limit: int(m.GetLimit()),
	}
	for _, h := range m.GetBlockHashes() {
		q.Hashes = append(q.Hashes, kv.ContentHash(h))
	}
	if m.GetInstances() != nil {
		q.Only = append([]string{}, m.GetInstances().GetIds()...)
	}
	return q
}

func sameQuery(a, b *lookup.Query) bool {
	return a.Model == b.Model && a.Group == b.Group && a.Tenant == b.Tenant && a.LoRA == b.LoRA && a.Salt == b.Salt && a.Limit == b.Limit &&
		slices.Equal(a.Tokens, b.Tokens) && slices.Equal(a.Hashes, b.Hashes) && (a.Only == nil) == (b.Only == nil) && slices.Equal(a.Only, b.Only) &&
		slices.EqualFunc(a.Extra, b.Extra, func(x, y []byte) bool { return string(x) == string(y) })
}

func randomQuery(rng *rand.Rand) *lookup.Query {
	word := func() string {
		return strings.Repeat("ä", rng.IntN(3)) + strings.Repeat("m", rng.IntN(200)*rng.IntN(2))
	}
	q := &lookup.Query{Model: word(), Group: word(), Tenant: word(), LoRA: word(), Salt: word(), Limit: rng.IntN(3) * rng.IntN(1<<31)}
	for range rng.IntN(300) * rng.IntN(2) {
		q.Tokens = append(q.Tokens, rng.Uint32()>>rng.IntN(32))
	}
	for range rng.IntN(300) * rng.IntN(2) {
		q.Hashes = append(q.Hashes, kv.ContentHash(rng.Uint64()))
	}
	for range rng.IntN(20) * rng.IntN(2) {
		q.Extra = append(q.Extra, []byte(word()))
	}
	if rng.IntN(2) == 0 {
		q.Only = []string{}
		for range rng.IntN(20) {
			q.Only = append(q.Only, word())
		}
	}
	return q
}

// TestRequests: what we encode is what the generated code encodes of the same
// values, byte by byte, and is read back.
func TestRequests(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var r Request
	for i := range 2000 {
		q := randomQuery(rng)
		want, err := proto.MarshalOptions{Deterministic: true}.Marshal(&kindexv1.LookupRequest{Query: generated(q)})
		if err != nil {
			t.Fatal(err)
		}
		if got := AppendRequest(nil, q); string(got) != string(want) {
			t.Fatalf("%+v:\n got %x\nwant %x", q, got, want)
		}
		if err := r.Decode(want); err != nil || !sameQuery(&r.Query, q) {
			t.Fatalf("%d: %v\n got %+v\nwant %+v", i, err, r.Query, q)
		}
		id := rng.Uint64() >> rng.IntN(64)
		want, err = proto.MarshalOptions{Deterministic: true}.Marshal(&kindexv1.LookupStreamRequest{Id: id, Query: generated(q)})
		if err != nil {
			t.Fatal(err)
		}
		if got := AppendStreamRequest(nil, id, q); string(got) != string(want) {
			t.Fatalf("%+v:\n got %x\nwant %x", q, got, want)
		}
		if err := r.DecodeStream(want); err != nil || !sameQuery(&r.Query, q) || r.ID != id {
			t.Fatalf("%d: %v\n got %+v\nwant %+v", i, err, r.Query, q)
		}
	}
}

func randomAnswer(rng *rand.Rand, instances int) *lookup.Answer {
	a := &lookup.Answer{BlockSize: rng.IntN(65536)}
	degraded := rng.Uint64()
	for range rng.IntN(3 * instances) {
		k := rng.IntN(instances)
		a.Matches = append(a.Matches, lookup.Match{
			Instance: fmt.Sprint("i", k), Number: k%3 == 0, Degraded: degraded>>(k%64)&1 != 0, Rank: rng.IntN(65536),
			Device: rng.Uint32(), Host: rng.Uint32() >> rng.IntN(32), Any: rng.Uint32(),
		})
	}
	return a
}

// TestAnswers: the generated code reads what we encode, and encodes what we read.
func TestAnswers(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	var e AnswerEncoder
	var r Response
	var names Names
	got := &lookup.Answer{Missing: []string{"old"}, Matches: make([]lookup.Match, 3)}
	for i := range 2000 {
		a := randomAnswer(rng, 1+rng.IntN(60))
		id := rng.Uint64()
		b := e.AppendStreamResponse(nil, id, a)
		var m kindexv1.LookupStreamResponse
		if err := proto.Unmarshal(b, &m); err != nil || m.GetId() != id || len(m.GetAnswer().GetInstance()) != len(a.Matches) {
			t.Fatalf("%d: %v: %v", i, err, &m)
		}
		for k, match := range a.Matches {
			g := m.GetAnswer()
			at := g.GetInstance()[k]
			if read := (lookup.Match{
				Instance: g.GetInstances()[at], Number: g.GetNumber()[at], Degraded: g.GetDegraded()[at], Rank: int(g.GetRank()[k]),
				Device: g.GetDevice()[k], Host: g.GetHost()[k], Any: g.GetAny()[k],
			}); read != match {
				t.Fatalf("%d: match %d is read as %+v, want %+v", i, k, read, match)
			}
		}
		theirs, err := proto.Marshal(&m)
		if err != nil {
			t.Fatal(err)
		}
		for _, wire := range [][]byte{b, theirs} {
			if err := r.DecodeStream(wire, &names); err != nil || r.ID != id || r.Refused {
				t.Fatalf("%d: %v, %+v", i, err, r)
			}
			if err := r.Give(got); err != nil || got.BlockSize != a.BlockSize || !slices.Equal(got.Matches, a.Matches) || len(got.Missing) != 0 {
				t.Fatalf("%d: %v:\n got %+v\nwant %+v", i, err, got, a)
			}
		}
		if err := r.Decode(e.AppendResponse(nil, a), &names, got); err != nil || !slices.Equal(got.Matches, a.Matches) {
			t.Fatalf("%d: %v:\n got %+v\nwant %+v", i, err, got, a)
		}
	}
	b := AppendRefusal(nil, 7, int32(kindexv1.Kind_KIND_CONFLICT), "block_size: no")
	var m kindexv1.LookupStreamResponse
	if err := proto.Unmarshal(b, &m); err != nil || m.GetId() != 7 || m.GetRefusal().GetKind() != kindexv1.Kind_KIND_CONFLICT || m.GetRefusal().GetText() != "block_size: no" {
		t.Errorf("a refusal: %v, %v", err, &m)
	}
	if err := r.DecodeStream(b, &names); err != nil || !r.Refused || !errors.Is(Refusal(r.Kind, r.Text), lookup.ErrConflict) {
		t.Errorf("a refusal: %v, %+v", err, r)
	}
	for what, b := range map[string][]byte{
		"columns of two lengths":     {0x0a, 4, 0x2a, 0, 0x30, 1},
		"a match of no instance":     {0x0a, 15, 0x2a, 1, 0, 0x32, 1, 0, 0x3a, 1, 1, 0x42, 1, 1, 0x4a, 1, 1},
		"a name that is no UTF-8":    {0x0a, 3, 0x12, 1, 0xff},
		"a length beyond the end":    {0x0a, 9, 0},
		"a number that does not end": {0x0a, 2, 0x08, 0xff},
	} {
		if err := r.Decode(b, &names, got); !errors.Is(err, lookup.ErrInvalid) || len(got.Matches) != 0 {
			t.Errorf("%s: %v, %+v", what, err, got)
		}
	}
}

// TestWorkerMessages: all that a worker is comes back.
func TestWorkerMessages(t *testing.T) {
	var ws []lookup.Worker
	for i := range 600 {
		ws = append(ws, lookup.Worker{
			Instance: fmt.Sprint(i), Number: i%2 == 0, Model: "m", Group: "g", Tenant: "t", BlockSize: 16, Source: "zmq", Status: "active",
			Ranks: []lookup.Rank{
				{Rank: 1, Endpoint: "e", ReplayEndpoint: "r", Status: "active", LastError: "x", Epoch: 2, HasSeq: true, LastSeq: 3, Gaps: 4, Recovered: 5, Lost: 6, Restarts: 7, Duplicates: 8, Snapshots: 9, Resets: 10, RelayRanks: 11, Orphans: 12, Memberships: 13, Dropped: map[string]uint64{"a": 14}, Shard: 15, Node: 16},
				{Rank: 2},
			},
		})
	}
	u := &lookup.Update{Epoch: 1, Version: 2, Whole: true, Workers: ws, Gone: []lookup.WorkerName{{Instance: "a", Model: "b", Group: "c", Tenant: "d"}}}
	var got *lookup.Update
	ms := EncodeUpdate(u)
	for i, m := range ms {
		b, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		var read kindexv1.WatchWorkersResponse
		if err := proto.Unmarshal(b, &read); err != nil {
			t.Fatal(err)
		}
		var all bool
		if got, all = JoinUpdate(got, &read); all != (i == len(ms)-1) {
			t.Fatalf("message %d of %d ends the step: %v", i, len(ms), all)
		}
	}
	if !reflect.DeepEqual(got, u) || len(ms) != 3 {
		t.Errorf("in %d messages\n got %+v\nwant %+v", len(ms), got.Workers[0], u.Workers[0])
	}
	if ms := EncodeUpdate(&lookup.Update{Whole: true}); len(ms) != 1 || !ms[0].GetWhole() || ms[0].GetMore() {
		t.Errorf("an empty table: %v", ms)
	}
}

// FuzzDecode: what the generated code takes we take, as the same; what it does not,
// neither do we. Nothing that a request or an answer can be crashes us.
func FuzzDecode(f *testing.F) {
	rng := rand.New(rand.NewPCG(5, 6))
	var e AnswerEncoder
	for range 20 {
		f.Add(AppendStreamRequest(nil, rng.Uint64(), randomQuery(rng)))
		f.Add(e.AppendStreamResponse(nil, rng.Uint64(), randomAnswer(rng, 5)))
	}
	f.Add([]byte{0x12, 4, 0x4a, 0, 0x50, 1})
	f.Add([]byte{0x12, 0x1b, 0x35, 1, 0, 0, 0, 0x39, 2, 0, 0, 0, 0, 0, 0, 0, 0x32, 4, 9, 9, 9, 9, 0x4a, 2, 0x0a, 0})
	var names Names
	f.Fuzz(func(t *testing.T, b []byte) {
		var r Request
		var m kindexv1.LookupStreamRequest
		theirs, ours := proto.Unmarshal(b, &m), r.DecodeStream(b)
		switch {
		case r.fault != nil:
		case theirs == nil && m.GetQuery() == nil:
			if !errors.Is(ours, lookup.ErrInvalid) {
				t.Fatalf("without a query: %v", ours)
			}
		case (theirs == nil) != (ours == nil):
			t.Fatalf("the generated code says %v, ours %v", theirs, ours)
		case ours == nil:
			if want := plain(m.GetQuery()); r.ID != m.GetId() || !sameQuery(&r.Query, want) {
				t.Fatalf(" got %+v\nwant %+v", r.Query, want)
			}
		}
		var resp Response
		var mr kindexv1.LookupStreamResponse
		theirs, ours = proto.Unmarshal(b, &mr), resp.DecodeStream(b, &names)
		if (theirs == nil) != (ours == nil) {
			t.Fatalf("an answer: the generated code says %v, ours %v", theirs, ours)
		}
		if ours == nil {
			var a lookup.Answer
			if resp.Give(&a) == nil && mr.GetAnswer() != nil && len(a.Matches) != len(mr.GetAnswer().GetInstance()) {
				t.Fatalf("%d matches, want %d", len(a.Matches), len(mr.GetAnswer().GetInstance()))
			}
		}
	})
}
