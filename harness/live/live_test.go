// SPDX-License-Identifier: Apache-2.0

package live

import (
	"bytes"
	"context"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"kindex/harness/mockworker"
)

// programs builds what a run starts, once.
var programs = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "kindex-live")
	if err != nil {
		return "", err
	}
	out, err := exec.Command("go", "build", "-o", dir+"/", "kindex/cmd/indexsrv", "kindex/cmd/mockworker").CombinedOutput()
	if err != nil {
		return dir, &exec.Error{Name: string(out), Err: err}
	}
	return dir, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if dir, err := programs(); err == nil {
		_ = os.RemoveAll(dir)
	}
	os.Exit(code)
}

func config(t *testing.T) Config {
	t.Helper()
	bin, err := programs()
	if err != nil {
		t.Fatal(err)
	}
	c := DefaultConfig()
	c.Bin = bin
	c.Listen = "127.0.0.1:0"
	c.Every = 500 * time.Millisecond
	c.VLLM = filepath.Join("../testdata/fixtures/given", defaultVLLM)
	c.SGLang = filepath.Join("../testdata/fixtures/given", defaultSGLang)
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	return c
}

// run runs c until ctx ends and returns what it printed.
func runFor(t *testing.T, c Config) string {
	t.Helper()
	var out bytes.Buffer
	if err := Run(t.Context(), c, &out); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	return out.String()
}

// TestMockEngines runs the two recorded engines through more than one life.
func TestMockEngines(t *testing.T) {
	t.Parallel()
	c := config(t)
	c.For, c.Speed = 6*time.Second, 2
	out := runFor(t, c)
	last := out[strings.LastIndex(out, "vllm-1/0"):]
	for _, want := range []string{
		`vllm-1/0 active life \d+ batch \d+ .* blocks \d+ .*; lookups [1-9]\d*: exact [1-9]\d*, explained \d+.*, wrong 0; predicted [1-9]`,
		`sglang-1/0 active life [2-9] batch \d+ .* restarts [1-9].*; lookups [1-9]\d*: exact [1-9]\d*, explained \d+.*, wrong 0; predicted [1-9]`,
	} {
		if !regexp.MustCompile(want).MatchString(last) {
			t.Errorf("no line like %s at the end of:\n%s", want, out)
		}
	}
	if !regexp.MustCompile(`curl -s http://127\.0\.0\.1:\d+/query -d '\{"token_ids":\[\d+,`).MatchString(out) {
		t.Errorf("no curl to try in:\n%s", out)
	}
}

// TestSampleWorks asks by a shell what the run tells to try.
func TestSampleWorks(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("no curl here")
	}
	c := config(t)
	c.Speed = 2
	ctx, cancel := context.WithCancel(t.Context())
	r, w := io.Pipe()
	done := make(chan error, 1)
	go func() {
		done <- Run(ctx, c, w)
		_ = w.Close()
	}()
	var seen strings.Builder
	sample := regexp.MustCompile(`(?m)^  (curl -s \S+/query .*)$`)
	buf := make([]byte, 1<<16)
	for !sample.MatchString(seen.String()) {
		n, err := r.Read(buf)
		if err != nil {
			t.Fatalf("%v after:\n%s", err, seen.String())
		}
		seen.Write(buf[:n])
	}
	go func() { _, _ = io.Copy(io.Discard, r) }()
	for _, m := range append(sample.FindAllStringSubmatch(seen.String(), 1), regexp.MustCompile(`(?m)^  (curl -s \S+/workers)$`).FindAllStringSubmatch(seen.String(), 1)...) {
		out, err := exec.Command("sh", "-c", m[1]).CombinedOutput()
		if err != nil || !strings.Contains(string(out), "vllm-1") && !strings.Contains(string(out), "sglang-1") {
			t.Errorf("%s\nsays %s (%v), want an engine in it", m[1], out, err)
		}
	}
	cancel() // what Ctrl-C does
	if err := <-done; err != nil {
		t.Errorf("stopped with %v, want a clean end", err)
	}
}

// TestFleet runs in front of an engine that is there already, at a port that is
// taken.
func TestFleet(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	c := config(t)
	c.Listen = taken.Addr().String()
	c.For = 4 * time.Second
	c.Workers = []string{"7=tcp://127.0.0.1:42157,replay=tcp://127.0.0.1:42158,model=m,block=32"}
	ctx, cancel := context.WithCancel(t.Context())
	code := make(chan int, 1)
	var errs bytes.Buffer
	go func() {
		code <- mockworker.Main(ctx, []string{
			"--recording", c.VLLM, "--pub", "tcp://127.0.0.1:42157", "--replay", "tcp://127.0.0.1:42158", "--speed", "4",
		}, strings.NewReader(""), io.Discard, &errs)
	}()
	out := runFor(t, c)
	cancel()
	if got := <-code; got != 0 {
		t.Errorf("mock worker: exit %d: %s", got, errs.String())
	}
	if !strings.Contains(out, taken.Addr().String()+" is taken") {
		t.Errorf("a taken port is not told:\n%s", out)
	}
	if !regexp.MustCompile(`7/0 active life 1 batch [1-9]\d* .* blocks [1-9]`).MatchString(out) {
		t.Errorf("no exact stream with blocks:\n%s", out)
	}
}

// TestFleetRefused gives the host a worker that cannot be.
func TestFleetRefused(t *testing.T) {
	c := config(t)
	c.Workers = []string{"7=tcp://127.0.0.1:1,model=m"}
	err := Run(t.Context(), c, io.Discard)
	if err == nil || !strings.Contains(err.Error(), "block_size") || strings.Contains(err.Error(), "\n") {
		t.Errorf("got %v, want one line that names block_size", err)
	}
}

func TestConfig(t *testing.T) {
	tests := []struct {
		change func(*Config)
		want   string
	}{
		{func(c *Config) { c.Listen = "x" }, "--listen"},
		{func(c *Config) { c.Index = "tree" }, "--kv-index"},
		{func(c *Config) { c.For = -1 }, "--for"},
		{func(c *Config) { c.Every = 1 }, "--every"},
		{func(c *Config) { c.Speed = 0 }, "--speed"},
		{func(c *Config) { c.VLLM = "" }, "--vllm"},
		{func(c *Config) { c.Bin = "nowhere" }, "make build"},
	}
	for _, test := range tests {
		c := config(t)
		test.change(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("got %v, want an error about %s", err, test.want)
		}
	}
	c := config(t)
	c.VLLM = "no/such/recording"
	if err := Run(t.Context(), c, io.Discard); err == nil || !strings.Contains(err.Error(), "no/such/recording") {
		t.Errorf("got %v, want an error about the recording", err)
	}
}
