// SPDX-License-Identifier: Apache-2.0

// Before: main.go, which was given a file. After: timing.go.

package engine

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"time"
)

// The limits of a calibration.
const (
	maxCalibration = 1 << 20 // bytes
	maxPoints      = 10_000
	maxMs          = 3_600_000 // of one pass
)

// calibration is the file as it is written. Every field is optional but the two
// parts of a pass, which are each told in one of their forms.
type calibration struct {
	PrefillFit    *triple     `json:"prefill_fit_ms"`
	Prefill       *triple     `json:"prefill_ms"`
	PrefillTable  [][]float64 `json:"prefill_table_ms"`
	PrefillPoints points      `json:"prefill_points_ms"`
	PrefillPass   *PassFit    `json:"prefill_pass_ms"`

	DecodeFit *triple `json:"decode_fit_vs_utilisation_ms"`
	Decode    *triple `json:"decode_ms"`

	CapacityTokens *int     `json:"kv_capacity_tokens"`
	CapacityBlocks *int     `json:"kv_capacity_blocks"`
	BlockSize      *int     `json:"block_size"`
	Overhead       *float64 `json:"request_overhead_ms"`
}

// points are measured prefills by their tokens: {"1024": {"median_ms": 33}} or
// {"1024": 33}.
type points map[string]point

type point float64

func (p *point) UnmarshalJSON(b []byte) error {
	if bytes.HasPrefix(b, []byte("{")) {
		var v struct {
			Median *float64 `json:"median_ms"`
		}
		if err := json.Unmarshal(b, &v); err != nil {
			return err
		}
		if v.Median == nil {
			return errors.New("a point without median_ms")
		}
		*p = point(*v.Median)
		return nil
	}
	return json.Unmarshal(b, (*float64)(p))
}

// triple is three coefficients: [1,2,3], or an object with one of the sets of names.
type triple [3]float64

var tripleNames = [][3]string{
	{"a", "b", "c"},
	{"d", "e", "f"},
	{"a_ms", "b_ms_per_token", "c_ms_per_token2"},
	{"d_ms", "e_ms_per_u", "f_ms_per_u2"},
}

func (t *triple) UnmarshalJSON(b []byte) error {
	if bytes.HasPrefix(b, []byte("[")) {
		var v []float64
		if err := json.Unmarshal(b, &v); err != nil {
			return err
		}
		if len(v) != 3 {
			return fmt.Errorf("%d coefficients: must be 3", len(v))
		}
		copy(t[:], v)
		return nil
	}
	var v map[string]float64
	if err := json.Unmarshal(b, &v); err != nil {
		return err
	}
	for _, names := range tripleNames {
		var got [3]float64
		all := len(v) == 3
		for i, name := range names {
			x, ok := v[name]
			got[i], all = x, all && ok
		}
		if all {
			*t = got
			return nil
		}
	}
	return fmt.Errorf("coefficients must be [x,y,z] or an object of three, named as one of %v", tripleNames)
}

