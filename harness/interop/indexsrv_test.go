// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

const (
	indexsrvPort = 18190
	// indexsrvEnv carries the program built outside into the namespace.
	indexsrvEnv = "KINDEX_INTEROP_INDEXSRV"
)

// buildIndexsrv builds the program as an operator gets it.
func buildIndexsrv(t *testing.T) {
	t.Helper()
	exe := filepath.Join(t.TempDir(), "indexsrv")
	if out, err := exec.Command("go", "build", "-o", exe, "kindex/cmd/indexsrv").CombinedOutput(); err != nil {
		t.Fatalf("building indexsrv: %v: %s", err, out)
	}
	t.Setenv(indexsrvEnv, exe)
}

// indexHost is our server and its client.
type indexHost struct {
	*client
	server *process
}

// startIndexsrv starts the program that buildIndexsrv built.
func startIndexsrv(t *testing.T) *indexHost {
	t.Helper()
	h := &indexHost{client: newClient(indexsrvPort)}
	h.server = start(t, "indexsrv", nil, os.Getenv(indexsrvEnv), "--listen", fmt.Sprintf("127.0.0.1:%d", indexsrvPort))
	h.awaitUp(t, h.server, 20*time.Second)
	return h
}
