// SPDX-License-Identifier: Apache-2.0

package verify

import (
	"maps"
	"testing"

	"kindex/harness/record"
	"kindex/internal/kv"
	"kindex/relay/wire"
)

// script writes a recording line by line, a millisecond apart.
type script struct {
	f      *record.File
	layout *wire.Layout
	seq    uint64
	t      float64
}

func newScript(t *testing.T, engine, version string, h record.Header) *script {
	t.Helper()
	layout, err := wire.LayoutFor(engine, version)
	if err != nil {
		t.Fatal(err)
	}
	h.Format, h.Engine, h.Version = "kvrec/1", engine, version
	return &script{f: &record.File{Path: "script", Header: h}, layout: layout, t: 1000}
}

func (s *script) line(l record.Line) {
	s.t += 0.001
	l.N, l.T = len(s.f.Lines)+2, s.t
	s.f.Lines = append(s.f.Lines, l)
}

// msg is a message published as it is received.
func (s *script) msg(events ...kv.Event) {
	b := kv.Batch{Timestamp: s.t + 0.0005, HasRank: true, Events: events}
	s.line(record.Line{Kind: record.KindMsg, Msg: &record.Msg{Src: "pub0", Frames: wire.MakeMessage("", s.seq, wire.AppendBatch(nil, &b, s.layout))}})
	s.seq++
}

func (s *script) req(q record.Req) { s.line(record.Line{Kind: record.KindReq, Req: &q}) }

func (s *script) resp(id string, cached int) {
	s.line(record.Line{Kind: record.KindResp, Resp: &record.Resp{ID: id, Cached: &cached}})
}

// stored announces blocks of size tokens, from the n-th of prompt on.
func stored(medium string, prompt []uint32, size, from, to int) kv.Event {
	e := kv.Event{Kind: kv.KindStored, Medium: medium, BlockSize: size, Tokens: prompt[from*size : to*size]}
	for i := from; i < to; i++ {
		e.Hashes = append(e.Hashes, hashOf(prompt[:(i+1)*size]))
	}
	if from > 0 {
		e.HasParent, e.Parent = true, hashOf(prompt[:from*size])
	}
	return e
}

func removed(medium string, prompt []uint32, size, from, to int) kv.Event {
	e := stored(medium, prompt, size, from, to)
	return kv.Event{Kind: kv.KindRemoved, Medium: medium, Hashes: e.Hashes}
}

func hashOf(tokens []uint32) kv.EngineHash { return kv.EngineHash(kv.HashBlock(99, tokens, nil)) }

func prompt(n int, seed uint32) []uint32 {
	out := make([]uint32, n)
	for i := range out {
		out[i] = seed*1000 + uint32(i)
	}
	return out
}

