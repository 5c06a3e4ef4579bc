// SPDX-License-Identifier: Apache-2.0

package hashcheck

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"kindex/internal/enginehash"
	"kindex/internal/kv"
	"kindex/relay/wire"
)

var t0 = time.Unix(1_796_010_653, 0)

// recording is what a fixture's live sockets said, per rank, in order.
type recording struct {
	name    string
	engine  string
	algo    string
	seed    string
	none    string
	batches map[string][]message
}

type message struct {
	seq     uint64
	payload []byte
}

func fixtures(t testing.TB) []string {
	t.Helper()
	var files []string
	for _, dir := range []string{"given", "made"} {
		f, err := filepath.Glob("../../harness/testdata/fixtures/" + dir + "/*.jsonl.gz")
		if err != nil || len(f) == 0 {
			t.Fatalf("no recordings in %s: %v", dir, err)
		}
		files = append(files, f...)
	}
	return files
}

func readFixture(t testing.TB, file string) *recording {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	r := &recording{name: strings.TrimSuffix(filepath.Base(file), ".jsonl.gz"), batches: map[string][]message{}}
	in := bufio.NewScanner(z)
	in.Buffer(nil, 64<<20)
	for in.Scan() {
		if !bytes.Contains(in.Bytes(), []byte(`"k":"header"`)) && !bytes.Contains(in.Bytes(), []byte(`"k":"msg"`)) {
			continue
		}
		var l struct {
			K      string   `json:"k"`
			Engine string   `json:"engine"`
			Algo   string   `json:"hash_algo"`
			Seed   string   `json:"none_hash_seed"`
			None   string   `json:"none_hash"`
			Src    string   `json:"src"`
			Frames [][]byte `json:"f"`
		}
		if err := json.Unmarshal(in.Bytes(), &l); err != nil {
			t.Fatal(err)
		}
		switch {
		case l.K == "header":
			r.engine, r.algo, r.seed, r.none = l.Engine, l.Algo, l.Seed, l.None
		case l.K == "msg" && strings.HasPrefix(l.Src, "pub"):
			_, payload, seq, err := wire.ParseMessage(l.Frames)
			if err != nil {
				t.Fatal(err)
			}
			r.batches[l.Src] = append(r.batches[l.Src], message{seq, payload})
		}
	}
	if err := in.Err(); err != nil {
		t.Fatal(err)
	}
	return r
}

// outcome is what checking a recording's ranks came to, all together.
type outcome struct {
	Stats
	stored   uint64 // blocks of device stores with tokens
	warnings []string
}

func (r *recording) check(t testing.TB, cfg *Config) outcome {
	t.Helper()
	var o outcome
	for _, src := range slices.Sorted(func(yield func(string) bool) {
		for s := range r.batches {
			if !yield(s) {
				return
			}
		}
	}) {
		c := New(cfg)
		var d wire.Decoder
		var b kv.Batch
		last := uint64(0)
		for _, m := range r.batches[src] {
			if m.seq < last {
				c.Restart()
			}
			last = m.seq
			if err := d.Decode(m.payload, &b); err != nil {
				t.Fatal(err)
			}
			for i := range b.Events {
				if ev := &b.Events[i]; ev.Kind == kv.KindStored && ev.Tier == kv.TierDevice && len(ev.Tokens) > 0 {
					o.stored += uint64(len(ev.Hashes))
				}
			}
			if w := c.Check(&b, t0); w != "" {
				o.warnings = append(o.warnings, w)
			}
		}
		s := c.Stats()
		o.Checked += s.Checked
		o.Mismatched += s.Mismatched
		o.Algorithm = s.Algorithm
		for i := range s.Unverifiable {
			o.Unverifiable[i] += s.Unverifiable[i]
		}
		o.Skipped += s.Skipped
	}
	sum := o.Checked + o.Skipped
	for _, n := range o.Unverifiable {
		sum += n
	}
	if sum != o.stored {
		t.Errorf("%s: %d blocks counted, %d stored", r.name, sum, o.stored)
	}
	return o
}

func (o *outcome) String() string {
	s := fmt.Sprintf("%d stored, %d checked, %d mismatched", o.stored, o.Checked, o.Mismatched)
	for _, r := range Reasons() {
		if n := o.Unverifiable[r]; n > 0 {
			s += fmt.Sprintf(", %d %v", n, r)
		}
	}
	return s
}

func (r *recording) config(t testing.TB) *Config {
	t.Helper()
	cfg := &Config{Engine: r.engine, Seed: r.seed}
	switch {
	case r.engine == "sglang" || r.engine == "tokenspeed":
		cfg.Algorithm, cfg.Engine = enginehash.SGLang, "sglang"
	case r.algo == "":
		cfg.Algorithm = enginehash.SHA256 // what the legacy recordings were made of
	default:
		var err error
		if cfg.Algorithm, err = enginehash.Parse(r.algo); err != nil {
			t.Fatal(err)
		}
	}
	return cfg
}

