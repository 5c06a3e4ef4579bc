// SPDX-License-Identifier: Apache-2.0

// Before: a file, or corpus. After: pace.go.

package openloop

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/klauspost/compress/zstd"

	"kindex/harness/corpus"
)

// TokensPerID is how many tokens one id of a trace stands for.
const TokensPerID = corpus.TokensPerID

// Names of traces that are no files.
const (
	Conversation = corpus.BuiltIn // the published one within this program
	Generated    = "generated"    // made up in its shape, from the seed
)

// The bounds of a trace. Chosen: some 30 times the published ones.
const (
	maxRows       = 1_000_000
	maxTokens     = 1 << 22 // of a prompt, of an answer
	maxIDs        = maxTokens / TokensPerID
	maxLine       = 4 << 20 // bytes
	maxTraceBytes = 1 << 30 // unpacked
	maxAllIDs     = 1 << 26 // of a trace
	maxWindow     = 8 << 20 // bytes that a packed file may have its reader keep
)

var (
	errLargeTrace = fmt.Errorf("over %d bytes, unpacked", maxTraceBytes)
	errManyIDs    = fmt.Errorf("over %d hash_ids in all", maxAllIDs)
	errLongRow    = fmt.Errorf("a line of over %d bytes", maxLine)
)

// Row is one request of a trace.
type Row struct {
	N      int           // in file order, from 0
	At     time.Duration // since the trace's own zero; saturates
	Input  int           // tokens of the prompt
	Output int           // tokens of the answer
	IDs    []uint64      // each TokensPerID tokens of the prompt; nil: it shares with nothing
}

// Trace is rows in the order in which they are due.
type Trace struct {
	Name  string
	Rows  []Row
	Notes []string // what was made right, for people
}

// ReadTrace reads rows of a trace: JSON lines as Mooncake publishes them or CSV as
// Azure does, plain or packed (gzip, zstd); [Conversation]; or [Generated] from the seed.
//
// Errors: one line that names the file, the line and what is wrong. Rows past the range
// are not looked at.
func ReadTrace(name string, rows Range, seed uint64) (*Trace, error) {
	t := &Trace{Name: name}
	var err error
	switch name {
	case Conversation:
		var all []corpus.Row
		all, t.Name, err = corpus.BuiltInTrace()
		t.Rows = fromCorpus(all, rows.Last)
	case Generated:
		var all []corpus.Row
		n := corpus.DefaultRows
		if rows.Last != math.MaxInt {
			n = min(rows.Last, maxRows-1) + 1
		}
		all, err = corpus.Generate(seed, n)
		t.Name = fmt.Sprintf("%s (seed %d)", Generated, seed)
		t.Rows = fromCorpus(all, rows.Last)
	default:
		t.Rows, err = readFile(name, rows.Last)
	}
	if err != nil {
		return nil, err
	}
	if rows.First >= len(t.Rows) {
		return nil, fmt.Errorf("%s: --rows %s: it has %d rows, numbered from 0", t.Name, rows.String(), len(t.Rows))
	}
	if rows.Last != math.MaxInt && rows.Last >= len(t.Rows) {
		t.Notes = append(t.Notes, fmt.Sprintf("the trace ends at row %d", len(t.Rows)-1))
	}
	t.Rows = t.Rows[rows.First:]
	t.order()
	return t, nil
}

// order puts rows in the order of their times; rows of one time stay as they are.
func (t *Trace) order() {
	byTime := func(a, b Row) int { return cmp.Compare(a.At, b.At) }
	moved := 0
	for i := 1; i < len(t.Rows); i++ {
		if t.Rows[i].At < t.Rows[i-1].At {
			moved++
		}
	}
	if moved > 0 {
		slices.SortStableFunc(t.Rows, byTime)
		t.Notes = append(t.Notes, fmt.Sprintf("the trace was not in order of time at %d places: sorted", moved))
	}
	empty := 0
	for i := range t.Rows {
		if t.Rows[i].Input == 0 {
			empty++
		}
	}
	if empty > 0 {
		t.Notes = append(t.Notes, fmt.Sprintf("%d prompts of no token are sent with one", empty))
	}
}

func fromCorpus(all []corpus.Row, last int) []Row {
	out := make([]Row, 0, len(all))
	for i := range all {
		if i > last {
			break
		}
		r := &all[i]
		out = append(out, Row{N: i, At: millis(r.Timestamp), Input: int(min(r.Input, maxTokens)), Output: int(min(r.Output, maxTokens)), IDs: r.IDs})
	}
	return out
}

// millis saturates.
func millis(ms uint64) time.Duration {
	if ms > math.MaxInt64/uint64(time.Millisecond) {
		return math.MaxInt64
	}
	return time.Duration(ms) * time.Millisecond
}

func readFile(name string, last int) ([]Row, error) {
	// To open anything but a regular file may wait for ever.
	if st, err := os.Stat(name); err != nil {
		return nil, err
	} else if !st.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: not a regular file", name)
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	rows, err := parse(f, last)
	if err != nil {
		return nil, fmt.Errorf("%s:%w", name, err)
	}
	return rows, nil
}

