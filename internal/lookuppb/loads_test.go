// SPDX-License-Identifier: Apache-2.0

package lookuppb

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"kindex/internal/lookup"
	kindexv1 "kindex/proto/kindex/v1"
)

func testLoad(i int) lookup.Load {
	l := lookup.Load{
		LoadName: lookup.LoadName{Instance: fmt.Sprint("w", i/2), Model: "m", Group: "g", Tenant: "t", Rank: i % 2},
		Status:   "active", Held: uint64(i), EventAge: time.Duration(i) * time.Millisecond,
	}
	switch i % 3 {
	case 0:
		l.Record = &lookup.LoadRecord{
			Age: 5 * time.Millisecond, Running: 1, Waiting: 2, WaitingUncached: 3, Usage: .5, ActiveUsage: .25, Throughput: 100,
			MaxRunning: 7, PrefillPending: 8, SilenceMS: 9, ReportsSteps: true, Sample: 11,
		}
	case 1: // nothing said is not 0, and 0 is
		l.EventAge = -1
		l.Record = &lookup.LoadRecord{WaitingUncached: -1, Usage: 0, ActiveUsage: -1, Throughput: -1, MaxRunning: -1, PrefillPending: 0, SilenceMS: -1}
	}
	return l
}

// TestLoads: steps over the wire are the steps; names go over once.
func TestLoads(t *testing.T) {
	var enc LoadEncoder
	var dec LoadDecoder
	sent := 0
	pass := func(u *lookup.LoadUpdate) (messages, names int) {
		t.Helper()
		var got *lookup.LoadUpdate
		err := enc.Each(u, func(b []byte) error {
			var m kindexv1.WatchLoadsResponse
			if err := proto.Unmarshal(b, &m); err != nil {
				return err
			}
			names += len(m.GetHolders())
			messages++
			sent += len(b)
			if got != nil {
				t.Error("a message after the step's end")
			}
			var err error
			got, err = dec.Parse(b)
			return err
		})
		if err != nil || !reflect.DeepEqual(got, u) {
			t.Fatalf("%v:\n got %+v\nwant %+v", err, got, u)
		}
		return messages, names
	}
	all := &lookup.LoadUpdate{Whole: true}
	for i := range 2*maxLoads + 10 {
		all.Loads = append(all.Loads, testLoad(i))
	}
	if ms, names := pass(all); ms != 3 || names != len(all.Loads) {
		t.Errorf("the whole: %d messages with %d names, want 3 with %d", ms, names, len(all.Loads))
	}
	sent = 0
	if ms, names := pass(&lookup.LoadUpdate{Loads: all.Loads[:6]}); ms != 1 || names != 0 || sent > 6*115 {
		t.Errorf("a change: %d messages with %d names in %d bytes, want 1 without, 115 bytes each at most", ms, names, sent)
	}
	pass(&lookup.LoadUpdate{Gone: []lookup.LoadName{all.Loads[3].LoadName}})
	if _, names := pass(&lookup.LoadUpdate{Loads: all.Loads[3:4]}); names != 1 {
		t.Errorf("one that came back has %d names, want 1", names)
	}
	pass(&lookup.LoadUpdate{Whole: true})
	if _, names := pass(&lookup.LoadUpdate{Loads: all.Loads[:2]}); names != 2 {
		t.Errorf("after an empty whole: %d names, want 2", names)
	}
}

// TestLoadsHostile: what no host of ours sends is an error or nothing said.
func TestLoadsHostile(t *testing.T) {
	var dec LoadDecoder
	if _, err := dec.Parse([]byte{0xff}); !errors.Is(err, lookup.ErrUnavailable) {
		t.Errorf("garbage: %v", err)
	}
	if _, err := dec.Decode(&kindexv1.WatchLoadsResponse{Loads: []*kindexv1.Load{{Holder: 7}}}); !errors.Is(err, lookup.ErrUnavailable) {
		t.Errorf("a load of nobody: %v", err)
	}
	u, err := new(LoadDecoder).Decode(&kindexv1.WatchLoadsResponse{
		Holders: []*kindexv1.LoadHolder{{}}, Gone: []uint32{9},
		Loads: []*kindexv1.Load{{EventAgeUs: proto.Uint64(math.MaxUint64), Record: &kindexv1.LoadRecord{
			AgeUs: math.MaxUint64, TokenUsage: new(math.NaN()), ActiveTokenUsage: new(-1.0), PrefillPendingTokens: proto.Uint64(math.MaxUint64),
		}}},
	})
	if err != nil || len(u.Loads) != 1 || len(u.Gone) != 0 {
		t.Fatalf("%+v, %v", u, err)
	}
	if l := u.Loads[0]; l.EventAge <= 0 || l.Record.Age <= 0 || l.Record.Usage != -1 || l.Record.ActiveUsage != -1 || l.Record.PrefillPending <= 0 || l.Record.Running != -1 {
		t.Errorf("%+v, %+v", l, l.Record)
	}
}
