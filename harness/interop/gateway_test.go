// SPDX-License-Identifier: Apache-2.0

package interop

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"kindex/harness/mockworker/engine"
)

// aiperfEnv has the load tool of NVIDIA's, 0.9 GB of it.
var aiperfEnv = environment{"aiperf-0.13.0", [][]string{
	{"$ENV/bin/python", "-m", "pip", "install", "-q", "uv==0.13.9"},
	{"env", "UV_SYSTEM_CERTS=1", "$ENV/bin/uv", "pip", "install", "-q", "--python", "$ENV/bin/python", "--no-cache", "aiperf==0.13.0"},
}}

//go:embed gateway_client.py
var gatewayClient string

// gatewayProcess is our gateway before some workers.
type gatewayProcess struct {
	*process
	*client
	Addr string
}

// startGateway starts it at a port that it takes itself, and waits until it is ready.
func startGateway(t *testing.T, args ...string) *gatewayProcess {
	t.Helper()
	g := &gatewayProcess{process: start(t, "gateway", nil, append([]string{program("gateway"), "--listen", "127.0.0.1:0", "--log-format", "json"}, args...)...)}
	eventually(t, 30*time.Second, "the gateway to be ready", func() (bool, string) {
		if g.exited() {
			t.Fatalf("gateway ended: %s", g.tail())
		}
		if g.client == nil {
			_, rest, found := strings.Cut(g.tail(), `"msg":"serving","url":"`)
			url, _, whole := strings.Cut(rest, `"`)
			if !found || !whole {
				return false, g.tail()
			}
			g.Addr = strings.TrimPrefix(url, "http://")
			g.client = &client{base: url, http: http.Client{Timeout: time.Minute}}
		}
		_, err := g.call(http.MethodGet, "/readyz", nil, nil)
		return err == nil, fmt.Sprint(err)
	})
	return g
}

// of is the --worker that a mock engine is to a gateway.
func (m *mockEngine) of(more string) string {
	return fmt.Sprintf("http://%s,events=%s,replay=%s%s", m.HTTP, m.Pub[0], m.Replay[0], more)
}

// TestOpenAIClientGateway asks mock engines through a gateway with OpenAI's own client:
// all that it asks of an engine, and what a gateway adds. What it leaves is aborted.
func TestOpenAIClientGateway(t *testing.T) {
	if !inNamespace(t, 5*time.Minute, func() {
		openaiEnv.install(t)
		build(t, "mockworker", "gateway")
	}) {
		return
	}
	for _, c := range []struct {
		name, script, pass string
		left               int // requests that are given up
	}{{"as an engine", openaiClient, "2ms", 1}, {"as a gateway", gatewayClient, "20ms", 2}} {
		t.Run(c.name, func(t *testing.T) {
			m := startMock(t, "mock", engine.VLLM, "--lora", "adapter", "--pass", c.pass)
			g := startGateway(t, "--worker", m.of(""))
			out, err := exec.Command(openaiEnv.python(t), "-c", c.script, g.base).CombinedOutput()
			if err != nil || !strings.HasSuffix(string(out), "\ndone\n") {
				t.Fatalf("%v: %s", err, out)
			}
			eventually(t, 10*time.Second, "what was left to end", func() (bool, string) {
				aborted, open := m.ends(t)
				return aborted == c.left && open == 0, fmt.Sprintf("%d aborted, %d open", aborted, open)
			})
			if err := g.stop(); err != nil {
				t.Errorf("gateway after SIGTERM: %v: %s", err, g.tail())
			}
		})
	}
}

// ends counts requests that were aborted, and those that run.
func (m *mockEngine) ends(t *testing.T) (aborted, open int) {
	t.Helper()
	var page engine.RequestsPage
	m.admin.must(t, http.StatusOK, http.MethodGet, "/admin/requests", nil, &page)
	for _, r := range page.Requests {
		switch r.Finish {
		case "abort":
			aborted++
		case "":
			open++
		}
	}
	return aborted, open
}

