// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"kindex/gateway/fleet"
)

// fakeWorkers notes what is asked of it.
type fakeWorkers struct {
	did  []string
	fail string // the URL that nothing can be done with
}

func (f *fakeWorkers) note(what, url string) error {
	if url == f.fail {
		return errors.New("no")
	}
	f.did = append(f.did, what+" "+url)
	return nil
}
func (f *fakeWorkers) add(s fleet.Spec) error     { return f.note("add", s.URL) }
func (f *fakeWorkers) replace(s fleet.Spec) error { return f.note("replace", s.URL) }
func (f *fakeWorkers) update(s fleet.Spec) error  { return f.note("update", s.URL) }
func (f *fakeWorkers) remove(url string) error    { return f.note("remove", url) }

// TestReload: what a reload takes over, what it leaves to a restart, and that a broken
// file changes nothing.
func TestReload(t *testing.T) {
	path := filepath.Join(t.TempDir(), "g.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("retries: 1\nworker: [http://a:1, http://b:1, http://c:1]\n")
	args := []string{"--config", path, "--worker-stall-secs", "5"}
	cfg, _, faults := parseArgs(args)
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	var logged bytes.Buffer
	log := slog.New(slog.NewTextHandler(&logged, nil))
	audit := newAudit(log)
	workers := &fakeWorkers{}
	var applied *Config
	r := &reloader{args: args, log: log, audit: &audit, workers: workers, apply: func(c *Config) { applied = c }, last: cfg}

	for _, broken := range []string{"retries: x\n", "nosuch: 1\n", "worker: [a]\n", "retries: [\n", "kv-index: remote\n"} {
		write(broken)
		if err := r.reload("test"); err == nil || applied != nil || len(workers.did) > 0 {
			t.Errorf("%q: %v, applied %v, did %q: want a fault and nothing changed", broken, err, applied, workers.did)
		}
	}
	if n := strings.Count(logged.String(), "\n"); n != 5 {
		t.Errorf("%d lines of 5 broken files:\n%s", n, logged.String())
	}
	logged.Reset()

	write(`retries: 0
worker-stall-secs: 9
worker-overload-waiting: 0
listen: 127.0.0.1:1234
worker:
- {url: "http://a:1", priority: 7}
- http://b:1,dp_size=2
- http://d:1
`)
	workers.fail = "http://d:1"
	if err := r.reload("test"); err != nil {
		t.Fatal(err)
	}
	if applied.Retries != 0 || applied.OverloadWaiting != 0 || applied.StallAfter != 5*time.Second || applied.Listen != cfg.Listen {
		t.Errorf("applied retries %d, waiting %d, stall %s, listen %s: want 0, 0, the flag's 5s, the one in force", applied.Retries, applied.OverloadWaiting, applied.StallAfter, applied.Listen)
	}
	if want := []string{"remove http://c:1", "update http://a:1", "replace http://b:1"}; !slices.Equal(workers.did, want) {
		t.Errorf("did %q, want %q", workers.did, want)
	}
	const want = `level=WARN msg="configuration read again" because=test changed=worker-overload-waiting,retries needs_restart=listen workers_added=0 workers_changed=2 workers_removed=1 workers_failed=1`
	got := logged.String()
	for _, name := range []string{"changed=", "needs_restart=listen ", "workers_changed=2 workers_removed=1 workers_failed=1"} {
		if !strings.Contains(got, name) {
			t.Errorf("the log lacks %q of %q:\n%s", name, want, got)
		}
	}
	if n := strings.Count(got, "configuration read again"); n != 1 {
		t.Errorf("%d lines say what changed, want one", n)
	}
	if n := strings.Count(got, "msg=audit"); n != 4 {
		t.Errorf("%d audit lines, want one for each of 4 workers:\n%s", n, got)
	}
	workers.did, workers.fail = nil, ""
	if err := r.reload("test"); err != nil || len(workers.did) > 0 {
		t.Errorf("the same again: %v, did %q", err, workers.did)
	}
}

// TestReloadable: every name is an option's.
func TestReloadable(t *testing.T) {
	cfg := DefaultConfig()
	var names []string
	for _, o := range cfg.options() {
		names = append(names, o.Name)
	}
	for _, name := range reloadable {
		if !slices.Contains(names, name) {
			t.Errorf("%s is no option", name)
		}
	}
}

// TestWatchFile: a file that is written, replaced, or lies behind links that are
// swapped is seen, each time once.
func TestWatchFile(t *testing.T) {
	for name, setUp := range map[string]func(dir string) (path string, set func(text string) error){
		"written": func(dir string) (string, func(string) error) {
			path := filepath.Join(dir, "f")
			return path, func(text string) error { return os.WriteFile(path, []byte(text), 0o600) }
		},
		"replaced": func(dir string) (string, func(string) error) {
			path := filepath.Join(dir, "f")
			return path, func(text string) error {
				if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
					return err
				}
				return os.Rename(path+".new", path)
			}
		},
		// As Kubernetes mounts a ConfigMap: f -> ..data/f, ..data -> a directory that is
		// another one each time.
		"swapped links": func(dir string) (string, func(string) error) {
			n := 0
			return filepath.Join(dir, "f"), func(text string) error {
				n++
				sub := filepath.Join(dir, fmt.Sprintf("..%d", n))
				data := filepath.Join(dir, "..data")
				err := errors.Join(os.Mkdir(sub, 0o700), os.WriteFile(filepath.Join(sub, "f"), []byte(text), 0o600),
					os.Symlink(filepath.Base(sub), data+"_new"), os.Rename(data+"_new", data))
				if n == 1 {
					err = errors.Join(err, os.Symlink(filepath.Join("..data", "f"), filepath.Join(dir, "f")))
				} else {
					err = errors.Join(err, os.RemoveAll(filepath.Join(dir, fmt.Sprintf("..%d", n-1))))
				}
				return err
			}
		},
		"behind a link elsewhere": func(dir string) (string, func(string) error) {
			target, path := filepath.Join(dir, "real", "g"), filepath.Join(dir, "f")
			if err := errors.Join(os.Mkdir(filepath.Dir(target), 0o700), os.Symlink(target, path)); err != nil {
				panic(err)
			}
			return path, func(text string) error { return os.WriteFile(target, []byte(text), 0o600) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			path, set := setUp(t.TempDir())
			must := func(err error) {
				t.Helper()
				if err != nil {
					t.Fatal(err)
				}
			}
			must(set("0"))
			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			seen := make(chan string, 100)
			wg.Go(func() {
				watchFile(ctx, path, slog.New(slog.DiscardHandler), func() {
					text, _ := os.ReadFile(path)
					seen <- string(text)
				})
			})
			defer wg.Wait()
			defer cancel()
			time.Sleep(100 * time.Millisecond) // that it watches cannot be seen
			for i := 1; i <= 3; i++ {
				must(set(fmt.Sprint(i)))
				select {
				case got := <-seen:
					if got != fmt.Sprint(i) {
						t.Errorf("saw %q, want %d", got, i)
					}
				case <-time.After(20 * time.Second):
					t.Fatalf("change %d is not seen", i)
				}
			}
			must(os.WriteFile(filepath.Join(filepath.Dir(path), "other"), nil, 0o600))
			select {
			case got := <-seen:
				t.Errorf("another file's change is told, %q", got)
			case <-time.After(3 * settle):
			}
		})
	}
}
