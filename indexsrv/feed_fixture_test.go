// SPDX-License-Identifier: Apache-2.0

package indexsrv

import (
	"bufio"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"kindex/relay/wire"
)

const fixtureDir = "../harness/testdata/fixtures/given"

// record is one line of a recording.
type record struct {
	Kind   string   `json:"k"`
	Src    string   `json:"src"`
	Frames []string `json:"f"`
	Block  int      `json:"block_size"`
	Page   int      `json:"page_size"`
	Groups []struct {
		Spec  string `json:"spec"`
		Block int    `json:"block_size"`
	} `json:"groups"`
}

func readFixture(t *testing.T, path string, fn func(*record)) {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	z, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReaderSize(z, 1<<20)
	for {
		line, err := r.ReadBytes('\n')
		if len(line) > 0 {
			var rec record
			if err := json.Unmarshal(line, &rec); err != nil {
				t.Fatalf("%s: %v", path, err)
			}
			fn(&rec)
		}
		if err != nil {
			return
		}
	}
}

func unbase64(t *testing.T, frames []string) [][]byte {
	t.Helper()
	var out [][]byte
	for _, s := range frames {
		b, err := base64.StdEncoding.DecodeString(s)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, b)
	}
	return out
}

// Every recorded stream goes through whole: nothing undecodable, nothing lost in
// files that begin at the engine's first batch, and at most the restarts that the
// scenario has.
func TestFixturesAdmitted(t *testing.T) {
	files, err := filepath.Glob(fixtureDir + "/*.jsonl.gz")
	if err != nil || len(files) == 0 {
		t.Fatalf("no fixtures in %s: %v", fixtureDir, err)
	}
	for _, path := range files {
		name := strings.TrimSuffix(filepath.Base(path), ".jsonl.gz")
		if strings.Contains(name, "load_pub") {
			continue
		}
		t.Run(name, func(t *testing.T) {
			feeds := map[string]*feedTest{}
			counts := map[string]uint64{}
			first := map[string]uint64{}
			peak := map[string]uint64{}
			legacy := strings.HasPrefix(name, "legacy_") // several recordings in one, of several block sizes
			block := 0
			readFixture(t, path, func(r *record) {
				if r.Kind == "header" {
					block = fixtureBlock(r, name)
				}
				if r.Kind != "msg" {
					return
				}
				_, payload, seq, err := wire.ParseMessage(unbase64(t, r.Frames))
				if err != nil {
					t.Fatal(err)
				}
				f := feeds[r.Src]
				if f == nil {
					f = newFeedTest(t, false, func(c *StreamConfig) {
						c.Rank = int(r.Src[len(r.Src)-1] - '0')
						c.BlockSize = block
					}).connect()
					feeds[r.Src], first[r.Src] = f, seq
				}
				f.Live(seq, payload, f.now)
				counts[r.Src]++
				peak[r.Src] = max(peak[r.Src], f.Status().Memberships)
			})
			for src, f := range feeds {
				st := f.Status()
				wantRestarts := uint64(0)
				if strings.Contains(name, "restart") {
					wantRestarts = 1
				}
				if st.Batches != counts[src] || st.Lost != first[src] || st.Restarts != wantRestarts || st.Dropped["malformed"] != 0 || st.Duplicates != 0 {
					t.Errorf("%s: got %d batches, %d lost, %d restarts, %d duplicates, %d malformed; want %d, %d, %d, 0, 0", src,
						st.Batches, st.Lost, st.Restarts, st.Duplicates, st.Dropped["malformed"], counts[src], first[src], wantRestarts)
				}
				for _, reason := range []string{"misaligned", "block_size", "unknown_medium", "remote_tier", "group_range"} {
					if st.Dropped[reason] != 0 && (!legacy || reason != "block_size") {
						t.Errorf("%s: dropped %d by %s, want 0", src, st.Dropped[reason], reason)
					}
				}
				if none := strings.Contains(name, "sliding_only"); peak[src] == 0 != none {
					t.Errorf("%s: at most %d memberships, want none: %v", src, peak[src], none)
				}
				t.Logf("%s: %d batches, at most %d memberships, state %v, dropped %v", src, st.Batches, peak[src], st.State, nonzero(st.Dropped))
			}
		})
	}
}

func nonzero(m map[string]uint64) map[string]uint64 {
	out := map[string]uint64{}
	for k, v := range m {
		if v != 0 {
			out[k] = v
		}
	}
	return out
}

func fixtureBlock(r *record, name string) int {
	switch {
	case r.Page != 0:
		return r.Page
	case r.Block != 0:
		return r.Block
	}
	for _, g := range r.Groups {
		if strings.Contains(g.Spec, "Full") {
			return g.Block
		}
	}
	if len(r.Groups) > 0 {
		return r.Groups[0].Block
	}
	if strings.Contains(name, "http") {
		return 32
	}
	return 16
}
