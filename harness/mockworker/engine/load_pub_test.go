// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"fmt"
	"testing"
	"time"

	"kindex/internal/kv"
	"kindex/relay/wire"
)

// TestLoadPub reads the load of two ranks as a relay does: their own figures, numbered
// without gaps, a new one as soon as something changes, and one a second where nothing
// does.
func TestLoadPub(t *testing.T) {
	e, err := New(Config{Engine: SGLang, Pub: "tcp://127.0.0.1:0", Replay: "tcp://127.0.0.1:0", LoadPub: "tcp://127.0.0.1:0", Ranks: 2, BlockSize: 4, Blocks: 100, PassTime: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	at := e.LoadEndpoints()
	if above, err := Endpoint(at[0], 1); err != nil || len(at) != 2 || at[1] != above {
		t.Fatalf("endpoints %v: %v", at, err)
	}
	sub := listen(t, at[1])
	seq := uint64(0)
	next := func() kv.Load {
		t.Helper()
		frames, err := sub.socket.RecvMessageBytes(0)
		if err != nil {
			t.Fatal(err)
		}
		topic, payload, n, err := wire.ParseMessage(frames)
		if err != nil || string(topic) != loadTopic || seq > 0 && n != seq+1 {
			t.Fatalf("reading %d of %q after %d: %v", n, topic, seq, err)
		}
		seq = n
		l, err := wire.DecodeLoad(payload)
		if err != nil || l.Rank != 1 || l.Fields != loadFields || l.MaxTokens != 400 {
			t.Fatalf("%+v: %v", l, err)
		}
		return l
	}
	if a, b := next(), next(); a != b || a.Running != 0 {
		t.Errorf("idle: %+v, then %+v", a, b)
	}
	e.Pause(true)
	out, err := e.Submit(Request{ID: "a", Tokens: make([]uint32, 10), MaxTokens: 3, Rank: 1})
	if err != nil {
		t.Fatal(err)
	}
	await := func(what string, ok func(l *kv.Load) bool) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		for {
			if l := next(); ok(&l) {
				return
			} else if ctx.Err() != nil {
				t.Fatalf("%s never: %+v", what, l)
			}
		}
	}
	await("waiting", func(l *kv.Load) bool { return l.Waiting == 1 && l.WaitingUncachedTokens == 10 && l.TotalTokens == 10 })
	e.Pause(false)
	for range out { // to its end
	}
	await("done", func(l *kv.Load) bool {
		return l.Waiting+l.Running+l.UsedTokens == 0 && l.PrefillUncachedTokens == 10 && l.PrefillBusyMicros >= 1_000
	})
	for endpoint, want := range map[string]string{"tcp://h:5557": "tcp://h:5561", "tcp://h:5000": "tcp://h:5002"} {
		got, err := loadEndpoint(&Config{LoadPub: LoadAuto, Ranks: 2}, []*Publisher{{Live: endpoint, Replay: "tcp://h:5559"}})
		if fmt.Sprintf("%s %v", got, err) != want+" <nil>" {
			t.Errorf("auto beside %s: %s, %v, want %s", endpoint, got, err, want)
		}
	}
}
