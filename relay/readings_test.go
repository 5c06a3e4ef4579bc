// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	commonpb "kindex/proto/peer/common"
	"kindex/relay/hashcheck"
	"kindex/relay/load"
)

// Engine hashes are held against tokens, and what is wrong is logged once.
func TestHashCheck(t *testing.T) {
	var log bytes.Buffer
	cfg, err := hashcheck.Parse("sha256", "vllm")
	if err != nil {
		t.Fatal(err)
	}
	e, ps := openTest(t, 1, func(c *EngineConfig) {
		c.HashCheck, c.Log = cfg, slog.New(slog.NewTextHandler(&log, nil))
	})
	ps[0].connect()
	for seq := range uint64(30) { // first blocks, whose hashes are made up
		ps[0].publish(seq, payload(float64(seq), storeOf(0, seq+1)))
	}
	st := e.Ranks()[0].Stats().Hash
	if st.Checked != 30 || st.Mismatched != 30 || st.Rate() != 1 {
		t.Errorf("%d checked, %d mismatched, want 30 and 30", st.Checked, st.Mismatched)
	}
	if n := strings.Count(log.String(), "another seed"); n != 1 || !strings.HasPrefix(st.Warning, "another seed") {
		t.Errorf("%d lines in the log, want 1: %s", n, log.String())
	}
}

// A load that moved reaches a subscriber of a quiet engine, and rides on batches.
func TestLoadReachesSubscribers(t *testing.T) {
	var running atomic.Uint32
	meter, err := load.New(load.Config{Engine: "vllm", Ranks: 1, Interval: 10 * time.Millisecond, Ask: func(context.Context) ([]load.Reading, error) {
		return []load.Reading{{Running: load.Some(running.Load())}}, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	e, ps := openTest(t, 1, func(c *EngineConfig) { c.Load = meter })
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	done := make(chan struct{})
	go func() { defer close(done); meter.Run(ctx) }()
	defer func() { cancel(); <-done }()
	ps[0].connect()
	ps[0].publish(0, payload(0, storeOf(0, 1)))
	s := subscribe(t, e, SubscribeRequest{Form: FormPeer, Rules: RulesPeer})
	for want := uint32(0); want < 4; {
		item, err := s.Next(ctx)
		if err != nil {
			t.Fatalf("waiting for %d requests: %v", want, err)
		}
		if len(item.Load) == 0 {
			continue
		}
		var l commonpb.EngineLoad
		if err := proto.Unmarshal(item.Load, &l); err != nil {
			t.Fatal(err)
		}
		if l.GetLoadOnly() != (item.Kind == ItemLoad) {
			t.Fatalf("load only: %v, kind %v", l.GetLoadOnly(), item.Kind)
		}
		if l.GetRunningRequests() == want {
			want++
			running.Store(want)
		}
	}
}
