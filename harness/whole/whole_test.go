// SPDX-License-Identifier: Apache-2.0

package whole

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

	"kindex/harness/mockworker/engine"
	"kindex/harness/openloop"
)

// programs builds what a run starts, once.
var programs = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "kindex-whole")
	if err != nil {
		return "", err
	}
	out, err := exec.Command("go", "build", "-tags", "grpcnotrace", "-o", dir+"/", "kindex/cmd/gateway", "kindex/cmd/indexsrv", "kindex/cmd/kindex", "kindex/cmd/mockworker", "kindex/cmd/relay").CombinedOutput()
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
	c.Gateway, c.Listen = "127.0.0.1:0", "127.0.0.1:0"
	c.Every = 300 * time.Millisecond
	c.Engines, c.Speed, c.Rows, c.Speedup = 2, 50, openloop.Range{Last: 39}, 20
	return c
}

// running is a run whose output is read.
type running struct {
	t    *testing.T
	out  *io.PipeReader
	seen strings.Builder
	done chan error
	end  context.CancelFunc
}

func start(t *testing.T, c Config) *running {
	t.Helper()
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	in, out := io.Pipe()
	r := &running{t: t, out: in, done: make(chan error, 1), end: cancel}
	go func() {
		r.done <- Run(ctx, c, out)
		_ = out.Close()
	}()
	return r
}

// until reads on until the output has what is wanted, and returns its groups.
func (r *running) until(want string) []string {
	r.t.Helper()
	re := regexp.MustCompile(want)
	buf := make([]byte, 1<<16)
	for {
		if m := re.FindStringSubmatch(r.seen.String()); m != nil {
			return m
		}
		n, err := r.out.Read(buf)
		r.seen.Write(buf[:n])
		if err != nil {
			r.t.Fatalf("it ended (%v) without %s:\n%s", <-r.done, want, r.seen.String())
		}
	}
}

// stop does what Ctrl-C does and reads the rest.
func (r *running) stop() {
	r.t.Helper()
	go func() { _, _ = io.Copy(io.Discard, r.out) }()
	r.end()
	if err := <-r.done; err != nil {
		r.t.Errorf("stopped with %v, want a clean end", err)
	}
}

// TestWhole runs all of it through more than one round of a short trace: engines,
// relay, index host and gateway find one another, requests hit what the oracle says, and
// what is printed to try works. Nothing is left behind.
func TestWhole(t *testing.T) {
	c := config(t)
	t.Setenv("TMPDIR", t.TempDir())
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	c.Listen = taken.Addr().String()
	r := start(t, c)
	r.until(regexp.QuoteMeta(c.Listen) + " is taken")
	curl := r.until(`(?m)^  (curl -s -i \S+/v1/chat/completions .*)$`)[1]
	top := r.until(`(?m)^  (\S+/kindex top --host \S+)$`)[1]
	page := r.until(`(?m) (http://\S+/ui)$`)[1]
	for _, want := range []string{
		`(?m)^w0 +ready +[1-9]\d* .* [1-9]\d* +http://127`, `(?m)^w1 +ready +[1-9]\d* .* [1-9]\d* +http://127`,
		`(?m)^requests, round 1, .* 0 errors; TTFT p50 \d+ ms, p99 \d+ ms; hit [\d.]+% of [1-9]\d* tokens, oracle [\d.]+%, hit/oracle [01]\.\d+$`,
		`(?m)^gateway: [1-9]\d* answers, [1-9]\d* exactly as expected; .* delivered [1-9]\d*; lookups answered [1-9]`,
		`(?m)^requests, round 2, .* [1-9]\d* of 40 answered, \d+ in flight, 0 errors; `,
	} {
		r.until(want)
	}
	if _, err := exec.LookPath("curl"); err == nil {
		for _, try := range []struct{ command, want string }{
			{curl, "X-Kindex-Explain: {\"policy\":\"cache_aware\""}, {curl, "\"prompt_tokens\""}, {"curl -s " + page, "<html"}, {top + " --once", "w1"},
		} {
			// What is not read meanwhile waits: the table is small.
			out, err := exec.Command("sh", "-c", try.command).CombinedOutput()
			if err != nil || !bytes.Contains(out, []byte(try.want)) {
				t.Errorf("%s\nsays %.2000s (%v), want %s in it", try.command, out, err, try.want)
			}
		}
	}
	r.stop()
	if left, err := filepath.Glob(filepath.Join(os.TempDir(), "*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v (%v)", left, err)
	}
	if conn, err := net.Dial("tcp", strings.TrimSuffix(strings.TrimPrefix(page, "http://"), "/ui")); err == nil {
		_ = conn.Close()
		t.Error("the index host still listens")
	}
}

// TestFor ends by itself, in the middle of requests, and that is no failure.
func TestFor(t *testing.T) {
	c := config(t)
	c.Speed, c.For = 1, 3*time.Second
	var out bytes.Buffer
	if err := Run(t.Context(), c, &out); err != nil {
		t.Errorf("%v\n%s", err, out.String())
	}
	if !strings.Contains(out.String(), " 0 errors") {
		t.Errorf("no round is shown without errors:\n%s", out.String())
	}
}

// TestFleet runs before engines that are there already: a gateway alone.
func TestFleet(t *testing.T) {
	f, err := engine.OpenFleet(engine.Config{Engine: engine.VLLM, Pub: "tcp://127.0.0.1:0", Replay: "tcp://127.0.0.1:0", HTTP: "127.0.0.1:0"}, 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	c := config(t)
	c.Workers = []string{f.Workers()[0].HTTP() + ",name=mine"}
	if !strings.Contains(c.Workers[0], "://") {
		c.Workers[0] = "http://" + c.Workers[0]
	}
	r := start(t, c)
	curl := r.until(`(?m)^  (curl -s -i \S+/v1/chat/completions .*)$`)[1]
	if strings.Contains(curl, "MODEL") {
		t.Errorf("%s: want the engine's model in it", curl)
	}
	if _, err := exec.LookPath("curl"); err == nil {
		if out, err := exec.Command("sh", "-c", curl).CombinedOutput(); err != nil || !bytes.Contains(out, []byte("200 OK")) {
			t.Errorf("%s\nsays %s (%v)", curl, out, err)
		}
		r.until(`(?m)^mine +ready +1 +0 `)
		r.until(`(?m)^gateway: 1 answers, 1 exactly as expected`)
	}
	r.stop()
	if strings.Contains(r.seen.String(), "index host") || strings.Contains(r.seen.String(), "requests,") {
		t.Errorf("more than a gateway was started:\n%s", r.seen.String())
	}
}

func TestConfig(t *testing.T) {
	tests := []struct {
		change func(*Config)
		want   string
	}{
		{func(c *Config) { c.Gateway = "x" }, "--gateway"},
		{func(c *Config) { c.Listen = "x" }, "--listen"},
		{func(c *Config) { c.For = -1 }, "--for"},
		{func(c *Config) { c.Every = 1 }, "--every"},
		{func(c *Config) { c.Engines = 0 }, "--engines 0: must be 1 to 64"},
		{func(c *Config) { c.Speed = 0 }, "--speed"},
		{func(c *Config) { c.Speedup = 0 }, "--speedup"},
		{func(c *Config) { c.Workers = []string{"http://h:1", "1=tcp://h:2"} }, "1=tcp://h:2"},
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
	c.Policy = "coin"
	if err := Run(t.Context(), c, io.Discard); err == nil || !strings.Contains(err.Error(), "coin") || strings.Contains(err.Error(), "\n") {
		t.Errorf("got %v, want one line about the policy", err)
	}
}
