// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"net"
	"strings"
	"testing"
	"time"
)

// TestReadyWaits: a gateway whose index has yet to hear of a worker is not ready until the
// wait is over, and then stays so.
func TestReadyWaits(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts, and says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	worker := mocks(t, 1, "", 0)[0] + ",events=tcp://" + silent.Addr().String()
	s := startGateway(t, func(c *Config) { c.ReadyWait = 0 }, worker)
	s.covered.Store(false)
	s.cfg.ReadyWait = time.Hour
	if why := s.unready(); len(why) == 0 || !strings.Contains(strings.Join(why, " "), "instance") {
		t.Errorf("not ready because of %q, want the worker's stream", why)
	}
	s.cfg.ReadyWait = 0
	if why := s.unready(); why != nil {
		t.Errorf("after the wait: %q", why)
	}
	s.cfg.ReadyWait = time.Hour
	if why := s.unready(); why != nil {
		t.Errorf("ready once, and then %q", why)
	}
}
