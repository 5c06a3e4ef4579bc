// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"kindex/internal/kv"
)

// LayoutField is one field of a layout's events.
type LayoutField struct {
	Field  Field
	Always bool // written even when it says nothing, then as nil
}

// Layout is how one release of an engine writes its batches.
type Layout struct {
	Engine string
	Since  string // the first release that writes so
	Array  bool   // events as arrays by position, else as maps by name

	// Stored and Removed list the fields after the tag, in order. The array form
	// writes them all, so Always matters to it only under OmitTail.
	Stored  []LayoutField
	Removed []LayoutField

	OmitTail   bool // array form: trailing fields that say nothing are left out
	RankAlways bool // the batch's rank is written as nil when there is none
	Signed     bool // hashes are int64; digests are never written
	BareItems  bool // a multimodal item is its bare identifier, without an offset
	Replay     ReplayFrames
}

func (l *Layout) fields(k kv.Kind) []LayoutField {
	switch k {
	case kv.KindStored:
		return l.Stored
	case kv.KindRemoved:
		return l.Removed
	case kv.KindCleared:
	}
	return nil
}

// LayoutFor returns the layout of an engine's release: "vllm" since 0.9,
// "sglang" since 0.4.8, "tokenspeed" since 0.1. A release between two known
// changes has the layout of the earlier, one after the last change the newest.
func LayoutFor(engine, version string) (*Layout, error) {
	v, err := parseVersion(version)
	if err != nil {
		return nil, err
	}
	var names []string
	var first string
	for i := len(layouts) - 1; i >= 0; i-- {
		l := &layouts[i]
		if l.Engine != engine {
			if len(names) == 0 || names[len(names)-1] != l.Engine {
				names = append(names, l.Engine)
			}
			continue
		}
		since, _ := parseVersion(l.Since)
		if !v.before(since) {
			return l.clone(), nil
		}
		first = l.Since
	}
	if first != "" {
		return nil, fmt.Errorf("%s %s: the oldest known release is %s", engine, version, first)
	}
	return nil, fmt.Errorf("engine %q: must be one of %s", engine, strings.Join(names, ", "))
}

// Layouts returns every known layout, by engine, oldest first.
func Layouts() []Layout {
	out := make([]Layout, 0, len(layouts))
	for i := range layouts {
		out = append(out, *layouts[i].clone())
	}
	return out
}

func (l *Layout) clone() *Layout {
	c := *l
	c.Stored, c.Removed = slices.Clone(l.Stored), slices.Clone(l.Removed)
	return &c
}

type version [3]int

func (v version) before(o version) bool {
	for i := range v {
		if v[i] != o[i] {
			return v[i] < o[i]
		}
	}
	return false
}

// parseVersion reads "0.32", "0.32.0", "v0.10.2rc1": up to three numbers, of
// which a tail that is none is cut off.
func parseVersion(s string) (v version, err error) {
	parts := strings.SplitN(strings.TrimPrefix(s, "v"), ".", len(v)+1)
	for i := range min(len(parts), len(v)) {
		p := parts[i]
		end := 0
		for end < len(p) && p[end] >= '0' && p[end] <= '9' {
			end++
		}
		if v[i], err = strconv.Atoi(p[:end]); err != nil {
			return v, fmt.Errorf("version %q: must be like 0.32.0", s)
		}
		if end < len(p) {
			break
		}
	}
	return v, nil
}

// all marks fields that every event of the layout carries.
func all(fields ...Field) []LayoutField {
	out := make([]LayoutField, 0, len(fields))
	for _, f := range fields {
		out = append(out, LayoutField{f, true})
	}
	return out
}

// with appends fields that are left out where they say nothing.
func with(fields []LayoutField, more ...Field) []LayoutField {
	out := append([]LayoutField(nil), fields...)
	for _, f := range more {
		out = append(out, LayoutField{f, false})
	}
	return out
}

