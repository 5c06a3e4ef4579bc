// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const given = "testdata/fixtures/given/"

// plain unpacks a recording, changes its text and returns the new file.
func plain(t *testing.T, name string, change func(lines []string) []string) string {
	t.Helper()
	in, err := os.Open(given + name)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = in.Close() }()
	z, err := gzip.NewReader(in)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	lines := change(strings.Split(strings.TrimSuffix(string(b), "\n"), "\n"))
	out := filepath.Join(t.TempDir(), strings.TrimSuffix(name, ".gz"))
	if err := os.WriteFile(out, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return out
}

// edit replaces old by its new text in one line, given by number from 1.
func edit(n int, old, text string) func([]string) []string {
	return func(lines []string) []string {
		if !strings.Contains(lines[n-1], old) {
			panic("the line holds no " + old + ": " + lines[n-1])
		}
		lines[n-1] = strings.Replace(lines[n-1], old, text, 1)
		return lines
	}
}

func TestCommands(t *testing.T) {
	reset := "vllm032_reset.jsonl.gz"
	whole := func(l []string) []string { return l }
	truncated := filepath.Join(t.TempDir(), "cut.gz")
	b, err := os.ReadFile(given + reset)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(truncated, b[:len(b)/2], 0o600); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name string
		args []string
		code int
		out  string // in standard output
		errs string // the one line of standard error
	}{
		{"nothing", nil, 0, "harness verify [--index KIND] [--json] FILE...", ""},
		{"help", []string{"--help"}, 0, "Exit codes", ""},
		{"no such command", []string{"frob"}, 2, "", `unknown command "frob": must be verify`},
		{"verify help", []string{"verify", "--help"}, 0, "-index", ""},
		{"no file", []string{"verify"}, 2, "", "no file"},
		{"no such index", []string{"verify", "--index", "tree", "x"}, 2, "", `--index "tree": must be chain, positional or reference`},
		{"no such flag", []string{"verify", "--frob", "x"}, 2, "", "-frob"},
		{"no such drill", []string{"drill", "frob"}, 2, "", `unknown drill "frob": must be relay-rolled`},
		{"no drill", []string{"drill", "--json"}, 2, "", "give one name: relay-rolled"},
		{"no rate", []string{"relaybench", "--rate", "0"}, 2, "", "--rate"},
		{"no such arm", []string{"relaybench", "--arms", "x"}, 2, "", "must be of ours, ours-own or smg"},
		{"no such recording", []string{"verify", "nowhere.gz"}, 2, "", "nowhere.gz: no such file"},
		{"a folder", []string{"verify", given}, 2, "", "is a directory"},
		{"not a recording", []string{"verify", given + "hash_vectors.json"}, 2, "", "hash_vectors.json:1: the first line must be a kvrec/1 header"},
		{"cut gzip", []string{"verify", truncated}, 2, "", "cut.gz:"},
		{"garbled line", []string{"verify", plain(t, reset, edit(5, `"id"`, `id`))}, 2, "", ".jsonl:5: not JSON"},
		{"bad base64", []string{"verify", plain(t, reset, edit(4, `"f":["`, `"f":["?`))}, 2, "", ".jsonl:4: msg: f: frame 0"},
		{"wrong type", []string{"verify", plain(t, reset, edit(5, `"max_tokens":1`, `"max_tokens":"1"`))}, 2, "", ".jsonl:5: req: max_tokens: string where int"},
		{"no time", []string{"verify", plain(t, reset, edit(5, `"t":`, `"u":`))}, 2, "", ".jsonl:5: t: missing"},
		{"another format", []string{"verify", plain(t, reset, edit(1, "kvrec/1", "kvrec/9"))}, 2, "", `.jsonl:1: format "kvrec/9": must be kvrec/1`},
		{"flags last, plain file", []string{"verify", plain(t, reset, whole), "--index", "positional"}, 0, "27 requests, 24 exact, 3 explained (deferred_clear 3), 0 wrong", ""},
		{"a number of cached tokens", []string{"verify", plain(t, reset, edit(6, `"cached_tokens":64`, `"cached_tokens":96`))}, 1, ".jsonl:6: cached tokens of request r1: expected 96, got 64 predicted", ""},
		{"a number a rule is for", []string{"verify", plain(t, reset, edit(24, `"cached_tokens":0`, `"cached_tokens":32`))}, 1, ".jsonl:24: cached tokens of request r6: expected 32", ""},
		{"an entry of the table", []string{"verify", plain(t, reset, edit(19, `[[`, `[[1,0,1],[`))}, 1, ".jsonl:19: memberships: expected the engine's table of 12, got 0 too many and 1 missing", ""},
		{"a pending clear that empties nothing", []string{"verify", plain(t, reset, edit(21, `"cached":[]`, `"cached":[[1,0,1]]`))}, 1, ".jsonl:21: memberships", ""},
		{"a truth line", []string{"verify", plain(t, "legacy_vllm_0310.jsonl.gz", edit(2, `"block_size":16`, `"block_size":17`))}, 1, "decoding pub1: expected what the engine was asked to publish", ""},
		{"a lost message", []string{"verify", plain(t, "vllm032_block16_eviction.jsonl.gz", lose(20))}, 1, "memberships: expected", ""},
		{"bench with a bad index", []string{"bench", "--kv-index", "tree"}, 2, "", `--kv-index "tree": must be chain`},
		{"bench with no repeats", []string{"bench", "--repeats", "0"}, 2, "", "--repeats 0: must be 1 to 1000"},
		{"bench with other instructions", []string{"bench", "--cpu-features", "sse"}, 2, "", `"sse": must be auto, avx512, avx2 or generic`},
		{"run with an argument", []string{"run", "x"}, 2, "", `unexpected argument "x"`},
		{"run of a recording with a gateway", []string{"run", "--recorded", "--policy", "random"}, 2, "", "--policy goes with a gateway"},
		{"run with a recording's flag", []string{"run", "--vllm", "x"}, 2, "", "--vllm goes without a gateway"},
		{"run with a host's worker and a gateway", []string{"run", "--worker", "1=tcp://h:1,model=m,block=16", "--gateway", "127.0.0.1:1"}, 2, "", "--gateway goes with a gateway"},
		{"run of two forms", []string{"run", "--recorded", "--worker", "http://h:1"}, 2, "", "--recorded and --worker"},
		{"run with a bad flag", []string{"run", "--for", "soon"}, 2, "", `invalid value "soon"`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var out, errs bytes.Buffer
			code := Main(t.Context(), test.args, &out, &errs)
			if code != test.code {
				t.Errorf("exit %d, want %d", code, test.code)
			}
			if !strings.Contains(out.String(), test.out) {
				t.Errorf("standard output lacks %q:\n%s", test.out, out.String())
			}
			if test.errs == "" && errs.Len() > 0 || !strings.Contains(errs.String(), test.errs) || test.errs != "" && strings.Count(errs.String(), "\n") != 1 {
				t.Errorf("standard error %q, want one line with %q", errs.String(), test.errs)
			}
		})
	}
}

