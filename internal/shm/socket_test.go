// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

func TestCheckPath(t *testing.T) {
	for _, bad := range []string{"", "@s", "/a\x00b", "/" + strings.Repeat("x", maxPath)} {
		if CheckPath(bad) == nil {
			t.Errorf("%q is let pass", bad)
		}
	}
	if err := CheckPath("/" + strings.Repeat("x", maxPath-1)); err != nil {
		t.Error(err)
	}
}

// TestStaleSocket: of several servers that find a dead one's socket, one takes it, and
// it stays that one's.
func TestStaleSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	for round := range 100 {
		dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		dead.SetUnlinkOnClose(false)
		_ = dead.Close()
		var mu sync.Mutex
		var took []net.Listener
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				if ln, err := listen(path); err == nil {
					mu.Lock()
					defer mu.Unlock()
					took = append(took, ln)
				}
			})
		}
		all.Wait()
		if len(took) != 1 {
			t.Fatalf("round %d: %d servers have the socket", round, len(took))
		}
		if err := took[0].Close(); err != nil {
			t.Fatal(err)
		}
	}
}
