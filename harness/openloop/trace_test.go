// SPDX-License-Identifier: Apache-2.0

package openloop

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"kindex/internal/longtest"
)

func TestParse(t *testing.T) {
	tests := []struct {
		name, in string
		want     []Row
		err      string // in the error, which begins with the line
	}{
		{"lines", `{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [7, 8]}` + "\n\n" + `{"timestamp": 1500, "input_length": 0, "output_length": 0, "hash_ids": [], "more": 1}`, []Row{{0, 0, 600, 5, []uint64{7, 8}}, {1, 1500 * time.Millisecond, 0, 0, []uint64{}}}, ""},
		{"fractions", `{"timestamp": 0.25, "input_length": 1, "output_length": 1}`, []Row{{0, 250 * time.Microsecond, 1, 1, nil}}, ""},
		{"late", `{"timestamp": 18446744073709551615, "input_length": 1, "output_length": 1}`, []Row{{0, math.MaxInt64, 1, 1, nil}}, ""},
		{"later", `{"timestamp": 1e300, "input_length": 1, "output_length": 1}`, []Row{{0, math.MaxInt64, 1, 1, nil}}, ""},
		{"no time", "\n" + `{"input_length": 1, "output_length": 1}`, nil, `2: timestamp ""`},
		{"before", `{"timestamp": -1, "input_length": 1, "output_length": 1}`, nil, `1: timestamp "-1"`},
		{"no input", `{"timestamp": 1, "output_length": 1}`, nil, "1: input_length: must be"},
		{"negative", `{"timestamp": 1, "input_length": -4, "output_length": 1}`, nil, "1: input_length -4: must be"},
		{"huge", `{"timestamp": 1, "input_length": 4, "output_length": 99999999}`, nil, "1: output_length 99999999: must be"},
		{"not JSON", `{"timestamp": 1, "input_length": 4, "output_length": 1}` + "\n{x", nil, "2: not a request"},
		{"ids of text", `{"timestamp": 1, "input_length": 4, "output_length": 1, "hash_ids": ["a"]}`, nil, "1: not a request"},
		{"nothing", "\n \n", nil, "1: no request"},
		{"table", "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:17:03.9799600,4808,10\r\n2023-11-16 18:17:04.0319601,3180,8\r\n", []Row{{0, 0, 4808, 10, nil}, {1, 52000100, 3180, 8, nil}}, ""},
		{"table in another order", "\ufeffcontexttokens,x,TIMESTAMP,GeneratedTokens\n5,,2024-05-10 00:00:01+00:00,6\n7,,2024-05-10T00:00:00Z,8\n", []Row{{0, 0, 5, 6, nil}, {1, -time.Second, 7, 8, nil}}, ""},
		{"another table", "a,b\n1,2\n", nil, "1: neither JSON lines"},
		{"table without rows", "TIMESTAMP,ContextTokens,GeneratedTokens\n", nil, "2: no request"},
		{"bad time", "TIMESTAMP,ContextTokens,GeneratedTokens\n\nyesterday,1,2\n", nil, `3: TIMESTAMP "yesterday"`},
		{"bad number", "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,1,-2\n", nil, `2: GeneratedTokens "-2"`},
		{"short line", "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,1\n", nil, "2: wrong number of fields"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var packed bytes.Buffer
			z := gzip.NewWriter(&packed)
			_, _ = z.Write([]byte(test.in))
			_ = z.Close()
			zst, err := zstd.NewWriter(nil)
			if err != nil {
				t.Fatal(err)
			}
			for _, in := range []string{test.in, packed.String(), string(zst.EncodeAll([]byte(test.in), nil))} {
				got, err := parse(strings.NewReader(in), math.MaxInt)
				if test.err == "" && (err != nil || !reflect.DeepEqual(got, test.want)) {
					t.Errorf("got %+v, %v; want %+v", got, err, test.want)
				}
				if test.err != "" && (err == nil || !strings.HasPrefix(err.Error(), test.err) || strings.Contains(err.Error(), "\n")) {
					t.Errorf("got %v, want %s", err, test.err)
				}
			}
		})
	}
	if _, err := parse(bytes.NewReader([]byte{0x1f, 0x8b, 0}), 5); err == nil || !strings.HasPrefix(err.Error(), "1: ") {
		t.Errorf("a cut file: %v", err)
	}
}

