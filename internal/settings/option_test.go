// SPDX-License-Identifier: Apache-2.0

package settings

import "testing"

// TestSizes reads what it writes.
func TestSizes(t *testing.T) {
	for _, n := range []int64{0, 1, 1023, 1024, 1025, 1 << 20, 8 << 20, 3 << 29, 1 << 40, 1<<62 - 1} {
		if got, ok := ParseSize(FormatSize(n)); !ok || got != n {
			t.Errorf("%d is written %s and read %d, %v", n, FormatSize(n), got, ok)
		}
	}
	for _, s := range []string{"", "KiB", "-1", "1.5MiB", "8M", "9223372036854775808", "8388608TiB", "1 KiBMiB", "0x10"} {
		if got, ok := ParseSize(s); ok {
			t.Errorf("%q is read as %d", s, got)
		}
	}
}
