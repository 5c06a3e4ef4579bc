// SPDX-License-Identifier: Apache-2.0

package load

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"os"
	"testing"
	"time"
)

// TestFixture: what the load socket of a recorded engine sent is what that engine
// was asked to send.
func TestFixture(t *testing.T) {
	f, err := os.Open("../../harness/testdata/fixtures/given/sglang0523_load_pub.jsonl.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	m := meter(t, Config{Engine: "sglang", Ranks: 2, Ask: nothing})
	var want *Reading
	checked := 0
	for lines := bufio.NewScanner(z); lines.Scan(); {
		var l struct {
			T        float64         `json:"t"`
			K        string          `json:"k"`
			F        [][]byte        `json:"f"`
			Snapshot json.RawMessage `json:"snapshot"`
		}
		if err := json.Unmarshal(lines.Bytes(), &l); err != nil {
			t.Fatal(err)
		}
		now := time.Unix(0, int64(l.T*1e9))
		switch l.K {
		case "truth":
			a, err := parse(l.Snapshot, now)
			if err != nil || len(a.readings) != 1 {
				t.Fatalf("%d readings of a snapshot, %v", len(a.readings), err)
			}
			want = &a.readings[0]
		case "msg":
			m.pushed(0, l.F, now)
			got := m.Rank(want.Rank)
			if got == nil || got.Running != want.Running || got.Waiting != want.Waiting || got.WaitingUncached != want.WaitingUncached ||
				got.UsedTokens != want.UsedTokens || got.MaxTokens != want.MaxTokens || got.MaxRunning != want.MaxRunning || got.Sample != uint64(checked+1) {
				t.Fatalf("message %d: %+v, want %+v", checked, got, want)
			}
			checked++
		}
	}
	if checked != 20 || m.Stats().Good != 20 {
		t.Errorf("%d messages checked, %d good, want 20", checked, m.Stats().Good)
	}
}
