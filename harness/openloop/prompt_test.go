// SPDX-License-Identifier: Apache-2.0

package openloop

import (
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// asked is what an endpoint reads in a body.
type asked struct {
	Model    string          `json:"model"`
	Stream   bool            `json:"stream"`
	Max      int             `json:"max_tokens"`
	EOS      bool            `json:"ignore_eos"`
	Prompt   json.RawMessage `json:"prompt"`
	Messages []struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	} `json:"messages"`
	Options struct {
		Usage bool `json:"include_usage"`
	} `json:"stream_options"`
}

// read decodes a body and returns the prompt's tokens, as text.
func read(t *testing.T, b []byte) (asked, []string) {
	t.Helper()
	var q asked
	if err := json.Unmarshal(b, &q); err != nil {
		t.Fatalf("%v: %.200s", err, b)
	}
	if q.Messages != nil {
		return q, strings.Split(q.Messages[0].Content, " ")
	}
	if q.Prompt[0] == '[' {
		var ids []uint32
		if err := json.Unmarshal(q.Prompt, &ids); err != nil {
			t.Fatal(err)
		}
		var out []string
		for _, id := range ids {
			if id < lowToken || id >= 30_000 {
				t.Errorf("token %d", id)
			}
			out = append(out, known(int(id)))
		}
		return q, out
	}
	var s string
	if err := json.Unmarshal(q.Prompt, &s); err != nil {
		t.Fatal(err)
	}
	return q, strings.Split(s, " ")
}

func maker(t *testing.T, change func(*Options)) *bodies {
	t.Helper()
	o := DefaultOptions()
	change(&o)
	b, err := newBodies(&o, `a "model"`)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func common(a, b []string) int {
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}

func TestPrompts(t *testing.T) {
	for _, kind := range Prompts {
		b := maker(t, func(o *Options) { o.Prompt = kind })
		prompt := func(r Row) []string {
			q, tokens := read(t, b.append(nil, &r))
			if q.Model != `a "model"` || !q.Stream || !q.Options.Usage || q.Max != max(r.Output, 1) || !q.EOS {
				t.Errorf("%s: %+v", kind, q)
			}
			if len(tokens) != max(r.Input, 1) {
				t.Errorf("%s: %d tokens, want %d", kind, len(tokens), r.Input)
			}
			return tokens
		}
		base := prompt(Row{N: 1, Input: 1300, Output: 4, IDs: []uint64{5, 6, 7}})
		if again := prompt(Row{N: 9, Input: 1300, Output: 4, IDs: []uint64{5, 6, 7}}); !slices.Equal(base, again) {
			t.Errorf("%s: equal ids, other tokens", kind)
		}
		for _, test := range []struct {
			row  Row
			want int // tokens in common; random ones may agree by chance in a word or two
		}{
			{Row{N: 2, Input: 1536, Output: 1, IDs: []uint64{5, 6, 7}}, 1300},
			{Row{N: 2, Input: 1536, Output: 1, IDs: []uint64{5, 6, 8}}, 1024},
			{Row{N: 2, Input: 700, Output: 0, IDs: []uint64{5, 9}}, 512},
			{Row{N: 2, Input: 1300, Output: 1, IDs: []uint64{6, 5, 7}}, 0},
			{Row{N: 2, Input: 1300, Output: 1, IDs: []uint64{5}}, 512}, // too few: its own from there
			{Row{N: 2, Input: 400, Output: 1, IDs: []uint64{5, 6, 7, 8}}, 400},
			{Row{N: 2, Input: 1300, Output: 1}, 0},
			{Row{N: 2, Input: 0, Output: 1, IDs: []uint64{}}, 0},
		} {
			if got := common(base, prompt(test.row)); got < test.want || got > test.want+8 {
				t.Errorf("%s, %+v: %d tokens in common, want %d", kind, test.row, got, test.want)
			}
		}
	}
}

// TestOwnPrompts: rows without ids share nothing but what --share says.
func TestOwnPrompts(t *testing.T) {
	for share, most := range map[int]int{0: 3, 1024: 1027} {
		b := maker(t, func(o *Options) { o.Share = share })
		_, x := read(t, b.append(nil, &Row{N: 0, Input: 3000, Output: 1}))
		_, y := read(t, b.append(nil, &Row{N: 1, Input: 2000, Output: 1}))
		_, again := read(t, b.append(nil, &Row{N: 0, Input: 3000, Output: 1}))
		if n := common(x, y); n < share || n > most {
			t.Errorf("--share %d: %d tokens in common", share, n)
		}
		if !slices.Equal(x, again) {
			t.Error("the same row twice gives two prompts")
		}
	}
	other := maker(t, func(o *Options) { o.Seed = 2 })
	_, x := read(t, maker(t, func(*Options) {}).append(nil, &Row{Input: 512, IDs: []uint64{1}}))
	_, y := read(t, other.append(nil, &Row{Input: 512, IDs: []uint64{1}}))
	if n := common(x, y); n > 3 {
		t.Errorf("two seeds, %d tokens in common", n)
	}
}

// TestBodyLives: a body is not made anew while anybody reads it.
func TestBodyLives(t *testing.T) {
	b := maker(t, func(*Options) {})
	x := b.of(&Row{Input: 100, IDs: []uint64{1}})
	first := string(x.buf)
	late, later := x.open(), x.open()
	x.release()
	if y := b.of(&Row{Input: 100, IDs: []uint64{2}}); y == x {
		t.Fatal("taken while read")
	}
	got, err := io.ReadAll(late)
	if err != nil || string(got) != first {
		t.Errorf("read %v, another body", err)
	}
	_ = late.Close()
	_ = late.Close() // counts once
	if x.refs.Load() != 1 {
		t.Errorf("%d readers left, want 1", x.refs.Load())
	}
	_ = later.Close()
	if x.refs.Load() != 0 {
		t.Errorf("%d readers left", x.refs.Load())
	}
}

func TestWords(t *testing.T) {
	name := filepath.Join(t.TempDir(), "words")
	for text, want := range map[string]string{
		"a b c":                  "3 distinct words: must be 16",
		strings.Repeat("a ", 99): "1 distinct words",
		"a\x00b " + strings.Join(usualWords, " "): "must be UTF-8",
		"a\"b":                                 "must be UTF-8",
		"a\xffb":                               "must be UTF-8",
		"x1 " + strings.Join(usualWords, "\n"): "",
	} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := readWords(name)
		if want == "" && (err != nil || len(got) != 17) || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %q, %v; want %q", text, got, err, want)
		}
	}
	if _, err := readWords(name + "x"); err == nil || !strings.HasPrefix(err.Error(), "--words: ") {
		t.Errorf("no file: %v", err)
	}
}

func TestAppendAllocatesNothing(t *testing.T) {
	for _, kind := range Prompts {
		b := maker(t, func(o *Options) { o.Prompt = kind })
		row := &Row{Input: 5000, IDs: []uint64{1, 2, 3}}
		buf := b.append(nil, row)
		if n := testing.AllocsPerRun(10, func() { buf = b.append(buf[:0], row) }); n != 0 {
			t.Errorf("%s: %v allocations", kind, n)
		}
	}
}

func BenchmarkBody(b *testing.B) {
	o := DefaultOptions()
	m, err := newBodies(&o, "m")
	if err != nil {
		b.Fatal(err)
	}
	row := &Row{Input: 13_720, IDs: []uint64{1, 2, 3}}
	buf := m.append(nil, row)
	b.SetBytes(int64(len(buf)))
	for b.Loop() {
		buf = m.append(buf[:0], row)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(row.Input), "ns/token")
}