// lose leaves out the n-th message.
func lose(n int) func([]string) []string {
	return func(lines []string) []string {
		for i, l := range lines {
			if strings.Contains(l, `"k":"msg"`) {
				if n--; n == 0 {
					return slices.Delete(lines, i, i+1)
				}
			}
		}
		panic("too few messages")
	}
}

// TestJSON pins the keys of the object.
func TestJSON(t *testing.T) {
	var out, errs bytes.Buffer
	if code := Main(t.Context(), []string{"verify", "--json", given + "vllm032_reset.jsonl.gz"}, &out, &errs); code != 0 {
		t.Fatalf("exit %d: %s", code, errs.String())
	}
	var got map[string]any
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	keys := func(v any) []string {
		m, ok := v.(map[string]any)
		if !ok {
			t.Fatalf("%v is no object", v)
		}
		return slices.Sorted(maps.Keys(m))
	}
	for _, test := range []struct {
		of   any
		want []string
	}{
		{got, []string{"batches", "credit", "decode_truth", "dropped", "engine_table", "events", "files", "lookups", "memberships", "mismatches"}},
		{got["decode_truth"], []string{"messages", "wrong"}},
		{got["engine_table"], []string{"checks", "exact", "explained", "rules", "wrong"}},
		{got["credit"], []string{"exact", "explained", "requests", "rules", "wrong"}},
	} {
		if k := keys(test.of); !slices.Equal(k, test.want) {
			t.Errorf("keys %v, want %v", k, test.want)
		}
	}
}