// TestScripts shows rules that no shipped recording needs, and for each of them
// that another number is wrong.
func TestScripts(t *testing.T) {
	p := prompt(70, 1)
	tests := []struct {
		name   string
		script func(cached int) *script
		right  int
		rule   string
		wrong  int
	}{
		{"host blocks that were not loaded back", func(cached int) *script {
			s := newScript(t, "sglang", "0.5.23", record.Header{PageSize: 16, HostTokens: 1000})
			s.msg(kv.Event{Kind: kv.KindCleared})
			s.msg(stored("GPU", p, 16, 0, 4), stored("CPU_PINNED", p, 16, 0, 4))
			s.msg(removed("GPU", p, 16, 2, 4))
			s.req(record.Req{ID: "a", Prompt: p})
			s.resp("a", cached)
			return s
		}, 32, ruleNotLoaded, 48},
		{"host blocks that were loaded back", func(cached int) *script {
			s := newScript(t, "sglang", "0.5.23", record.Header{PageSize: 16, HostTokens: 1000})
			s.msg(stored("GPU", p, 16, 0, 4), stored("CPU_PINNED", p, 16, 0, 4))
			s.msg(removed("GPU", p, 16, 2, 4))
			s.req(record.Req{ID: "a", Prompt: p})
			s.msg(stored("GPU", p, 16, 2, 4))
			s.resp("a", cached)
			return s
		}, 64, "", 32},
		{"a namespace that the events do not show", func(cached int) *script {
			s := newScript(t, "sglang", "0.5.23", record.Header{PageSize: 16})
			s.req(record.Req{ID: "a", Prompt: p, ExtraKey: "one"})
			s.msg(stored("GPU", p, 16, 0, 4))
			s.resp("a", 0)
			s.req(record.Req{ID: "b", Prompt: p, ExtraKey: "two"})
			s.msg(stored("GPU", p, 16, 0, 4))
			s.resp("b", cached)
			return s
		}, 0, ruleHiddenNamespace, 48},
		{"equal requests at once, in the other order", func(cached int) *script {
			s := newScript(t, "vllm", "0.32.0", record.Header{BlockSize: 16})
			s.req(record.Req{ID: "a", Prompt: p})
			s.req(record.Req{ID: "b", Prompt: p})
			s.msg(stored("GPU", p, 16, 0, 4))
			s.resp("a", cached)
			s.resp("b", 0)
			return s
		}, 64, ruleInFlight, 32},
		{"one request in flight, whose store begins behind a hit that others made", func(cached int) *script {
			s := newScript(t, "vllm", "0.32.0", record.Header{BlockSize: 16})
			longer := append(append([]uint32(nil), p[:48]...), prompt(40, 2)...)
			s.req(record.Req{ID: "a", Prompt: p})
			s.req(record.Req{ID: "b", Prompt: longer})
			s.msg(stored("GPU", p, 16, 0, 4), stored("GPU", longer, 16, 3, 5))
			s.resp("a", 0)
			s.resp("b", cached)
			return s
		}, 48, ruleInFlight, 64},
		{"a preempted request begins again before one that waits", func(cached int) *script {
			s := newScript(t, "vllm", "0.32.0", record.Header{BlockSize: 16})
			s.req(record.Req{ID: "a", Prompt: p[:40]})
			s.req(record.Req{ID: "b", Prompt: p[:40]})
			s.msg(stored("GPU", p, 16, 0, 2))
			s.msg(removed("GPU", p, 16, 0, 2))
			s.msg(stored("GPU", p, 16, 0, 2))
			s.resp("b", cached)
			s.resp("a", 0)
			return s
		}, 32, ruleInFlight, 16},
		{"an answer before its events", func(cached int) *script {
			s := newScript(t, "sglang", "0.5.23", record.Header{PageSize: 16})
			s.req(record.Req{ID: "a", Prompt: p, ExtraKey: "one"})
			s.resp("a", 0)
			s.msg(stored("GPU", p, 16, 0, 4))
			s.req(record.Req{ID: "b", Prompt: p})
			s.msg(stored("GPU", p, 16, 0, 4))
			s.resp("b", cached)
			return s
		}, 0, ruleHiddenNamespace, 48},
		{"a reset that the stream tells with the next step", func(cached int) *script {
			s := newScript(t, "vllm", "0.32.0", record.Header{BlockSize: 16})
			s.msg(stored("GPU", p, 16, 0, 4))
			s.req(record.Req{ID: "a", Prompt: p})
			s.msg(kv.Event{Kind: kv.KindCleared}, stored("GPU", p, 16, 0, 4))
			s.resp("a", cached)
			return s
		}, 0, ruleDeferredClear, 64 - 16},
		{"a message on its way", func(cached int) *script {
			s := newScript(t, "vllm", "0.32.0", record.Header{BlockSize: 16})
			s.msg(stored("GPU", p, 16, 0, 4))
			s.req(record.Req{ID: "a", Prompt: p})
			s.resp("a", cached)
			l := s.f.Lines
			l[0], l[1] = l[1], l[0] // received after the request, published before
			l[0].N, l[1].N = l[1].N, l[0].N
			return s
		}, 64, ruleMessageRace, 48},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r, err := File(test.script(test.right).f, Options{Index: "reference"})
			if err != nil {
				t.Fatal(err)
			}
			want := map[string]int{}
			if test.rule != "" {
				want[test.rule] = 1
			}
			if !r.OK() || !maps.Equal(r.Credit.Rules, want) {
				t.Errorf("%d tokens: rules %v, want %v; %v", test.right, r.Credit.Rules, want, r.Faults)
			}
			r, err = File(test.script(test.wrong).f, Options{Index: "reference"})
			if err != nil {
				t.Fatal(err)
			}
			if r.Credit.Wrong == 0 {
				t.Errorf("%d tokens pass as right: rules %v", test.wrong, r.Credit.Rules)
			}
		})
	}
}