// parse reads rows up to last; its errors begin with the line's number.
func parse(f io.Reader, last int) ([]Row, error) {
	plain, err := unpack(bufio.NewReaderSize(f, 1<<16))
	if err != nil {
		return nil, fmt.Errorf("1: %w", err)
	}
	in := bufio.NewReaderSize(&bounded{plain, maxTraceBytes, errLargeTrace}, 1<<16)
	// A line of JSON begins with a brace; anything else is a table or is nothing.
	head, err := in.Peek(512)
	if err != nil && len(head) == 0 && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("1: %w", err)
	}
	head = bytes.TrimLeft(head, "\ufeff \t\r\n")
	if len(head) > 0 && head[0] != '{' {
		return parseTable(in, last)
	}
	return parseLines(in, last)
}

// unpack tells by the first bytes how a file is packed.
func unpack(in *bufio.Reader) (io.Reader, error) {
	head, _ := in.Peek(4) // fewer: it is plain, or its reader says what is wrong
	switch {
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}):
		return gzip.NewReader(in)
	case bytes.Equal(head, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		return zstd.NewReader(in, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow))
	}
	return in, nil
}

// bounded reads so many bytes, and fails where there are more.
type bounded struct {
	in   io.Reader
	left int64
	more error
}

// Read implements [io.Reader].
func (b *bounded) Read(p []byte) (int, error) {
	if b.left <= 0 {
		n, err := io.ReadFull(b.in, make([]byte, 1))
		if n > 0 {
			err = b.more
		}
		return 0, err
	}
	n, err := b.in.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	return n, err
}

// parseLines reads JSON lines.
func parseLines(in io.Reader, last int) ([]Row, error) {
	lines := bufio.NewScanner(in)
	lines.Buffer(make([]byte, 0, 1<<16), maxLine)
	var rows []Row
	n, ids := 0, 0
	for len(rows) <= last && lines.Scan() {
		n++
		line := bytes.TrimSpace(bytes.TrimPrefix(lines.Bytes(), []byte("\ufeff")))
		if len(line) == 0 {
			continue
		}
		row, err := parseLine(line)
		if err != nil {
			return nil, fmt.Errorf("%d: %w", n, err)
		}
		if ids += len(row.IDs); ids > maxAllIDs {
			return nil, fmt.Errorf("%d: %w", n, errManyIDs)
		}
		row.N = len(rows)
		rows = append(rows, row)
		if len(rows) > maxRows {
			return nil, fmt.Errorf("%d: over %d requests", n, maxRows)
		}
	}
	if err := lines.Err(); err != nil {
		if errors.Is(err, bufio.ErrTooLong) {
			err = errLongRow
		}
		return nil, fmt.Errorf("%d: %w", n+1, err)
	}
	if len(rows) == 0 {
		return nil, errors.New("1: no request: neither {\"timestamp\", \"input_length\", \"output_length\", \"hash_ids\"} a line nor a table of TIMESTAMP,ContextTokens,GeneratedTokens")
	}
	return rows, nil
}

func parseLine(line []byte) (Row, error) {
	var l struct {
		At     json.Number `json:"timestamp"` // ms
		Input  *int64      `json:"input_length"`
		Output *int64      `json:"output_length"`
		IDs    []uint64    `json:"hash_ids"`
	}
	if err := json.Unmarshal(line, &l); err != nil {
		return Row{}, fmt.Errorf("not a request ({\"timestamp\", \"input_length\", \"output_length\", \"hash_ids\"}): %w", err)
	}
	at, ok := instant(string(l.At))
	switch {
	case !ok:
		return Row{}, fmt.Errorf("timestamp %q: must be there, in ms, and not negative", l.At)
	case l.Input == nil || *l.Input < 0 || *l.Input > maxTokens:
		return Row{}, fmt.Errorf("input_length%s: must be 0 to %d", shown(l.Input), maxTokens)
	case l.Output == nil || *l.Output < 0 || *l.Output > maxTokens:
		return Row{}, fmt.Errorf("output_length%s: must be 0 to %d", shown(l.Output), maxTokens)
	case len(l.IDs) > maxIDs:
		return Row{}, fmt.Errorf("%d hash_ids: must be at most %d", len(l.IDs), maxIDs)
	}
	return Row{At: at, Input: int(*l.Input), Output: int(*l.Output), IDs: l.IDs}, nil
}

func shown(n *int64) string {
	if n == nil {
		return ""
	}
	return " " + strconv.FormatInt(*n, 10)
}

// instant reads milliseconds; it saturates.
func instant(s string) (time.Duration, bool) {
	if ms, err := strconv.ParseUint(s, 10, 64); err == nil {
		return millis(ms), true
	}
	ms, err := strconv.ParseFloat(s, 64)
	if err != nil && !math.IsInf(ms, 1) || !(ms >= 0) { // NaN is neither
		return 0, false
	}
	return saturate(ms * float64(time.Millisecond)), true
}

// saturate turns nanoseconds, not negative, into a duration.
func saturate(ns float64) time.Duration {
	if ns >= math.MaxInt64 {
		return math.MaxInt64
	}
	return time.Duration(ns)
}
