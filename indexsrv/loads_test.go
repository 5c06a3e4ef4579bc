// SPDX-License-Identifier: Apache-2.0

package indexsrv

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"kindex/indexclient"
	"kindex/internal/lookup"
	"kindex/proto/peer/common"

	relayv1 "kindex/proto/kindex/relay/v1"
)

// watchLoads keeps a table of what idx tells of loads.
func watchLoads(t *testing.T, idx lookup.Index, f lookup.Filter) (<-chan map[lookup.LoadName]lookup.Load, <-chan error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	tables, ended := make(chan map[lookup.LoadName]lookup.Load), make(chan error, 1)
	go func() {
		table := map[lookup.LoadName]lookup.Load{}
		first := true
		ended <- idx.Loads(ctx, f, func(u *lookup.LoadUpdate) error {
			if u.Whole != first {
				t.Errorf("whole is %v in step %+v", u.Whole, u)
			}
			first = false
			for _, n := range u.Gone {
				if _, ok := table[n]; !ok {
					t.Errorf("%+v is gone and was not there", n)
				}
				delete(table, n)
			}
			told := map[lookup.LoadName]lookup.Load{}
			for _, l := range u.Loads {
				table[l.LoadName] = l
			}
			maps.Copy(told, table)
			select {
			case tables <- told:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	}()
	return tables, ended
}

// until waits for a table that ok accepts.
func until(t *testing.T, what string, tables <-chan map[lookup.LoadName]lookup.Load, ok func(map[lookup.LoadName]lookup.Load) bool) map[lookup.LoadName]lookup.Load {
	t.Helper()
	for {
		if table := next(t, tables, what); ok(table) {
			return table
		}
	}
}

// relayLoad is batch seq of rank n with a record.
func relayLoad(n, seq uint64, l *common.EngineLoad) *relayv1.SubscribeResponse {
	b := relayBatch(uint32(n), seq)
	b.Load = l
	return b
}

// TestLoads: over each way the records of a relay come as the engine said them, absent
// staying absent, each with its age; levels come too, of streams without records as
// well; who leaves is told.
func TestLoads(t *testing.T) {
	more := make(chan struct{})
	f := startRelay(t, &fakeRelay{serve: func(_ int, _ *relayv1.SubscribeRequest, send func(...*relayv1.SubscribeResponse)) error {
		send(relayBatch(0, 0, relayStore(0, 1, 2, 3)), relayBatch(1, 0),
			relayLoad(0, 1, &common.EngineLoad{RunningRequests: 3, TokenUsage: .5, AgeMs: 60_000, WaitingUncachedTokens: proto.Uint32(0)}))
		<-more
		send(relayLoad(1, 1, &common.EngineLoad{
			RunningRequests: 1, WaitingRequests: 2, WaitingUncachedTokens: proto.Uint32(4), TokenUsage: .25, ActiveTokenUsage: new(.125),
			GenThroughput: 10, MaxRunningRequests: 64, EngineSilenceMs: proto.Uint32(7), EngineReportsSteps: new(true), PrefillPendingTokens: proto.Uint32(9),
		}))
		return nil
	}})
	path := filepath.Join(t.TempDir(), "s")
	h := startTestHost(t, func(c *Config) {
		c.Shm.Listen = path
		withGRPC(nil)(c)
	})
	h.register(fmt.Sprintf(`{"instance_id":1,"endpoint":%q,"model_name":"m","block_size":%d,"source":"relay","dp_size":2}`, f.addr, testBlock))
	h.register(fmt.Sprintf(`{"instance_id":7,"endpoint":"tcp://127.0.0.1:1","model_name":"m","block_size":%d}`, testBlock))
	h.register(reg("8", "other", ""))
	ways := map[string]lookup.Index{"in process": h.Host}
	for name, target := range map[string]string{
		"gRPC": h.GRPCAddr().String(), "shared memory": "unix:" + path, "replicas": h.GRPCAddr().String() + "|unix:" + path,
	} {
		c, err := indexclient.Dial(t.Context(), target, indexclient.Options{Timeout: 20 * time.Second, Wait: true})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		ways[name] = c
	}
	rank := func(instance string, n int) lookup.LoadName {
		return lookup.LoadName{Instance: instance, Model: "m", Group: defaultGroup, Tenant: defaultGroup, Rank: n}
	}
	tables := map[string]<-chan map[lookup.LoadName]lookup.Load{}
	for way, idx := range ways {
		tables[way], _ = watchLoads(t, idx, lookup.Filter{Model: "m"})
		got := until(t, way+": the first record", tables[way], func(m map[lookup.LoadName]lookup.Load) bool {
			return m[rank("1", 0)].Record != nil && m[rank("1", 0)].Held == 3 && m[rank("1", 1)].Status == "active"
		})
		r := got[rank("1", 0)].Record
		want := lookup.LoadRecord{
			Age: r.Age, Running: 3, Usage: .5, ActiveUsage: -1, Throughput: -1, MaxRunning: -1, PrefillPending: -1, SilenceMS: -1,
		}
		if *r != want || r.Age < time.Minute || r.Age > 2*time.Minute {
			t.Errorf("%s: %+v, want %+v, a minute old", way, *r, want)
		}
		if l := got[rank("1", 0)]; len(got) != 3 || l.EventAge < 0 || l.EventAge > 30*time.Second || got[rank("1", 1)].Record != nil {
			t.Errorf("%s: %+v", way, got)
		}
		if l := got[rank("7", 0)]; l.Status == "" || l.Record != nil || l.EventAge != -1 {
			t.Errorf("%s: a stream without a batch: %+v", way, l)
		}
	}
	close(more)
	for way := range ways {
		got := until(t, way+": the second rank's record", tables[way], func(m map[lookup.LoadName]lookup.Load) bool { return m[rank("1", 1)].Record != nil })
		r := got[rank("1", 1)].Record
		want := lookup.LoadRecord{
			Age: r.Age, Running: 1, Waiting: 2, WaitingUncached: 4, Usage: .25, ActiveUsage: .125, Throughput: 10, MaxRunning: 64,
			PrefillPending: 9, SilenceMS: 7, ReportsSteps: true,
		}
		if *r != want || r.Age > 30*time.Second {
			t.Errorf("%s: %+v, want %+v", way, *r, want)
		}
	}
	h.must(200, "POST", "/unregister", `{"instance_id":1,"model_name":"m","dp_rank":0}`)
	for way := range ways {
		until(t, way+": one has left", tables[way], func(m map[lookup.LoadName]lookup.Load) bool {
			_, left := m[rank("1", 0)]
			return !left && len(m) == 2
		})
	}
}

// TestLoadsEnds: a watch ends with its context, with the host, and where it is wrong.
func TestLoadsEnds(t *testing.T) {
	h := startTestHost(t, nil)
	_, ended := watchLoads(t, h.Host, lookup.Filter{Model: "\xff"})
	if err := next(t, ended, "a wrong filter"); !errors.Is(err, ErrInvalid) {
		t.Errorf("a wrong filter: %v", err)
	}
	tables, ended := watchLoads(t, h.Host, lookup.Filter{})
	next(t, tables, "an empty table")
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	if err := next(t, ended, "the host's end"); !errors.Is(err, ErrUnavailable) {
		t.Errorf("the host's end: %v", err)
	}
}
