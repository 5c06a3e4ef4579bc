// SPDX-License-Identifier: Apache-2.0

// Hop before: a file of the recorder. Hop after: verify and the mock worker.

package record

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	"kindex/internal/kv"
)

const (
	// maxLine bounds one line: the longest real ones are below 200 kB.
	maxLine = 64 << 20
	// maxTotal bounds a file unpacked, so that a small gzip cannot fill memory.
	maxTotal = 4 << 30
	// maxFrames bounds the frames of one message.
	maxFrames = 64
	format    = "kvrec/1"
)

// Read reads the recording at path, whole. An unreadable or garbled one returns
// an [*Error] that names the line.
func Read(path string) (*File, error) {
	in, err := os.Open(path)
	if err != nil {
		if pe, ok := errors.AsType[*os.PathError](err); ok {
			err = pe.Err
		}
		return nil, &Error{Path: path, Err: err}
	}
	defer func() { _ = in.Close() }() // read only: nothing to lose
	return Parse(path, in)
}

// Parse reads a recording from r; path is its name in errors.
func Parse(path string, r io.Reader) (*File, error) {
	br := bufio.NewReaderSize(r, 1<<16)
	if magic, err := br.Peek(2); err == nil && magic[0] == 0x1f && magic[1] == 0x8b {
		zr, err := gzip.NewReader(br)
		if err != nil {
			return nil, &Error{Path: path, Err: fmt.Errorf("gzip: %w", err)}
		}
		br = bufio.NewReaderSize(zr, 1<<16)
	}
	f := &File{Path: path}
	limited := bufio.NewReaderSize(io.LimitReader(br, maxTotal), 1<<16)
	total := 0
	for n := 1; ; n++ {
		line, err := readLine(limited)
		total += len(line)
		if total >= maxTotal {
			return nil, &Error{path, n, fmt.Errorf("longer than %d bytes unpacked", int64(maxTotal))}
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, &Error{path, n, err}
		}
		end := err != nil
		if line = bytes.TrimSpace(line); len(line) > 0 {
			if err := f.add(n, line); err != nil {
				return nil, &Error{path, n, err}
			}
		}
		if end {
			break
		}
	}
	if f.Header.Format == "" {
		return nil, &Error{path, 1, errors.New("empty: the first line must be a kvrec/1 header")}
	}
	return f, nil
}

// readLine returns the next line, io.EOF with the last one.
func readLine(r *bufio.Reader) ([]byte, error) {
	var out []byte
	for {
		part, err := r.ReadSlice('\n')
		if len(out)+len(part) > maxLine {
			return nil, fmt.Errorf("line longer than %d bytes", maxLine)
		}
		out = append(out, part...)
		if !errors.Is(err, bufio.ErrBufferFull) {
			return out, err
		}
	}
}

// add parses one line.
func (f *File) add(n int, line []byte) error {
	var head struct {
		T *float64 `json:"t"`
		K Kind     `json:"k"`
	}
	if err := decode(line, &head); err != nil {
		return err
	}
	if f.Header.Format == "" {
		if head.K != KindHeader {
			return fmt.Errorf("the first line must be a %s header, not kind %q", format, head.K)
		}
		if err := decode(line, &f.Header); err != nil {
			return err
		}
		if f.Header.Format != format {
			return fmt.Errorf("format %q: must be %s", f.Header.Format, format)
		}
		return nil
	}
	switch {
	case head.T == nil:
		return errors.New("t: missing")
	case head.K == "":
		return errors.New("k: missing")
	}
	l := Line{N: n, T: *head.T, Kind: head.K}
	if err := l.parse(line); err != nil {
		if errors.Is(err, errUnknownKind) {
			f.Unknown++
			return nil
		}
		return fmt.Errorf("%s: %w", head.K, err)
	}
	f.Lines = append(f.Lines, l)
	return nil
}

var errUnknownKind = errors.New("unknown kind")

func (l *Line) parse(line []byte) error {
	switch l.Kind {
	case KindMsg:
		var w struct {
			Src string   `json:"src"`
			F   []string `json:"f"`
		}
		if err := decode(line, &w); err != nil {
			return err
		}
		frames, err := unbase64(w.F)
		if err != nil {
			return fmt.Errorf("f: %w", err)
		}
		if w.Src == "" {
			return errors.New("src: missing")
		}
		l.Msg = &Msg{w.Src, frames}
	case KindReq:
		l.Req = new(Req)
		if err := decode(line, l.Req); err != nil {
			return err
		}
		return needID(l.Req.ID)
	case KindResp:
		l.Resp = new(Resp)
		if err := decode(line, l.Resp); err != nil {
			return err
		}
		return needID(l.Resp.ID)
	case KindState:
		return l.parseState(line)
	case KindTruth:
		return l.parseTruth(line)
	case KindCtl:
		l.Ctl = new(Ctl)
		if err := decode(line, l.Ctl); err != nil {
			return err
		}
		if l.Ctl.Op == "" {
			return errors.New("op: missing")
		}
	case KindReplay:
		return l.parseReplay(line)
	case KindHeader:
		return errors.New("a second header")
	default:
		return errUnknownKind
	}
	return nil
}

