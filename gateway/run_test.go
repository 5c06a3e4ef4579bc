// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// program is a gateway as its main runs it.
type program struct {
	t       *testing.T
	log     *logBuffer
	signals chan os.Signal
	reload  chan os.Signal
	done    chan int
	url     string
}

// startProgram runs a gateway with args, and waits until it is ready.
func startProgram(t *testing.T, args ...string) *program {
	t.Helper()
	p := &program{t: t, log: &logBuffer{}, signals: make(chan os.Signal, 2), reload: make(chan os.Signal, 1), done: make(chan int, 1)}
	go func() {
		p.done <- Run(append([]string{"--listen", "127.0.0.1:0"}, args...), p.log, p.log, p.signals, p.reload)
	}()
	at := regexp.MustCompile(`msg=serving url=(\S+)`)
	eventually(t, func() string {
		if m := at.FindStringSubmatch(p.log.String()); m != nil {
			p.url = m[1]
			return ""
		}
		return "it does not say where it serves: " + p.log.String()
	})
	t.Cleanup(func() {
		select {
		case p.signals <- syscall.SIGTERM:
		default:
		}
	})
	return p
}

// get and post return the status of a path; 0: nobody answers.
func (p *program) get(path string) int        { return p.send(http.MethodGet, path, "") }
func (p *program) post(path, body string) int { return p.send(http.MethodPost, path, body) }

func (p *program) send(method, path, body string) int {
	req, err := http.NewRequestWithContext(context.Background(), method, p.url+path, strings.NewReader(body))
	if err != nil {
		p.t.Fatal(err)
	}
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0
	}
	_ = resp.Body.Close()
	return resp.StatusCode
}

func (p *program) ready(want int) {
	p.t.Helper()
	eventually(p.t, func() string {
		if got := p.get("/readyz"); got != want {
			return fmt.Sprintf("/readyz is %d, want %d: %s", got, want, p.log.String())
		}
		return ""
	})
}

// stream begins an answer of tokens, of which the first has come when it returns.
func (p *program) stream(tokens int) (*http.Response, *bufio.Scanner) {
	p.t.Helper()
	req, err := http.NewRequestWithContext(context.Background(), http.MethodPost, p.url+"/v1/completions", strings.NewReader(promptBody(1, 10, tokens, `,"stream":true`)))
	if err != nil {
		p.t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		p.t.Fatal(err)
	}
	s := bufio.NewScanner(resp.Body)
	if !s.Scan() {
		p.t.Fatal("no event: ", s.Err())
	}
	return resp, s
}

// TestDrain: at the first signal a gateway is not ready but serves, then it ends what is
// under way, and exits with 0. Each stage has a line.
func TestDrain(t *testing.T) {
	urls := mocks(t, 1, "", 20*time.Millisecond)
	p := startProgram(t, "--worker", urls[0], "--drain-delay", "1s", "--drain-timeout", "20s")
	p.ready(200)
	resp, s := p.stream(100) // 2 s
	defer resp.Body.Close()
	p.signals <- syscall.SIGTERM
	p.ready(503)
	if got := p.get("/health"); got != 200 {
		t.Errorf("/health is %d while it drains", got)
	}
	if got := p.post("/v1/completions", promptBody(50, 10, 1, "")); got != 200 {
		t.Errorf("a request during the delay: %d", got)
	}
	done := false
	for s.Scan() {
		done = done || s.Text() == "data: [DONE]"
	}
	if !done {
		t.Error("the stream was cut")
	}
	if code := <-p.done; code != 0 {
		t.Errorf("exit status %d, want 0", code)
	}
	for _, want := range []string{"msg=draining", "drain: not ready, serving still", "drain: no new connections", "drain: all requests have ended", "msg=stopped"} {
		if !strings.Contains(p.log.String(), want) {
			t.Errorf("the log lacks %q:\n%s", want, p.log.String())
		}
	}
}

