// SPDX-License-Identifier: Apache-2.0

package logsink

import (
	"testing"
	"time"
)

// TestLimiter: bursts, the rate after, each address by itself, all together.
func TestLimiter(t *testing.T) {
	l := NewLimiter()
	now := time.Unix(1_800_000_000, 0)
	written := func(address string, tries int) (n int, told uint64) {
		for range tries {
			if skipped, ok := l.Allow(address, now); ok {
				n++
				told += skipped
			}
		}
		return n, told
	}
	if n, _ := written("a", 100); n != LineBurst {
		t.Errorf("a burst: %d lines, want %d", n, LineBurst)
	}
	now = now.Add(3 * time.Second)
	if n, told := written("a", 100); n != 3*linesASecond || told != 100-LineBurst {
		t.Errorf("3 s later: %d lines that tell of %d, want %d and %d", n, told, 3*linesASecond, 100-LineBurst)
	}
	now = now.Add(time.Hour)
	all := 0
	for i := range 1000 {
		n, _ := written(string(rune('0'+i)), 10)
		all += n
	}
	if all != allLinesBurst {
		t.Errorf("from 1,000 addresses: %d lines, want %d", all, allLinesBurst)
	}
	now = now.Add(-time.Hour) // a clock that is set back gives nothing
	if n, _ := written("b", 10); n != 0 {
		t.Errorf("a clock set back: %d lines", n)
	}
}