// TestParseBounds: what is too much to be read is refused in one line that says so,
// packed or not.
func TestParseBounds(t *testing.T) {
	zst := func(in string) string {
		var b bytes.Buffer
		w, err := zstd.NewWriter(&b, zstd.WithWindowSize(2*maxWindow))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(w, strings.NewReader(in)) // a stream, so that the window is not the content's length
		_ = w.Close()
		return b.String()
	}
	row := `{"timestamp": 1, "input_length": 4, "output_length": 1}` + "\n"
	header := "TIMESTAMP,ContextTokens,GeneratedTokens\n"
	long := strings.Repeat("x", maxLine+1<<17)
	noise := make([]byte, maxWindow+1)
	for i := range noise {
		noise[i] = byte(rand.Uint32())
	}
	for _, test := range []struct{ name, in, want string }{
		{"a long line", row + `{"x":"` + long, "2: a line of over 4194304 bytes"},
		{"a long record", header + "2023-11-16 18:17:03,1,2\n\"" + long, "3: a line of over 4194304 bytes"},
		{"a long header", `"` + long, "1: a line of over 4194304 bytes"},
		{"a wide window", zst(string(noise)), "1: window size exceeded"},
		{"cut zstd", zst(row)[:20], "1: unexpected EOF"},
		{"no zstd", "\x28\xb5\x2f\xfdnonsense", "1: "},
	} {
		if _, err := parse(strings.NewReader(test.in), math.MaxInt); err == nil || !strings.HasPrefix(err.Error(), test.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want %q", test.name, err, test.want)
		}
	}
	for size, want := range map[int]error{9: nil, 10: nil, 11: errLargeTrace} {
		got, err := io.ReadAll(&bounded{strings.NewReader(strings.Repeat("x", size)), 10, errLargeTrace})
		if !errors.Is(err, want) || len(got) != min(size, 10) {
			t.Errorf("%d of at most 10 bytes: %d read, %v", size, len(got), err)
		}
	}
}

// TestParseManyIDs: each row's ids are few enough, all together are not.
func TestParseManyIDs(t *testing.T) {
	longtest.Skip(t)
	many := `{"timestamp": 1, "input_length": 4, "output_length": 1, "hash_ids": [` + strings.TrimSuffix(strings.Repeat("1,", maxIDs), ",") + "]}\n"
	if _, err := parse(&repeated{text: many}, math.MaxInt); !errors.Is(err, errManyIDs) || !strings.HasPrefix(err.Error(), known(maxAllIDs/maxIDs+1)+": ") {
		t.Errorf("a trace without end: %v", err)
	}
}

// repeated is a text without end.
type repeated struct {
	text string
	at   int
}

func (r *repeated) Read(p []byte) (int, error) {
	n := copy(p, r.text[r.at:])
	r.at = (r.at + n) % len(r.text)
	return n, nil
}

