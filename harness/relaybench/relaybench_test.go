// SPDX-License-Identifier: Apache-2.0

package relaybench

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"kindex/harness/publish"
	"kindex/harness/trial"
	"kindex/internal/kv"
	relayv1 "kindex/proto/kindex/relay/v1"
	"kindex/proto/peer/common"
	"kindex/relay/wire"
)

func TestRead(t *testing.T) {
	chunk := &common.KvSnapshotChunk{Index: 3, Count: 9, Blocks: 70}
	for _, test := range []struct {
		name string
		c    *contract
		m    proto.Message
		want message
	}{
		{"the peer's batch", &peerContract, &common.KvEventBatch{SequenceNumber: 5, Timestamp: 2.5, DpRank: proto.Int32(1)}, message{kind: kindBatch, seq: 5, timestamp: 2.5}},
		{"with a load", &peerContract, &common.KvEventBatch{SequenceNumber: 5, Load: &common.EngineLoad{RunningRequests: 2}}, message{kind: kindBatch, seq: 5}},
		{"a load alone", &peerContract, &common.KvEventBatch{SequenceNumber: 5, Load: &common.EngineLoad{LoadOnly: true}}, message{kind: kindOther, seq: 5}},
		{"the peer's chunk", &peerContract, &common.KvEventBatch{SequenceNumber: 6, Snapshot: chunk}, message{kind: kindChunk, seq: 6, index: 3, count: 9, blocks: 70}},
		{"our batch", &ownContract, &relayv1.SubscribeResponse{Epoch: 1, Body: &relayv1.SubscribeResponse_Batch{Batch: &relayv1.Batch{Sequence: 7, Check: 4, Timestamp: 1.5}}}, message{kind: kindBatch, seq: 7, timestamp: 1.5}},
		{"our chunk", &ownContract, &relayv1.SubscribeResponse{Body: &relayv1.SubscribeResponse_Snapshot{Snapshot: &relayv1.SnapshotChunk{Index: 1, Count: 2, Blocks: 3, Through: 4}}}, message{kind: kindChunk, index: 1, count: 2, blocks: 3}},
		{"our standing", &ownContract, &relayv1.SubscribeResponse{Body: &relayv1.SubscribeResponse_Standing{Standing: &relayv1.Standing{Primed: true}}}, message{kind: kindOther}},
	} {
		b, err := proto.Marshal(test.m)
		if err != nil {
			t.Fatal(err)
		}
		test.want.bytes = len(b)
		if got := test.c.read(b); got != test.want {
			t.Errorf("%s: %+v, want %+v", test.name, got, test.want)
		}
		if got := test.c.read(b[:len(b)/2]); got.bytes != len(b)/2 {
			t.Errorf("%s, half of it: %+v", test.name, got)
		}
	}
}

// TestLoad shows that batches decode, carry the time at which they are sent, and chain.
func TestLoad(t *testing.T) {
	raw, err := publish.OpenRaw(10)
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	l, err := newLoad(raw, 8, 1)
	if err != nil {
		t.Fatal(err)
	}
	var last kv.EngineHash
	for i := range 2 * perChain {
		p := l.payload(8, false)
		stamp(p)
		var b kv.Batch
		if err := new(wire.Decoder).Decode(p, &b); err != nil || len(b.Events) != 1 {
			t.Fatalf("batch %d: %d events, %v", i, len(b.Events), err)
		}
		e := b.Events[0]
		if len(e.Hashes) != 8 || len(e.Tokens) != 8*blockTokens || e.HasParent != (i%perChain > 0) || e.HasParent && e.Parent != last {
			t.Errorf("batch %d: %d blocks, %d tokens, parent %v", i, len(e.Hashes), len(e.Tokens), e.HasParent)
		}
		last = e.Hashes[7]
		if age := time.Since(time.UnixMicro(int64(b.Timestamp * 1e6))); age < -time.Second || age > time.Minute {
			t.Errorf("batch %d is %v old", i, age)
		}
	}
	if l.stored != 16*perChain {
		t.Errorf("%d blocks stored", l.stored)
	}
}

func TestReport(t *testing.T) {
	r := &Report{Options: DefaultOptions(), Machine: trial.ThisMachine()}
	for i, arm := range []string{ArmPeerOurs, ArmOwn, ArmSMG, ArmSMG} {
		x := &Run{Arm: arm, PerBlock: float64(100 * (i + 1)), Snaps: []Snapshot{{CPUMs: 1}, {CPUMs: 9}, {CPUMs: float64(2 + i)}}}
		for range r.Options.Rates {
			x.Rates = append(x.Rates, AtRate{CPU: float64(10 * (i + 1))})
		}
		r.Runs = append(r.Runs, x)
	}
	r.rows()
	var b bytes.Buffer
	if err := r.WriteText(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| figure | ours | ours-own | smg | ours / smg |",
		"| CPU of a batch at 2000/s, us | 10.0 | 20.0 | 35.0 (30.0 to 40.0) | 0.29 |",
		"| snapshot, CPU, ms | 2.0 | 3.0 | 4.5 (4.0 to 5.0) | 0.44 |",
		"| resident, a live block, B | 100.0 |",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
	bad := DefaultOptions()
	for name, spoil := range map[string]func(*Options){
		"--rate":   func(o *Options) { o.Rates = []int{0} },
		"--arms":   func(o *Options) { o.Arms = []string{"theirs"} },
		"--state":  func(o *Options) { o.State = -1 },
		"--rounds": func(o *Options) { o.Rounds = 0 },
	} {
		o := bad
		spoil(&o)
		if err := o.Validate(); err == nil || !strings.HasPrefix(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
