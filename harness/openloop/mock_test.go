// SPDX-License-Identifier: Apache-2.0

package openloop

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"kindex/harness/mockworker/engine"
)

// mocks are n mock engines of so many blocks behind the proxy.
func mocks(t *testing.T, n, blocks int) (proxy, admin string) {
	t.Helper()
	f, err := engine.OpenFleet(engine.Config{
		Engine: engine.VLLM, Pub: "tcp://127.0.0.1:0", HTTP: "127.0.0.1:0", Blocks: blocks, ContextLength: 131_072,
	}, n)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	a, err := engine.OpenAdmin(f, "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Close)
	var urls []string
	for _, w := range f.Workers() {
		urls = append(urls, w.HTTP())
	}
	p, err := OpenProxy("127.0.0.1:0", urls)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p.Addr, a.Addr
}

// TestMocks replays against mock engines behind the proxy, twice: every answer comes
// whole, its usage is what the fleet says, and what depends on no timing is equal.
func TestMocks(t *testing.T) {
	url, admin := mocks(t, 4, 16_384)
	for _, kind := range Prompts {
		o := DefaultOptions()
		o.URL, o.Oracle, o.Reset, o.Prompt = url, admin, true, kind
		o.Trace, o.Rows, o.Speedup, o.MaxOutput, o.Late = Generated, Range{0, 59}, 50, 8, o.Timeout
		var before *Result
		for range 2 {
			r := replayed(t, &o)
			s := r.Summary
			if s.Requests.OK != 60 || s.Cache.Differs != 0 || s.Best == nil || s.Best.Requests != 60 || len(s.Notes) != 0 || s.Cache.Source != "usage" || s.Finish["length"] != 60 {
				t.Fatalf("%s: %+v, %v, %+v, %+v, %v", kind, s.Requests, s.Errors, s.Cache, s.Oracle, s.Notes)
			}
			for i := range r.Records {
				q := &r.Records[i]
				if q.FleetPrompt != q.Prompt || kind != PromptChat && q.Prompt != q.Input || q.Completion != min(q.Output, 8) {
					t.Errorf("%s, row %d: %+v", kind, i, q)
				}
			}
			if b := s.Balance; b == nil || len(b.Workers) != 4 || b.Requests != 1 {
				t.Errorf("%s: balance %+v", kind, b)
			}
			if before != nil {
				if diff := cmp.Diff(before.Summary.Oracle, s.Oracle) + cmp.Diff(before.Summary.Reuse, s.Reuse); diff != "" || s.Oracle.Tokens == 0 {
					t.Errorf("%s: another oracle the second time:\n%s", kind, diff)
				}
			}
			before = r
		}
	}
}

// TestMocksOneByOne: with room for all and nothing at once, what the fleet says that its
// best worker had is what the trace says.
func TestMocksOneByOne(t *testing.T) {
	url, admin := mocks(t, 3, 65_536)
	o := DefaultOptions()
	o.URL, o.Oracle, o.Reset, o.OneByOne = url, admin, true, true
	o.Trace, o.Rows, o.MaxOutput = Generated, Range{0, 179}, 2
	for range 2 {
		r := replayed(t, &o)
		turns := 0
		for i := range r.Records {
			q := &r.Records[i]
			if q.BestAtArrival != q.PrefixReuse || q.Oracle > q.PrefixReuse || q.Cached > q.BestAtArrival {
				t.Errorf("row %d: cached %d, best at arrival %d, oracle %d, prefix reuse %d", q.Row, q.Cached, q.BestAtArrival, q.Oracle, q.PrefixReuse)
			}
			if q.PrefixReuse > TokensPerID {
				turns++
			}
		}
		// A beginning that all share is computed once for each worker.
		if o, most := r.Summary.Oracle.Tokens, r.Summary.Reuse.Tokens; o < most-2*TokensPerID {
			t.Errorf("the oracle reuses %d of %d tokens", o, most)
		}
		if turns < 5 {
			t.Errorf("%d rows share more than the beginning of all: the trace shows little", turns)
		}
	}
}
