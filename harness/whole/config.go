// SPDX-License-Identifier: Apache-2.0

package whole

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"kindex/harness/openloop"
)

// maxEngines bounds the mock engines: each has a cache of its own in memory.
const maxEngines = 64

// Config is what a run can be told.
type Config struct {
	Gateway string        // host:port of the gateway; a taken port is replaced by a free one
	Listen  string        // the same of the index host
	Policy  string        // of the gateway
	For     time.Duration // 0: until ctx ends
	Every   time.Duration // between tables where there is no terminal
	Engines int           // mock ones
	Speed   float64       // of them: how many times as fast as a real one
	Rows    openloop.Range
	Speedup float64  // of the trace
	Workers []string // a real fleet, as the gateway takes them: then nothing is played
	Bin     string   // folder of the programs
}

// DefaultConfig returns the defaults: programs are looked for beside the running one.
func DefaultConfig() Config {
	c := Config{
		Gateway: "127.0.0.1:8080", Listen: "127.0.0.1:8090", Policy: "cache_aware", Every: 3 * time.Second, Engines: 4, Speed: 2,
		Rows: openloop.Range{Last: 1999}, Speedup: 3, Bin: "bin",
	}
	if exe, err := os.Executable(); err == nil {
		c.Bin = filepath.Dir(exe)
	}
	return c
}

// IsWorker reports whether s names a worker as a gateway takes it, by URL.
func IsWorker(s string) bool {
	scheme, _, found := strings.Cut(s, "://")
	return found && (scheme == "http" || scheme == "https" || scheme == "grpc")
}

// Validate returns the first fault, naming the flag.
func (c *Config) Validate() error {
	for _, a := range []struct{ flag, addr string }{{"--gateway", c.Gateway}, {"--listen", c.Listen}} {
		if _, _, err := net.SplitHostPort(a.addr); err != nil {
			return fmt.Errorf("%s %q: must be host:port", a.flag, a.addr)
		}
	}
	switch {
	case c.For < 0:
		return fmt.Errorf("--for %v: must not be negative", c.For)
	case c.Every < 100*time.Millisecond:
		return fmt.Errorf("--every %v: must be at least 100ms", c.Every)
	case c.Engines < 1 || c.Engines > maxEngines:
		return fmt.Errorf("--engines %d: must be 1 to %d", c.Engines, maxEngines)
	case !(c.Speed > 0 && c.Speed <= 1000):
		return fmt.Errorf("--speed %v: must be above 0 and at most 1000", c.Speed)
	case !(c.Speedup > 0 && c.Speedup <= 1000):
		return fmt.Errorf("--speedup %v: must be above 0 and at most 1000", c.Speedup)
	}
	for _, w := range c.Workers {
		if !IsWorker(w) {
			return fmt.Errorf("--worker %q: must be all engines' URLs, for a gateway, or all ID=ENDPOINT, for an index host", w)
		}
	}
	programs := []string{"gateway"}
	if len(c.Workers) == 0 {
		programs = append(programs, "mockworker", "relay", "indexsrv")
	}
	for _, name := range programs {
		if _, err := os.Stat(c.program(name)); err != nil {
			return fmt.Errorf("%s is not there: make build makes it", c.program(name))
		}
	}
	return nil
}

func (c *Config) program(name string) string { return filepath.Join(c.Bin, name) }
