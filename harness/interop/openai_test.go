// SPDX-License-Identifier: Apache-2.0

package interop

import (
	_ "embed"
	"os/exec"
	"strings"
	"testing"
	"time"

	"kindex/harness/mockworker/engine"
)

// openaiEnv has OpenAI's own client.
var openaiEnv = environment{"openai-3.57.0", [][]string{
	{"$ENV/bin/python", "-m", "pip", "install", "-q", "openai==3.57.0"},
}}

//go:embed openai_client.py
var openaiClient string

// TestOpenAIClient asks a mock engine with OpenAI's own client: chats, completions,
// streams, usage, errors. A stream that it leaves is aborted.
func TestOpenAIClient(t *testing.T) {
	if !inNamespace(t, 5*time.Minute, func() {
		openaiEnv.install(t)
		build(t, "mockworker")
	}) {
		return
	}
	m := startMock(t, "mock", engine.VLLM, "--lora", "adapter", "--pass", "2ms")
	out, err := exec.Command(openaiEnv.python(t), "-c", openaiClient, "http://"+m.HTTP).CombinedOutput()
	if err != nil || !strings.HasSuffix(string(out), "\ndone\n") {
		t.Fatalf("%v: %s", err, out)
	}
	eventually(t, 10*time.Second, "the stream that was left to end", func() (bool, string) {
		var page engine.RequestsPage
		m.admin.must(t, 200, "GET", "/admin/requests", nil, &page)
		aborted, open := 0, 0
		for _, r := range page.Requests {
			switch r.Finish {
			case "abort":
				aborted++
			case "":
				open++
			}
		}
		return aborted == 1 && open == 0, ""
	})
}
