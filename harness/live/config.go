// SPDX-License-Identifier: Apache-2.0

package live

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	"kindex/shard"
)

// Config is what a run can be told.
type Config struct {
	Listen  string        // host:port of the index host; a taken port is replaced by a free one
	Index   string        // kind; "" is the host's default
	For     time.Duration // 0: until ctx ends
	Every   time.Duration // between lines where there is no terminal
	Speed   float64       // of the recordings
	VLLM    string        // recording of the first engine
	SGLang  string        // and of the second
	Workers []string      // a real fleet, as indexsrv takes them: then no engine is played
	Bin     string        // folder of the programs
}

// Default recordings, below the module's root.
const (
	fixtures      = "harness/testdata/fixtures/given"
	defaultVLLM   = "vllm032_eviction.jsonl.gz"
	defaultSGLang = "sglang0523_unified_page16_evict_flush.jsonl.gz"
)

// DefaultConfig returns the defaults: recordings and programs are looked for
// beside the running program and below the working directory.
func DefaultConfig() Config {
	c := Config{Listen: "127.0.0.1:8090", Every: 3 * time.Second, Speed: 0.2, Bin: "bin"}
	root := "."
	if exe, err := os.Executable(); err == nil {
		c.Bin = filepath.Dir(exe)
		root = filepath.Dir(c.Bin)
	}
	if _, err := os.Stat(filepath.Join(root, fixtures)); err != nil {
		root = "."
	}
	c.VLLM, c.SGLang = filepath.Join(root, fixtures, defaultVLLM), filepath.Join(root, fixtures, defaultSGLang)
	return c
}

// Validate returns the first fault, naming the flag.
func (c *Config) Validate() error {
	if _, _, err := net.SplitHostPort(c.Listen); err != nil {
		return fmt.Errorf("--listen %q: must be host:port", c.Listen)
	}
	switch {
	case c.Index != "" && !slices.Contains(shard.Kinds, c.Index):
		return fmt.Errorf("--kv-index %q: must be one of %v", c.Index, shard.Kinds)
	case c.For < 0:
		return fmt.Errorf("--for %v: must not be negative", c.For)
	case c.Every < 100*time.Millisecond:
		return fmt.Errorf("--every %v: must be at least 100ms", c.Every)
	case !(c.Speed > 0 && c.Speed <= 1000):
		return fmt.Errorf("--speed %v: must be above 0 and at most 1000", c.Speed)
	case c.VLLM == "" || c.SGLang == "":
		return errors.New("--vllm and --sglang: each must name a recording")
	}
	programs := []string{"indexsrv"}
	if len(c.Workers) == 0 {
		programs = append(programs, "mockworker")
	}
	for _, name := range programs {
		if _, err := os.Stat(filepath.Join(c.Bin, name)); err != nil {
			return fmt.Errorf("%s is not there: make build makes it", filepath.Join(c.Bin, name))
		}
	}
	return nil
}

// FreePort returns an address that a flag gives, or the same host with a free port when
// that one is taken.
func FreePort(flag, listen string) (string, error) {
	l, err := net.Listen("tcp", listen)
	if err != nil {
		host, _, _ := net.SplitHostPort(listen)
		var other error
		if l, other = net.Listen("tcp", net.JoinHostPort(host, "0")); other != nil {
			return "", fmt.Errorf("%s %s: %w", flag, listen, err)
		}
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String(), nil
}
