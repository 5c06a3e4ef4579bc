// SPDX-License-Identifier: Apache-2.0

package wire

// Before this file: a payload of SGLang's load socket. After it: whoever keeps
// the engines' load.

import "kindex/internal/kv"

const (
	loadTag   = "LoadStat"
	loadLeast = 5 // figures that the oldest shape carries
)

func loadFigures(l *kv.Load) [10]*int64 {
	return [...]*int64{
		&l.Running, &l.Waiting, &l.UsedTokens, &l.MaxTokens, &l.Rank,
		&l.WaitingUncachedTokens, &l.TotalTokens, &l.MaxRunning,
		&l.PrefillUncachedTokens, &l.PrefillBusyMicros,
	}
}

// DecodeLoad reads one reading of an engine's load: an array of a tag and
// figures by position, of which later releases have more. A nil figure is 0, and
// marked as unsaid.
//
// Errors: [ErrMalformed].
func DecodeLoad(payload []byte) (kv.Load, error) {
	var l kv.Load
	r := reader{buf: payload}
	n, ok := r.array()
	if !ok || n < 1+loadLeast {
		return kv.Load{}, r.or("a load reading must be an array of %d or more, not %d", 1+loadLeast, n)
	}
	if tag, ok := r.text(); !ok || string(tag) != loadTag {
		return kv.Load{}, r.or("a load reading's tag must be %q, not %.20q", loadTag, tag)
	}
	figures := loadFigures(&l)
	for i := range n - 1 {
		if i >= len(figures) {
			if !r.skip() {
				return kv.Load{}, r.err
			}
			continue
		}
		l.Fields++
		if r.null() {
			l.Nils |= 1 << i
			continue
		}
		if *figures[i], ok = r.int64(); !ok {
			return kv.Load{}, r.or("figure %d of a load reading must be an integer of 64 bits", i+1)
		}
	}
	if r.left() > 0 {
		return kv.Load{}, malformed("%d bytes after the load reading", r.left())
	}
	return l, nil
}

// AppendLoad appends the payload of l with its first l.Fields figures, at
// least the oldest shape's and at most all.
func AppendLoad(dst []byte, l *kv.Load) []byte {
	figures := loadFigures(l)
	n := min(max(l.Fields, loadLeast), len(figures))
	dst = appendArray(dst, 1+n)
	dst = appendText(dst, loadTag)
	for i, v := range figures[:n] {
		if l.Unsaid(i + 1) {
			dst = append(dst, nilByte)
			continue
		}
		dst = appendInt(dst, *v)
	}
	return dst
}
