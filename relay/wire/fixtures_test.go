// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/hex"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"testing"

	"kindex/internal/kv"
)

// record is one line of a recording: harness/testdata/fixtures.
type record struct {
	K        string           `json:"k"`
	Engine   string           `json:"engine"`
	Version  string           `json:"version"`
	Src      string           `json:"src"`
	Seq      uint64           `json:"seq"`
	Frames   [][]byte         `json:"f"`
	Received [][][]byte       `json:"rx"`
	Sent     [][]byte         `json:"tx"`
	Start    uint64           `json:"start"`
	Ended    bool             `json:"ended"`
	Events   []map[string]any `json:"events"`
	Snapshot map[string]any   `json:"snapshot"`
}

func recordings(t testing.TB) []string {
	t.Helper()
	files, err := filepath.Glob("../../harness/testdata/fixtures/given/*.jsonl.gz")
	if err != nil || len(files) == 0 {
		t.Fatalf("no recordings found: %v", err)
	}
	return files
}

func readRecording(t testing.TB, file string) []record {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	var out []record
	in := bufio.NewScanner(z)
	in.Buffer(nil, 64<<20)
	for in.Scan() {
		var kind struct {
			K string `json:"k"`
		}
		if err := json.Unmarshal(in.Bytes(), &kind); err != nil {
			t.Fatal(err)
		}
		switch kind.K {
		case "header", "msg", "truth", "replay":
		default:
			continue
		}
		var r record
		d := json.NewDecoder(bytes.NewReader(in.Bytes()))
		d.UseNumber()
		if err := d.Decode(&r); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		out = append(out, r)
	}
	if err := in.Err(); err != nil {
		t.Fatal(err)
	}
	return out
}

// eachPayload calls f with every batch of a recording, live and replayed.
func eachPayload(t testing.TB, records []record, f func(src string, seq uint64, payload []byte)) {
	t.Helper()
	for _, r := range records {
		switch {
		case r.K == "msg" && !strings.HasPrefix(r.Src, "load"):
			_, payload, seq, err := ParseMessage(r.Frames)
			if err != nil {
				t.Fatal(err)
			}
			f(r.Src, seq, payload)
		case r.K == "replay":
			src := "pub" + strings.TrimPrefix(r.Src, "replay")
			ended := false
			for _, frames := range r.Received {
				payload, seq, end, err := ParseReplay(frames)
				if err != nil {
					t.Fatal(err)
				}
				if ended = ended || end; !end {
					f(src, seq, payload)
				}
			}
			if ended != r.Ended {
				t.Errorf("end marker seen: %v, recorder says %v", ended, r.Ended)
			}
		}
	}
}

// TestTruth decodes every recorded message and compares it with what the
// engine was asked to publish, where the recording says so.
func TestTruth(t *testing.T) {
	var payloads, checked, loads, events int
	for _, file := range recordings(t) {
		type key struct {
			src string
			seq uint64
		}
		records := readRecording(t, file)
		truths := map[key]record{}
		readings := uint64(0)
		for _, r := range records {
			if r.K != "truth" {
				continue
			}
			if r.Snapshot != nil { // these carry no number; each was sent, in order
				r.Seq = readings
				readings++
			}
			truths[key{r.Src, r.Seq}] = r
		}
		var d Decoder
		var b kv.Batch
		seen := map[key]bool{}
		eachPayload(t, records, func(src string, seq uint64, payload []byte) {
			payloads++
			if err := d.Decode(payload, &b); err != nil {
				t.Fatalf("%s %s %d: %v", file, src, seq, err)
			}
			events += len(b.Events)
			if want, ok := truths[key{src, seq}]; ok {
				seen[key{src, seq}] = true
				checked++
				if s := Disagreement(&b, want.Events); s != "" {
					t.Fatalf("%s %s %d: %s", file, src, seq, s)
				}
			}
		})
		for _, r := range records {
			if r.K != "msg" || !strings.HasPrefix(r.Src, "load") {
				continue
			}
			_, payload, seq, err := ParseMessage(r.Frames)
			if err != nil {
				t.Fatal(err)
			}
			l, err := DecodeLoad(payload)
			if err != nil {
				t.Fatal(err)
			}
			seen[key{r.Src, seq}] = true
			loads++
			if s := LoadDisagreement(&l, truths[key{r.Src, seq}].Snapshot); s != "" {
				t.Fatalf("%s %d: %s", file, seq, s)
			}
			if again := AppendLoad(nil, &l); !bytes.Equal(again, payload) {
				t.Fatalf("%s %d: encoded again %x, want %x", file, seq, again, payload)
			}
		}
		if len(seen) != len(truths) {
			t.Errorf("%s: %d of %d truth lines met their message", file, len(seen), len(truths))
		}
		if drops := d.Drops(); drops.Total() != 0 {
			t.Errorf("%s: left out %v", file, drops)
		}
	}
	t.Logf("%d payloads with %d events decoded, %d of them and %d load readings equal to the engines' truth, 0 wrong",
		payloads, events, checked, loads)
	if checked < 2075 || loads < 20 {
		t.Errorf("only %d batches and %d load readings were compared", checked, loads)
	}
}