// The releases' own declarations, each built from the one before.
// Source: vllm/distributed/kv_events.py and sglang/srt/disaggregation/kv_events.py
// of each release; between the named ones nothing changes that is known.
var (
	vllm09  = all(FieldHashes, FieldParent, FieldTokens, FieldBlockSize, FieldLoRAID)
	vllm010 = append(vllm09[:5:5], all(FieldMedium)...)
	vllm014 = append(vllm010[:6:6], all(FieldLoRAName)...)
	vllm017 = with(vllm014, FieldExtraKeys)
	vllm020 = with(vllm017, FieldGroup)
	vllm022 = with(vllm020, FieldSpec, FieldWindow)
	vllm026 = with(vllm022, FieldLocality)
	vllm029 = with(vllm026, FieldOwnership)
	vllm030 = with(vllm029, FieldSession)
	vllm033 = with(vllm030, FieldLookahead)

	vllmGone09  = all(FieldHashes)
	vllmGone010 = all(FieldHashes, FieldMedium)
	vllmGone020 = with(vllmGone010, FieldGroup)
	vllmGone026 = with(vllmGone020, FieldLocality)
	vllmGone029 = with(vllmGone026, FieldOwnership)

	sglang048  = vllm09
	sglang059  = with(sglang048, FieldMedium)
	sglang0520 = with(sglang059, FieldSalt, FieldSession)
	sglang0522 = with(sglang0520, FieldLoRAName)

	sglangGone059 = with(vllmGone09, FieldMedium)

	tokenspeed = vllm09[:4:4]
)

var layouts = []Layout{
	{Engine: "vllm", Since: "0.9.0", Array: true, Stored: vllm09, Removed: vllmGone09, Signed: true},
	{Engine: "vllm", Since: "0.10.2", Array: true, Stored: vllm010, Removed: vllmGone010},
	{Engine: "vllm", Since: "0.14.0", Array: true, Stored: vllm014, Removed: vllmGone010},
	{Engine: "vllm", Since: "0.17.0", Array: true, Stored: vllm017, Removed: vllmGone010, BareItems: true},
	{Engine: "vllm", Since: "0.20.0", Array: true, Stored: vllm020, Removed: vllmGone020},
	{Engine: "vllm", Since: "0.22.0", Array: true, Stored: vllm022, Removed: vllmGone020},
	{Engine: "vllm", Since: "0.24.0", Stored: vllm022, Removed: vllmGone020},
	{Engine: "vllm", Since: "0.26.0", Stored: vllm026, Removed: vllmGone026, Replay: ReplayTopic},
	{Engine: "vllm", Since: "0.29.0", Stored: vllm029, Removed: vllmGone029, Replay: ReplayTopic},
	{Engine: "vllm", Since: "0.30.0", Stored: vllm030, Removed: vllmGone029, Replay: ReplayTopic},
	{Engine: "vllm", Since: "0.33.0", Stored: vllm033, Removed: vllmGone029, Replay: ReplayTopic},

	{Engine: "sglang", Since: "0.4.8", Array: true, Stored: sglang048, Removed: vllmGone09, Signed: true, OmitTail: true},
	{Engine: "sglang", Since: "0.5.9", Array: true, Stored: sglang059, Removed: sglangGone059, Signed: true, OmitTail: true},
	{Engine: "sglang", Since: "0.5.17", Array: true, Stored: sglang059, Removed: sglangGone059, Signed: true, RankAlways: true},
	{Engine: "sglang", Since: "0.5.20", Stored: sglang0520, Removed: sglangGone059, Signed: true, RankAlways: true},
	{Engine: "sglang", Since: "0.5.22", Stored: sglang0522, Removed: sglangGone059, Signed: true, RankAlways: true, Replay: ReplayTopic},

	{Engine: "tokenspeed", Since: "0.1.0", Array: true, Stored: tokenspeed, Removed: vllmGone09, Signed: true, RankAlways: true},
}