func needID(id string) error {
	if id == "" {
		return errors.New("id: missing")
	}
	return nil
}

func (l *Line) parseReplay(line []byte) error {
	var w struct {
		Src   string     `json:"src"`
		TX    []string   `json:"tx"`
		RX    [][]string `json:"rx"`
		Ended bool       `json:"ended"`
	}
	if err := decode(line, &w); err != nil {
		return err
	}
	r := &Replay{Src: w.Src, Ended: w.Ended}
	var err error
	if r.TX, err = unbase64(w.TX); err != nil {
		return fmt.Errorf("tx: %w", err)
	}
	for i, m := range w.RX {
		frames, err := unbase64(m)
		if err != nil {
			return fmt.Errorf("rx[%d]: %w", i, err)
		}
		r.Messages = append(r.Messages, frames)
	}
	l.Replay = r
	return nil
}

func (l *Line) parseTruth(line []byte) error {
	var w struct {
		Src      string           `json:"src"`
		Seq      *uint64          `json:"seq"`
		Events   []map[string]any `json:"events"`
		Snapshot map[string]any   `json:"snapshot"`
	}
	if err := decode(line, &w); err != nil {
		return err
	}
	if w.Src == "" {
		return errors.New("src: missing")
	}
	if w.Events == nil && w.Snapshot == nil {
		return errors.New("events: missing")
	}
	l.Truth = &Truth{Src: w.Src, Events: w.Events, Snapshot: w.Snapshot}
	if w.Seq != nil {
		l.Truth.Seq, l.Truth.HasSeq = *w.Seq, true
	}
	return nil
}

func (l *Line) parseState(line []byte) error {
	var w struct {
		Rank    *int                `json:"rank"`
		Pending int                 `json:"pending_events"`
		Cached  [][]json.RawMessage `json:"cached"`
	}
	if err := decode(line, &w); err != nil {
		return err
	}
	st := &State{Rank: w.Rank, Pending: w.Pending, Cached: make([]Cached, 0, len(w.Cached))}
	for i, e := range w.Cached {
		c, err := parseCached(e)
		if err != nil {
			return fmt.Errorf("cached[%d]: %w", i, err)
		}
		st.Cached = append(st.Cached, c)
	}
	l.State = st
	return nil
}

// parseCached reads [hash, group, copies] or [hash, [tier, ...]].
func parseCached(e []json.RawMessage) (Cached, error) {
	var c Cached
	if len(e) != 2 && len(e) != 3 {
		return c, fmt.Errorf("%d elements: must be [hash, group, copies] or [hash, [tiers]]", len(e))
	}
	var err error
	if c.Hash, err = parseHash(e[0]); err != nil {
		return c, err
	}
	if len(e) == 2 {
		c.Copies = 1
		c.Tiers = []string{}
		return c, decode(e[1], &c.Tiers)
	}
	if err := decode(e[1], &c.Group); err != nil {
		return c, err
	}
	return c, decode(e[2], &c.Copies)
}

// parseHash reads an engine hash: a number, signed or unsigned, or hex digits.
func parseHash(raw json.RawMessage) (kv.EngineHash, error) {
	if len(raw) > 0 && raw[0] == '"' {
		var s string
		if err := decode(raw, &s); err != nil {
			return 0, err
		}
		return HexHash(s)
	}
	if u, err := strconv.ParseUint(string(raw), 10, 64); err == nil {
		return kv.EngineHash(u), nil
	}
	i, err := strconv.ParseInt(string(raw), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("hash %.40s: must be a 64-bit number or hex digits", raw)
	}
	return kv.EngineHash(i), nil //nolint:gosec // the same 64 bits
}

// HexHash folds a digest in hex digits to its last 8 bytes, big-endian: the
// engine's integer form.
func HexHash(s string) (kv.EngineHash, error) {
	b, err := hex.DecodeString(s)
	if err != nil || len(b) < 8 {
		return 0, fmt.Errorf("hash %.80q: must be at least 16 hex digits", s)
	}
	var h uint64
	for _, x := range b[len(b)-8:] {
		h = h<<8 | uint64(x)
	}
	return kv.EngineHash(h), nil
}

func unbase64(in []string) ([][]byte, error) {
	if len(in) > maxFrames {
		return nil, fmt.Errorf("%d frames: at most %d", len(in), maxFrames)
	}
	out := make([][]byte, len(in))
	for i, s := range in {
		b, err := base64.StdEncoding.DecodeString(s)
		if err != nil {
			return nil, fmt.Errorf("frame %d: %w", i, err)
		}
		out[i] = b
	}
	return out, nil
}

// decode parses JSON with exact numbers, in words that name no Go type.
func decode(b []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	err := d.Decode(v)
	if err == nil {
		if _, more := d.Token(); !errors.Is(more, io.EOF) {
			return errors.New("not JSON: text after the object")
		}
		return nil
	}
	if te, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return fmt.Errorf("%s: %s where %s is expected", te.Field, te.Value, te.Type)
	}
	return fmt.Errorf("not JSON: %w", err)
}
