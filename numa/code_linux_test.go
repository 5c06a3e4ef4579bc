// SPDX-License-Identifier: Apache-2.0

package numa

import (
	"slices"
	"strings"
	"testing"
)

// TestCleanFiles: what is given back of a process's mappings, and what is not.
func TestCleanFiles(t *testing.T) {
	const smaps = `00400000-00b00000 r-xp 00000000 fe:00 1 /bin/x y
Rss:   4 kB
Anonymous:             0 kB
VmFlags: rd ex mr mw me sd
00b00000-00c00000 r--p 00700000 fe:00 1 /bin/x y
Anonymous:             0 kB
00c00000-00d00000 rw-p 00800000 fe:00 1 /bin/x y
Anonymous:             0 kB
7f0000000000-7f0000001000 r--p 00000000 fe:00 2 /lib/relocated.so
Anonymous:             4 kB
7f0000001000-7f0000002000 r--s 00000000 fe:00 2 /lib/shared
Anonymous:             0 kB
7f0000002000-7f0000003000 r-xp 00000000 00:00 0 [vdso]
Anonymous:             0 kB
7f0000003000-7f0000004000 r--p 00000000 00:00 0
Anonymous:             0 kB
`
	want := []mapping{{0x400000, 0xb00000}, {0xb00000, 0xc00000}}
	if got := cleanFiles(strings.NewReader(smaps)); !slices.Equal(got, want) {
		t.Errorf("got %x, want %x", got, want)
	}
}

// TestForgetCode: the program goes on as before.
func TestForgetCode(t *testing.T) {
	table := strings.Fields("constants are read from the file again")
	for range 3 {
		if err := ForgetCode(); err != nil {
			t.Fatal(err)
		}
		if got := strings.ToUpper(table[1]); got != "ARE" {
			t.Errorf("got %q", got)
		}
	}
}