// ReadTiming reads a calibration file: how long the passes of a measured engine
// take, and what cache it had.
//
// Errors: the file, a field that is not known, a form that is none, a number that
// cannot be, in one line.
func ReadTiming(path string) (*Timing, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	b, err := io.ReadAll(io.LimitReader(f, maxCalibration+1))
	if err == nil && len(b) > maxCalibration {
		err = fmt.Errorf("must be at most %d bytes", maxCalibration)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	t, err := ParseTiming(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return t, nil
}

// ParseTiming is [ReadTiming] of a file's content.
func ParseTiming(b []byte) (*Timing, error) {
	var c calibration
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&c); err != nil {
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("something follows the object")
	}
	t := &Timing{Pass: c.PrefillPass}
	for _, step := range []func(*Timing) error{c.prefill, c.decode, c.cache} {
		if err := step(t); err != nil {
			return nil, err
		}
	}
	return t, t.validate()
}

// prefill fills in how long prompts take.
func (c *calibration) prefill(t *Timing) error {
	if forms := count(c.PrefillFit != nil, c.Prefill != nil, c.PrefillTable != nil, c.PrefillPoints != nil); forms != 1 {
		return fmt.Errorf("prefill is told in %d forms: must be one of prefill_fit_ms, prefill_ms, prefill_table_ms, prefill_points_ms", forms)
	}
	switch {
	case c.PrefillFit != nil:
		t.Prefill = *c.PrefillFit
	case c.Prefill != nil:
		t.Prefill = *c.Prefill
	case c.PrefillTable != nil:
		for i, row := range c.PrefillTable {
			if len(row) != 2 {
				return fmt.Errorf("prefill_table_ms: row %d has %d numbers: must be [tokens, ms]", i, len(row))
			}
			t.Table = append(t.Table, Point{row[0], row[1]})
		}
	default:
		for tokens, ms := range c.PrefillPoints {
			n, err := strconv.ParseFloat(tokens, 64)
			if err != nil {
				return fmt.Errorf("prefill_points_ms: %q: must be a number of tokens", tokens)
			}
			t.Table = append(t.Table, Point{n, float64(ms)})
		}
	}
	if c.PrefillFit == nil && c.Prefill == nil && (len(t.Table) < 2 || len(t.Table) > maxPoints) {
		return fmt.Errorf("%d measured prefills: must be 2 to %d", len(t.Table), maxPoints)
	}
	slices.SortFunc(t.Table, func(a, b Point) int { return cmp.Compare(a.Tokens, b.Tokens) })
	return nil
}

// decode fills in how long answers take.
func (c *calibration) decode(t *Timing) error {
	switch {
	case (c.DecodeFit == nil) == (c.Decode == nil):
		return fmt.Errorf("decode is told in %d forms: must be one of decode_fit_vs_utilisation_ms, decode_ms", count(c.DecodeFit != nil, c.Decode != nil))
	case c.DecodeFit != nil:
		t.Decode = *c.DecodeFit
	default:
		t.Decode = *c.Decode
	}
	return nil
}

// cache fills in what cache the engine had.
func (c *calibration) cache(t *Timing) error {
	for _, n := range []struct {
		name string
		is   *int
		most int
	}{
		{"kv_capacity_tokens", c.CapacityTokens, maxBlock * maxBlocks},
		{"kv_capacity_blocks", c.CapacityBlocks, maxBlocks},
		{"block_size", c.BlockSize, maxBlock},
	} {
		if n.is != nil && (*n.is < 1 || *n.is > n.most) {
			return fmt.Errorf("%s %d: must be 1 to %d", n.name, *n.is, n.most)
		}
	}
	if c.BlockSize != nil {
		t.BlockSize = *c.BlockSize
	}
	switch {
	case c.CapacityTokens != nil && c.CapacityBlocks != nil:
		return errors.New("kv_capacity_tokens and kv_capacity_blocks: must be one of them")
	case c.CapacityBlocks != nil && c.BlockSize == nil:
		return errors.New("kv_capacity_blocks: needs block_size")
	case c.CapacityBlocks != nil:
		t.Blocks, t.Reference = *c.CapacityBlocks, *c.CapacityBlocks*t.BlockSize
	case c.CapacityTokens != nil:
		t.Reference = *c.CapacityTokens
		if t.BlockSize > 0 {
			t.Blocks = t.Reference / t.BlockSize
		}
	}
	if c.Overhead != nil {
		if !finite(*c.Overhead) || *c.Overhead < 0 || *c.Overhead > maxMs {
			return fmt.Errorf("request_overhead_ms %v: must be 0 to %d", *c.Overhead, maxMs)
		}
		t.Overhead = time.Duration(*c.Overhead * float64(time.Millisecond))
	}
	return nil
}

// validate refuses numbers that no engine has.
func (t *Timing) validate() error {
	for _, x := range slices.Concat(t.Prefill[:], t.Decode[:]) {
		if !finite(x) || x > maxMs || x < -maxMs {
			return fmt.Errorf("coefficient %v: must be -%d to %d", x, maxMs, maxMs)
		}
	}
	if t.Pass != nil {
		if !finite(t.Pass.InterceptMs, t.Pass.MsPerToken) || t.Pass.InterceptMs < 0 || t.Pass.MsPerToken < 0 || max(t.Pass.InterceptMs, t.Pass.MsPerToken) > maxMs {
			return fmt.Errorf("prefill_pass_ms %+v: must be 0 to %d", *t.Pass, maxMs)
		}
	}
	for i, p := range t.Table {
		switch {
		case !finite(p.Tokens, p.Ms) || p.Tokens < 0 || p.Ms < 0 || p.Ms > maxMs:
			return fmt.Errorf("a prefill of %v tokens in %v ms: must be from 0, and at most %d ms", p.Tokens, p.Ms, maxMs)
		case i > 0 && p.Tokens == t.Table[i-1].Tokens:
			return fmt.Errorf("two prefills of %v tokens", p.Tokens)
		}
	}
	return nil
}

func count(of ...bool) int {
	n := 0
	for _, b := range of {
		if b {
			n++
		}
	}
	return n
}
