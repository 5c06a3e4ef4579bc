// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"fmt"
	"testing"
	"time"
)

const indexsrvPort = 18190

// buildIndexsrv builds the program as an operator gets it.
func buildIndexsrv(t *testing.T) {
	t.Helper()
	build(t, "indexsrv")
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
	h.server = start(t, "indexsrv", nil, program("indexsrv"), "--listen", fmt.Sprintf("127.0.0.1:%d", indexsrvPort))
	h.awaitUp(t, h.server, 20*time.Second)
	return h
}