// TestFixtures: with the right algorithm and seed no block of any recording
// mismatches, whether they are told or found out.
func TestFixtures(t *testing.T) {
	recordings, stored, checked := 0, uint64(0), uint64(0)
	for _, file := range fixtures(t) {
		r := readFixture(t, file)
		if len(r.batches) == 0 {
			continue
		}
		cfg := r.config(t)
		told := r.check(t, cfg)
		recordings, stored, checked = recordings+1, stored+told.stored, checked+told.Checked
		t.Logf("%s: %v", r.name, &told)
		found := r.check(t, &Config{Engine: cfg.Engine, Auto: true, Seed: r.seed})
		for how, o := range map[string]*outcome{"told": &told, "found out": &found} {
			if o.Mismatched > 0 {
				t.Errorf("%s, %s: %v", r.name, how, o)
			}
			for _, w := range o.warnings {
				if !strings.HasPrefix(w, "blocks of LoRA adapters cannot be checked") || o.Unverifiable[LoRA] == 0 {
					t.Errorf("%s, %s: a warning where nothing is wrong: %s", r.name, how, w)
				}
			}
			if o.Checked == 0 && r.name != "vllm032_sliding_only" {
				t.Errorf("%s, %s: nothing checked", r.name, how)
			}
		}
		if r.algo != "" && !strings.Contains(r.name, "sliding_only") && !strings.Contains(r.name, "lora") && !strings.Contains(r.name, "multimodal") && !strings.Contains(r.name, "hybrid") && told.Checked != told.stored {
			t.Errorf("%s: %v, want all checked", r.name, &told)
		}
	}
	if recordings < 80 {
		t.Errorf("%d recordings, want all", recordings)
	}
	t.Logf("%d recordings: %d blocks stored, %d checked, 0 mismatched", recordings, stored, checked)
}

// TestWrongConfig: what a recording's engine did is told from what it should have
// done, in one line, once.
func TestWrongConfig(t *testing.T) {
	for _, c := range []struct{ fixture, check, want string }{
		{"vllm032_algo_sha256_seed42_int", "sha256", `another seed: the engine hashes by sha256 with the seed "42", not with the default seed`},
		{"vllm032_algo_sha256_seed0_bytes", "sha256:42", `another seed: the engine hashes by sha256 with the seed "0", not with the seed "42"`},
		{"vllm032_algo_sha256_seedunset_int", "sha256:5", `another seed: the engine hashes by sha256 with the default seed, not with the seed "5"`},
		{"vllm032_algo_sha256_cbor_seed0_int", "sha256", `another algorithm: the engine hashes by sha256_cbor with the seed "0", not by sha256`},
		{"vllm032_algo_sha256_cbor_seedunset_int", "sha256", `another algorithm: the engine hashes by sha256_cbor with the default seed, not by sha256`},
		{"vllm032_algo_xxhash_seed0_int", "sha256_cbor:0", `another algorithm: the engine hashes by xxhash with the seed "0", not by sha256_cbor`},
		{"vllm032_algo_xxhash_cbor_seed0_bytes", "sha256_cbor", `another algorithm: the engine hashes by xxhash_cbor with the seed "0", not by sha256_cbor`},
		{"vllm032_algo_xxhash_cbor_seedunset_int", "sha256_cbor", "another seed, most likely: no first block fits sha256_cbor with the default seed"},
		{"vllm032_algo_xxhash_cbor_seedunset_int", "xxhash_cbor:0", `another seed, most likely: no first block fits xxhash_cbor with the seed "0"`},
		{"vllm032_algo_xxhash_cbor_seedunset_int", "xxhash_cbor", "first blocks cannot be checked: without PYTHONHASHSEED the engine draws the seed of xxhash_cbor at random"},
		{"vllm032_algo_xxhash_cbor_seedunset_int", "auto", "the engine's hashes fit no known algorithm with a known seed"},
		{"vllm032_algo_xxhash_cbor_seed42_int", "auto", ""},
		{"vllm032_lora", "sha256", "blocks of LoRA adapters cannot be checked: what the engine (sha256) hashes"},
		{"vllm032_lora", "sha256:7", `another seed: the engine hashes by sha256 with the default seed, not with the seed "7"`},
		{"sglang0523_unified_lora_salt_page16", "sglang", "blocks of LoRA adapters cannot be checked"},
		{"vllm033_lookahead3", "sha256_cbor", "another algorithm: the engine hashes by sha256 with the default seed, not by sha256_cbor"},
		{"vllm032_prompt_embeds", "sha256_cbor", "another algorithm: the engine hashes by sha256 with the default seed, not by sha256_cbor"},
	} {
		r := readFixture(t, "../../harness/testdata/fixtures/given/"+c.fixture+".jsonl.gz")
		cfg, err := Parse(c.check, r.engine)
		if err != nil {
			t.Fatal(err)
		}
		o := r.check(t, cfg)
		if c.want == "" && len(o.warnings) > 0 || c.want != "" && (len(o.warnings) != 1 || !strings.HasPrefix(o.warnings[0], c.want)) {
			t.Errorf("%s checked as %s: warnings %q, want one: %s", c.fixture, c.check, o.warnings, c.want)
		}
		// Where the wire shows whole digests, blocks below the first ones fit whatever
		// the seed; else nothing below a block that does not fit can be checked.
		rate := 0.0
		if strings.HasPrefix(c.want, "another") {
			rate = 1
		}
		bytes := strings.HasSuffix(c.fixture, "_bytes") && strings.HasPrefix(c.want, "another seed")
		if got := o.Rate(); bytes && (got == 0 || got == 1) || !bytes && got != rate {
			t.Errorf("%s checked as %s: mismatch rate %v, want %v: %v", c.fixture, c.check, got, rate, &o)
		}
	}
}
