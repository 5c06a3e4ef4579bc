// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"kindex/harness/mockworker/engine"
)

// programsEnv carries the folder of the programs built outside into the
// namespace.
const programsEnv = "KINDEX_INTEROP_PROGRAMS"

// build builds programs as an operator gets them.
func build(t *testing.T, names ...string) {
	t.Helper()
	dir := t.TempDir()
	for _, name := range names {
		if out, err := exec.Command("go", "build", "-o", filepath.Join(dir, name), "kindex/cmd/"+name).CombinedOutput(); err != nil {
			t.Fatalf("building %s: %v: %s", name, err, out)
		}
	}
	t.Setenv(programsEnv, dir)
}

// program returns the path of a program that build built.
func program(name string) string { return filepath.Join(os.Getenv(programsEnv), name) }

// mockEngine is a mock engine in a process of its own.
type mockEngine struct {
	engine.Ready
	*process
	admin, api *client
}

// startMock starts a mock engine on ports of the system's choice.
func startMock(t *testing.T, name, kind string, args ...string) *mockEngine {
	t.Helper()
	args = append([]string{
		program("mockworker"), "--engine", kind, "--pub", "tcp://127.0.0.1:0", "--replay", "tcp://127.0.0.1:0",
		"--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--pass", "0s",
	}, args...)
	m := &mockEngine{process: start(t, name, nil, args...)}
	eventually(t, 20*time.Second, name+" to be ready", func() (bool, string) {
		if m.exited() {
			t.Fatalf("%s ended: %s", name, m.tail())
		}
		data, err := os.ReadFile(m.log)
		if err != nil || !bytes.HasSuffix(data, []byte("\n")) {
			return false, string(data)
		}
		return json.Unmarshal(data, &m.Ready) == nil, string(data)
	})
	m.admin = &client{base: "http://" + m.Admin, http: http.Client{Timeout: 10 * time.Second}}
	m.api = &client{base: "http://" + m.HTTP, http: http.Client{Timeout: 10 * time.Second}}
	return m
}

// truth returns what each rank's cache holds.
func (m *mockEngine) truth(t *testing.T) []engine.Truth {
	t.Helper()
	var out engine.CacheContent
	m.admin.must(t, http.StatusOK, http.MethodGet, "/admin/cache/w0", nil, &out)
	return out.Ranks
}

// reuse returns what each rank would find of a prompt.
func (m *mockEngine) reuse(t *testing.T, prompt []uint32) engine.RankTokens {
	t.Helper()
	var out engine.TruthReuse
	m.admin.must(t, http.StatusOK, http.MethodPost, "/admin/truth", map[string]any{"prompt": prompt}, &out)
	return out.Workers["w0"]
}

// generate has one rank answer a prompt that no gateway sees.
func (m *mockEngine) generate(t *testing.T, prompt []uint32, most, rank int) {
	t.Helper()
	m.api.must(t, http.StatusOK, http.MethodPost, "/v1/completions", map[string]any{"prompt": prompt, "max_tokens": most, "data_parallel_rank": rank}, nil)
}

// relayProcess is our relay beside one engine.
type relayProcess struct {
	*process
	name string
	grpc string // host:port
	http *client
	args []string
}

// startRelay starts our relay and waits until it is primed: engine is what
// --engine takes.
func startRelay(t *testing.T, name string, port int, engine string, args ...string) *relayProcess {
	t.Helper()
	r := startUnprimedRelay(t, name, port, engine, args...)
	r.awaitPrimed(t)
	return r
}

// startUnprimedRelay starts our relay, whose engine may not be there yet.
func startUnprimedRelay(t *testing.T, name string, port int, engine string, args ...string) *relayProcess {
	t.Helper()
	at := func(p int) string { return "127.0.0.1:" + strconv.Itoa(p) }
	r := &relayProcess{name: name, grpc: at(port), http: newClient(port + 100)}
	r.args = append([]string{program("relay"), "--engine", engine, "--listen", r.grpc, "--http", at(port + 100)}, args...)
	r.process = start(t, name, nil, r.args...)
	return r
}

// again starts a relay that ended.
func (r *relayProcess) again(t *testing.T) {
	t.Helper()
	r.process = start(t, r.name, nil, r.args...)
	r.awaitPrimed(t)
}

func (r *relayProcess) awaitPrimed(t *testing.T) {
	t.Helper()
	eventually(t, 30*time.Second, r.name+" to be primed", func() (bool, string) {
		if r.exited() {
			t.Fatalf("%s ended: %s", r.name, r.tail())
		}
		_, err := r.http.call(http.MethodGet, "/readyz", nil, nil)
		return err == nil, fmt.Sprint(err)
	})
}