func TestReadTrace(t *testing.T) {
	name := filepath.Join(t.TempDir(), "t.jsonl")
	text := ""
	for _, at := range []string{"5", "3", "3", "9"} {
		text += `{"timestamp": ` + at + `, "input_length": 1, "output_length": 1}` + "\n"
	}
	if err := os.WriteFile(name, []byte(text+"{bad\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := ReadTrace(name, Range{0, 3}, 1)
	if err != nil {
		t.Fatalf("a bad line past the range: %v", err)
	}
	var order []int
	for i := range got.Rows {
		order = append(order, got.Rows[i].N)
	}
	if !reflect.DeepEqual(order, []int{1, 2, 0, 3}) || len(got.Notes) != 1 || !strings.Contains(got.Notes[0], "not in order") {
		t.Errorf("%v, %v", order, got.Notes)
	}
	if _, err := ReadTrace(name, Range{0, 9}, 1); err == nil || !strings.HasPrefix(err.Error(), name+":5: ") {
		t.Errorf("a bad line: %v", err)
	}
	for _, name := range []string{Conversation, Generated} {
		whole, err := ReadTrace(name, Range{0, math.MaxInt}, 1)
		if err != nil || len(whole.Rows) != 12_031 {
			t.Fatalf("%s: %v, %d rows", name, err, len(whole.Rows))
		}
		some, err := ReadTrace(name, Range{100, 199}, 1)
		if err != nil || len(some.Rows) != 100 || some.Rows[0].N != 100 {
			t.Fatalf("%s: %v, %d rows", name, err, len(some.Rows))
		}
		if !reflect.DeepEqual(some.Rows, whole.Rows[100:200]) {
			t.Errorf("%s: rows 100 to 199 of a part are others than of the whole", name)
		}
	}
	if _, err := ReadTrace(Conversation, Range{20_000, 20_001}, 1); err == nil || !strings.Contains(err.Error(), "12031 rows") {
		t.Errorf("past the end: %v", err)
	}
	if _, err := ReadTrace(t.TempDir(), Range{0, 1}, 1); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("a folder: %v", err)
	}
}

func TestRange(t *testing.T) {
	for in, want := range map[string]Range{"0-1999": {0, 1999}, "7-7": {7, 7}, "3:9": {3, 9}, "5-": {5, math.MaxInt}, "all": {0, math.MaxInt}} {
		var r Range
		if err := r.Set(in); err != nil || r != want {
			t.Errorf("%s: %+v, %v", in, r, err)
		}
	}
	for _, in := range []string{"", "5", "-", "9-3", "a-b", "-1-4", "1-2-3", "0-99999999999"} {
		var r Range
		if err := r.Set(in); err == nil {
			t.Errorf("%q is taken as %+v", in, r)
		}
	}
}

func TestValidate(t *testing.T) {
	for want, change := range map[string]func(*Options){
		"--url":           func(o *Options) { o.URL = "" },
		"--url \"ftp":     func(o *Options) { o.URL = "ftp://x" },
		"--speedup 0":     func(o *Options) { o.Speedup = 0 },
		"--speedup -1":    func(o *Options) { o.Speedup = -1 },
		"--speedup NaN":   func(o *Options) { o.Speedup = math.NaN() },
		"--speedup +Inf":  func(o *Options) { o.Speedup = math.Inf(1) },
		"--prompt":        func(o *Options) { o.Prompt = "poem" },
		"--vocab":         func(o *Options) { o.Vocab = 5 },
		"--share 5":       func(o *Options) { o.Share = 5 },
		"--max-in-flight": func(o *Options) { o.InFlight = 0 },
		"--timeout":       func(o *Options) { o.Timeout = 0 },
		"--slo-itl":       func(o *Options) { o.ITL = -1 },
		"--reset":         func(o *Options) { o.Reset = true },
		"--oracle":        func(o *Options) { o.Oracle = "http://" },
		"--block-size":    func(o *Options) { o.BlockSize = -1 },
		"--max-output":    func(o *Options) { o.MaxOutput = -1 },
		"--for":           func(o *Options) { o.For = -1 },
	} {
		o := DefaultOptions()
		o.URL = "127.0.0.1:8000/v1/"
		change(&o)
		if err := o.Validate(); err == nil || !strings.HasPrefix(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", want, err)
		}
	}
	o := DefaultOptions()
	o.URL, o.Speedup = "127.0.0.1:8000/v1/", 5e-324
	if err := o.Validate(); err != nil || o.URL != "http://127.0.0.1:8000" {
		t.Errorf("%v, %s", err, o.URL)
	}
}

// FuzzParse: whatever is read is within bounds or refused with one line that has a
// line's number.
func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [7, 8]}`), 3)
	f.Add([]byte("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n"), 0)
	f.Fuzz(func(t *testing.T, in []byte, last int) {
		rows, err := parse(bytes.NewReader(in), max(last, 0))
		if err != nil {
			if line, _, ok := strings.Cut(err.Error(), ":"); !ok || strings.Trim(line, "0123456789") != "" || line == "" {
				t.Errorf("no line's number: %v", err)
			}
			return
		}
		if len(rows) == 0 {
			t.Error("no rows and no error")
		}
		tr := Trace{Rows: rows}
		tr.order()
		due := schedule(tr.Rows, 3)
		for i := range tr.Rows {
			r := &tr.Rows[i]
			if r.Input < 0 || r.Input > maxTokens || r.Output < 0 || r.Output > maxTokens || len(r.IDs) > maxIDs || due[i] < 0 || i > 0 && due[i] < due[i-1] {
				t.Errorf("row %d: %d, %d, %d ids, due %d", i, r.Input, r.Output, len(r.IDs), due[i])
			}
		}
	})
}
