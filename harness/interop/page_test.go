// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"context"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"kindex/internal/longtest"
)

// pictureEnv names the file that the page's picture goes to.
const pictureEnv = "KINDEX_PAGE_PICTURE"

// findChromium returns a Chromium of this machine.
func findChromium(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	t.Skip("no Chromium here: apt-get install chromium (.ci/test-long does)")
	return ""
}

// TestPageInChromium looks at the index host's page in a real browser while two
// mock engines serve: it shows both, goes on by itself as they do, says so when the
// host dies, and the browser has nothing to complain of.
func TestPageInChromium(t *testing.T) {
	longtest.Skip(t)
	browser := findChromium(t)
	build(t, "indexsrv", "mockworker")
	host := startIndexsrv(t)
	first, second := startMock(t, "engine-1", "vllm"), startMock(t, "engine-2", "sglang", "--ranks", "2", "--block", "16")
	for i, m := range []*mockEngine{first, second} {
		for rank, endpoint := range m.Pub {
			host.must(t, http.StatusCreated, http.MethodPost, "/register",
				registration{Instance: i + 1, Endpoint: endpoint, Replay: m.Replay[rank], Model: "m", Block: 16, Rank: rank}, nil)
		}
	}
	prompt := make([]uint32, 640)
	for i := range prompt {
		prompt[i] = uint32(i + 100)
	}
	first.generate(t, prompt, 1, 0)
	second.generate(t, prompt[:320], 1, 1)
	ask := func() {
		for range 64 {
			host.must(t, http.StatusOK, http.MethodPost, "/query", question{Model: "m", Tokens: prompt}, nil)
		}
	}
	ask()

	ctx, complaints := openBrowser(t, browser)
	url := "http://127.0.0.1:" + strconv.Itoa(indexsrvPort) + "/ui"
	text := func(id string) string {
		var s string
		if err := chromedp.Run(ctx, chromedp.Text("#"+id, &s, chromedp.ByQuery)); err != nil {
			t.Fatalf("#%s: %v", id, err)
		}
		return s
	}
	until := func(id, want string) {
		t.Helper()
		eventually(t, 20*time.Second, "the page to say "+want+" at "+id, func() (bool, string) { s := text(id); return s == want, s })
	}
	if err := chromedp.Run(ctx, chromedp.EmulateViewport(1280, 900), chromedp.Navigate(url)); err != nil {
		t.Fatal(err)
	}
	until("standing", "live")
	until("t-workers", "2")
	until("t-streams", "3 / 3")
	until("t-memberships", "60")
	rows := func(table string) (n int) {
		if err := chromedp.Run(ctx, chromedp.Evaluate("document.querySelectorAll('#"+table+" tbody tr').length", &n)); err != nil {
			t.Fatal(err)
		}
		return n
	}
	if n := rows("workers"); n != 3 {
		t.Errorf("%d rows of streams, want 3", n)
	}
	if n := rows("prefixes"); n != 1 {
		t.Errorf("%d rows of prefixes, want 1", n)
	}
	// It goes on by itself.
	first.generate(t, append(prompt[320:], prompt[:320]...), 1, 0)
	ask()
	until("t-memberships", "100")
	if path := os.Getenv(pictureEnv); path != "" {
		var png []byte
		if err := chromedp.Run(ctx, chromedp.FullScreenshot(&png, 100)); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, png, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if list := complaints(); len(list) > 0 {
		t.Errorf("the browser complains: %q", list)
	}
	host.server.kill()
	until("standing", "stale")
	var shown bool
	if err := chromedp.Run(ctx, chromedp.Evaluate("!document.getElementById('trouble').hidden", &shown)); err != nil || !shown {
		t.Errorf("the host is dead and the page does not say so: %v", err)
	}
}

// openBrowser starts a headless browser; the function returns what its console told
// as errors until now.
func openBrowser(t *testing.T, path string) (context.Context, func() []string) {
	t.Helper()
	opts := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.DisableGPU,
		chromedp.Flag("disable-dev-shm-usage", true), chromedp.UserDataDir(t.TempDir()))
	alloc, stop := chromedp.NewExecAllocator(t.Context(), opts...)
	ctx, end := chromedp.NewContext(alloc)
	ctx, late := context.WithTimeout(ctx, 2*time.Minute)
	t.Cleanup(func() { late(); end(); stop() })
	lines := make(chan string, 64)
	note := func(s string) {
		select {
		case lines <- s:
		default:
		}
	}
	chromedp.ListenTarget(ctx, func(ev any) {
		switch ev := ev.(type) {
		case *runtime.EventExceptionThrown:
			note(ev.ExceptionDetails.Error())
		case *runtime.EventConsoleAPICalled:
			if ev.Type == runtime.APITypeError || ev.Type == runtime.APITypeWarning {
				for _, a := range ev.Args {
					note(string(a.Value) + a.Description)
				}
			}
		}
	})
	return ctx, func() (list []string) {
		for {
			select {
			case s := <-lines:
				list = append(list, s)
			default:
				return list
			}
		}
	}
}