// TestAIPerf drives mock engines through a gateway with NVIDIA's load tool: every
// request is answered, with as many tokens as were asked for.
func TestAIPerf(t *testing.T) {
	if !inNamespace(t, 10*time.Minute, func() {
		aiperfEnv.install(t)
		build(t, "mockworker", "gateway")
	}) {
		return
	}
	args := []string{}
	for i := range 2 {
		args = append(args, "--worker", startMock(t, fmt.Sprintf("mock%d", i), engine.VLLM, "--pass", "2ms").of(""))
	}
	g := startGateway(t, args...)
	aiperf(t, g.base, "mock")
}

// aiperf runs the load tool and judges what it reports.
func aiperf(t *testing.T, url, model string) {
	t.Helper()
	const requests, output = 60, 16
	tok, err := filepath.Abs("../testdata/tok")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cmd := exec.Command(filepath.Join(filepath.Dir(aiperfEnv.python(t)), "aiperf"), "profile", "--model", model, "--url", url, //nolint:gosec // a pinned program
		"--endpoint-type", "chat", "--streaming", "--tokenizer", tok, "--request-count", fmt.Sprint(requests), "--concurrency", "4",
		"--synthetic-input-tokens-mean", "200", "--output-tokens-mean", fmt.Sprint(output), "--extra-inputs", "ignore_eos:true",
		"--ui", "none", "--output-artifact-dir", filepath.Join(dir, "out"))
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %.4000s", err, out)
	}
	type average struct {
		Avg float64 `json:"avg"`
	}
	var report struct {
		Requests average           `json:"request_count"`
		Failed   *average          `json:"error_request_count"`
		Errors   []json.RawMessage `json:"error_summary"`
		Output   average           `json:"output_sequence_length"`
	}
	b, err := os.ReadFile(filepath.Join(dir, "out", "profile_export_aiperf.json"))
	if err == nil {
		err = json.Unmarshal(b, &report)
	}
	if err != nil {
		t.Fatal(err)
	}
	if report.Requests.Avg != requests || len(report.Errors) > 0 || report.Failed != nil && report.Failed.Avg > 0 {
		t.Errorf("%v of %d requests answered; errors %s", report.Requests.Avg, requests, report.Errors)
	}
	t.Logf("aiperf: %v requests, %v tokens each", report.Requests.Avg, report.Output.Avg)
}

// TestRealEngineGateway plays one client of a real engine through a gateway: 200
// requests of token ids, text and chats that share prefixes, one at a time. What the
// gateway expects of the engine's cache, by its own explanation, must be what the engine
// says on every one.
func TestRealEngineGateway(t *testing.T) {
	if !inNamespace(t, 15*time.Minute, func() {
		vllmEnv.install(t)
		build(t, "gateway", "indexsrv")
	}) {
		return
	}
	tok, err := filepath.Abs("../testdata/tok")
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	server := startVLLM(t, []string{"VLLM_ENABLE_V1_MULTIPROCESSING=0"}, "--distributed-executor-backend", "uni", "--tokenizer", tok)
	api := newClient(vllmPort)
	api.http.Timeout = time.Minute
	api.awaitUp(t, server, 8*time.Minute)
	t.Logf("engine up after %.0f s", time.Since(began).Seconds())
	reg := registration{Instance: 1, Model: "tiny", Block: vllmBlock, Endpoint: "tcp://127.0.0.1:15557", Replay: "tcp://127.0.0.1:15657"}
	through := &predicted{model: "tiny", worker: fmt.Sprintf("http://127.0.0.1:%d", vllmPort), replay: reg.Replay, budget: "2s", context: vllmContext}
	through.run(t, 200, &reg)
}

// TestMockEngineGateway is the same against mock engines of both kinds, whose caches are
// as small.
func TestMockEngineGateway(t *testing.T) {
	if testing.Short() {
		t.Skip("programs are started")
	}
	build(t, "mockworker", "gateway", "indexsrv")
	for _, kind := range []string{engine.VLLM, engine.SGLang} {
		t.Run(kind, func(t *testing.T) {
			m := startMock(t, "mock", kind, "--blocks", "192", "--context", fmt.Sprint(vllmContext))
			reg := registration{Instance: 1, Model: "mock", Block: m.BlockSize, Endpoint: m.Pub[0], Replay: m.Replay[0]}
			through := &predicted{model: "mock", worker: "http://" + m.HTTP, replay: m.Replay[0], budget: "2s", context: vllmContext}
			through.run(t, 200, &reg)
		})
	}
}