// TestDrainBounded: what does not end in time is cut, and the exit status is 0.
func TestDrainBounded(t *testing.T) {
	urls := mocks(t, 1, "", 50*time.Millisecond)
	p := startProgram(t, "--worker", urls[0], "--drain-timeout", "100ms")
	p.ready(200)
	resp, s := p.stream(1000)
	defer resp.Body.Close()
	p.signals <- syscall.SIGTERM
	if code := <-p.done; code != 0 {
		t.Errorf("exit status %d, want 0", code)
	}
	for s.Scan() {
		if s.Text() == "data: [DONE]" {
			t.Error("the stream came to its end, want it cut")
		}
	}
	if !strings.Contains(p.log.String(), "requests cut short") {
		t.Error("the log does not say so:\n", p.log.String())
	}
}

// TestSecondSignal: it ends at once, which here leaves the drain of the first signal to
// end by itself.
func TestSecondSignal(t *testing.T) {
	p := startProgram(t, "--drain-delay", "2s")
	t.Cleanup(func() {
		eventually(t, func() string {
			if c, err := net.Dial("tcp", strings.TrimPrefix(p.url, "http://")); err == nil {
				c.Close()
				return "it serves still"
			}
			return ""
		})
	})
	p.signals <- syscall.SIGTERM
	p.ready(503)
	p.signals <- syscall.SIGTERM
	if code := <-p.done; code != 1 {
		t.Errorf("exit status %d, want 1", code)
	}
}

// TestReloadProgram: workers come and go with the file, by themselves and at SIGHUP;
// those that were registered by request stay.
func TestReloadProgram(t *testing.T) {
	urls := mocks(t, 3, "", 0)
	path := filepath.Join(t.TempDir(), "g.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("worker: [" + urls[0] + "]\n")
	p := startProgram(t, "--config", path)
	p.ready(200)
	if got := p.post("/workers", `{"url":"`+urls[2]+`"}`); got != 202 {
		t.Fatalf("registered: %d", got)
	}
	there := func(want ...int) {
		t.Helper()
		eventually(t, func() string {
			resp, err := http.Get(p.url + "/workers") //nolint:noctx // a test
			if err != nil {
				return err.Error()
			}
			defer resp.Body.Close()
			var b bytes.Buffer
			if _, err := b.ReadFrom(resp.Body); err != nil {
				return err.Error()
			}
			for i, u := range urls {
				wanted := false
				for _, w := range want {
					wanted = wanted || w == i
				}
				if strings.Contains(b.String(), u) != wanted {
					return fmt.Sprintf("worker %d there: %t, want %t\n%s", i, !wanted, wanted, p.log.String())
				}
			}
			return ""
		})
	}
	there(0, 2)
	write("worker: [" + urls[1] + "]\nlog-level: debug\npolicy: random\n")
	there(1, 2)
	write("worker: nonsense\n")
	eventually(t, func() string {
		if !strings.Contains(p.log.String(), "configuration not read again") {
			return "a broken file is not told"
		}
		return ""
	})
	there(1, 2)
	write("worker: [" + urls[0] + ", " + urls[1] + "]\n")
	p.reload <- syscall.SIGHUP
	there(0, 1, 2)
	eventually(t, func() string {
		for _, want := range []string{"needs_restart=policy", "changed=log-level", "because=file"} {
			if !strings.Contains(p.log.String(), want) {
				return "the log lacks " + want + ":\n" + p.log.String()
			}
		}
		return ""
	})
}

// TestRunActions: what prints and ends.
func TestRunActions(t *testing.T) {
	for args, want := range map[string]string{
		"--help":           "usage: gateway --worker",
		"--version":        "gateway devel",
		"--print-defaults": "worker-stall-secs: 2\n",
		"--check-config":   "configuration ok",
		"--print-config --worker http://h:1 --worker-stall-secs 0": "worker-stall-secs: 0\n",
	} {
		var out, errs bytes.Buffer
		if code := Run(strings.Fields(args), &out, &errs, nil, nil); code != 0 || !strings.Contains(out.String(), want) {
			t.Errorf("%s: exit status %d, %.200q, %q: want %q", args, code, out.String(), errs.String(), want)
		}
	}
	var out, errs bytes.Buffer
	if code := Run([]string{"--retries", "x", "--policy", "y"}, &out, &errs, nil, nil); code != 2 || strings.Count(errs.String(), "gateway: ") != 2 {
		t.Errorf("two faults: exit status %d, %q", code, errs.String())
	}
}