// TestSameBytes encodes every recorded batch again, in the layout of the
// release that wrote it, and wants the same bytes.
func TestSameBytes(t *testing.T) {
	var total, same int
	for _, file := range recordings(t) {
		records := readRecording(t, file)
		layout, err := LayoutFor(records[0].Engine, records[0].Version)
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		var d Decoder
		var b kv.Batch
		var again []byte
		wrong := 0
		eachPayload(t, records, func(src string, seq uint64, payload []byte) {
			if err := d.Decode(payload, &b); err != nil {
				t.Fatal(err)
			}
			total++
			again = AppendBatch(again[:0], &b, layout)
			if bytes.Equal(again, payload) {
				same++
				return
			}
			if wrong++; wrong == 1 {
				t.Errorf("%s %s %d in %s's layout:\n got %x\nwant %x", file, src, seq, layout.Since, again, payload)
			}
		})
		if wrong > 0 {
			t.Errorf("%s: %d batches differ", file, wrong)
		}
	}
	t.Logf("%d of %d batches encode to the recorded bytes", same, total)
}

// TestReplayFrames makes the recorded replays' messages and requests again.
func TestReplayFrames(t *testing.T) {
	var requests, answers int
	for _, file := range recordings(t) {
		records := readRecording(t, file)
		layout, err := LayoutFor(records[0].Engine, records[0].Version)
		if err != nil {
			t.Fatal(err)
		}
		topics := map[int]string{3: ""}
		for _, r := range records {
			if r.K != "replay" {
				continue
			}
			if len(r.Sent) == 2 && len(r.Sent[0]) == 0 {
				requests++
				start, err := ParseReplayRequest(r.Sent)
				if err != nil || (start != r.Start && len(r.Sent[1]) == seqBytes) {
					t.Errorf("%s: request %x reads as %d (%v), want %d", file, r.Sent, start, err, r.Start)
				}
			}
			for _, frames := range r.Received {
				answers++
				payload, seq, end, err := ParseReplay(frames)
				if err != nil {
					t.Fatal(err)
				}
				made := MakeReplayEnd(layout.Replay)
				if !end {
					topics[4] = string(frames[1])
					made = MakeReplay(layout.Replay, topics[len(frames)], seq, payload)
				}
				if !sameFrames(made, frames) {
					t.Errorf("%s: made %x, want %x", file, made, frames)
				}
			}
		}
	}
	t.Logf("%d requests read, %d answers made again", requests, answers)
	if requests == 0 || answers == 0 {
		t.Error("the recordings hold no replay")
	}
}

func sameFrames(a, b [][]byte) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if !bytes.Equal(a[i], b[i]) {
			return false
		}
	}
	return true
}

// TestEveryLayoutIsRecorded makes sure that a layout nobody recorded is known
// to be unproven.
func TestEveryLayoutIsRecorded(t *testing.T) {
	recorded := map[string]bool{}
	for _, file := range recordings(t) {
		header := readRecording(t, file)[0]
		l, err := LayoutFor(header.Engine, header.Version)
		if err != nil {
			t.Fatal(err)
		}
		recorded[l.Engine+" "+l.Since] = true
	}
	var unproven []string
	for _, l := range Layouts() {
		if name := l.Engine + " " + l.Since; !recorded[name] {
			unproven = append(unproven, name)
		}
	}
	sort.Strings(unproven)
	if len(unproven) > 0 {
		t.Errorf("no recording shows the layout of %s", strings.Join(unproven, ", "))
	}
}

// TestFold compares the folding of digests with the integers that the same
// engine sends for them when told to.
func TestFold(t *testing.T) {
	raw, err := os.ReadFile("../../harness/testdata/fixtures/given/hash_vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	var vectors struct {
		VLLM []struct {
			Name   string   `json:"name"`
			Hashes []string `json:"block_hashes"`
			Wire   []uint64 `json:"wire_uint64"`
		} `json:"vllm"`
	}
	if err := json.Unmarshal(raw, &vectors); err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, v := range vectors.VLLM {
		for i, h := range v.Hashes {
			digest, err := hex.DecodeString(h)
			if err != nil {
				t.Fatal(err)
			}
			n++
			if got := Fold(digest); uint64(got) != v.Wire[i] {
				t.Errorf("%s: digest %s folds to %d, want %d", v.Name, h, got, v.Wire[i])
			}
		}
	}
	if t.Logf("%d digests", n); n == 0 {
		t.Error("no digests")
	}
}

// TestBytesAndIntegersNameTheSame compares two forms: the recordings of one scenario
// with hashes as bytes and as integers hold the same engine hashes.
func TestBytesAndIntegersNameTheSame(t *testing.T) {
	hashes := func(file string) map[kv.EngineHash]bool {
		out := map[kv.EngineHash]bool{}
		var d Decoder
		var b kv.Batch
		eachPayload(t, readRecording(t, file), func(_ string, _ uint64, payload []byte) {
			if err := d.Decode(payload, &b); err != nil {
				t.Fatal(err)
			}
			for i := range b.Events {
				e := &b.Events[i]
				if want := strings.HasSuffix(file, "_bytes.jsonl.gz"); (e.Form == kv.FormBytes) != want && len(e.Hashes) > 0 {
					t.Fatalf("%s: form %d", file, e.Form)
				}
				for _, h := range e.Hashes {
					out[h] = true
				}
				if e.HasParent && !out[e.Parent] {
					t.Fatalf("%s: parent %x was never stored", file, e.Parent)
				}
			}
		})
		return out
	}
	pairsFound := 0
	for _, file := range recordings(t) {
		twin := strings.Replace(file, "_bytes.jsonl.gz", "_int.jsonl.gz", 1)
		if _, err := os.Stat(twin); err != nil || twin == file {
			continue
		}
		pairsFound++
		if a, b := hashes(file), hashes(twin); len(a) == 0 || !maps.Equal(a, b) {
			t.Errorf("%s and %s name %d and %d blocks, not the same", file, twin, len(a), len(b))
		}
	}
	if pairsFound == 0 {
		t.Error("no twins")
	}
}
