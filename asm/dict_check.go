// SPDX-License-Identifier: Apache-2.0

package asm

import "fmt"

// Check holds every line against what the type promises. key says which key
// stands at a position. It returns the number of entries.
//
// Cost: everything. For tests.
func (t *DictTable) Check(key func(position uint32) uint64) (entries uint64, err error) {
	lines := uint64(len(t.Words) / DictLineWords)
	if t.Old > t.Lines || t.Lines > lines {
		return 0, fmt.Errorf("asm: %d old homes, %d homes, %d lines", t.Old, t.Lines, lines)
	}
	passed := make([]int64, lines+1)
	for n := range lines {
		l := t.line(n)
		for slot := range uint64(DictSlots) {
			tag := l.tag(slot)
			if tag == 0 {
				continue
			}
			entries++
			h := dictHash(key(l.position(slot)))
			home := t.home(h)
			if tag != t.tag(h) || home > n {
				return 0, fmt.Errorf("asm: position %d on line %d by tag %#x, want line %d or later by %#x", l.position(slot), n, tag, home, t.tag(h))
			}
			passed[home]++
			passed[n]--
		}
	}
	past := int64(0)
	for n := range lines {
		past += passed[n]
		if got := int64(t.line(n).overflow()); got != dictFull && got != past {
			return 0, fmt.Errorf("asm: %d keys went past line %d, which says %d", past, n, got)
		}
	}
	return entries, nil
}
