// SPDX-License-Identifier: Apache-2.0

package index_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"kindex/gateway/fleet"
	"kindex/gateway/index"
	"kindex/harness/mockworker/engine"
	"kindex/indexsrv"
	"kindex/internal/lookup"
)

// hostEnv has this program be an index host: it names the socket of its shared memory,
// and the endpoints of one worker.
const hostEnv = "KINDEX_TEST_INDEX_HOST"

func TestMain(m *testing.M) {
	if args := os.Getenv(hostEnv); args != "" {
		if err := beHost(strings.Split(args, " ")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func beHost(args []string) error {
	cfg := indexsrv.DefaultConfig()
	cfg.Listen, cfg.GRPCListen, cfg.Shm.Listen, cfg.KVIndex = "127.0.0.1:0", "127.0.0.1:0", args[0], "chain"
	cfg.Workers = []indexsrv.Registration{{
		Instance: indexsrv.TextID("w0"), Model: "m", BlockSize: 16, Ranks: 2, Endpoint: args[1], ReplayEndpoint: args[2],
	}}
	h, err := indexsrv.New(cfg, quiet)
	if err != nil {
		return err
	}
	if err := h.Listen(); err != nil {
		return err
	}
	fmt.Println(h.GRPCAddr())
	return h.Serve(context.Background())
}

// startProcess starts an index host of its own that follows w.
func startProcess(t testing.TB, w *engine.Worker) (p *os.Process, targets map[string]string) {
	t.Helper()
	pub := w.Engine.Publishers()[0]
	path := filepath.Join(t.TempDir(), "s")
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), hostEnv+"="+path+" "+pub.Live+" "+pub.Replay)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return cmd.Process, map[string]string{"shared memory": "unix:" + path, "gRPC": strings.TrimSpace(line)}
}

// TestProcess: a host that stands still, goes on, and is killed: a few lookups wait for
// their deadline, none is asked then; it is used again as it goes on.
func TestProcess(t *testing.T) {
	f := engines(t, 1, engine.Config{})
	w := f.Workers()[0]
	ps := prompts(13, 6)
	for i, p := range ps {
		send(t, w, i%2, p)
	}
	for _, way := range []string{"shared memory", "gRPC"} {
		t.Run(way, func(t *testing.T) {
			p, targets := startProcess(t, w)
			r := newRig(t, index.Options{Kind: index.Remote, Target: targets[way], Timeout: 50 * time.Millisecond})
			worker := r.add(spec(0, w))
			r.exact("at first", f, ps, worker)
			if err := p.Signal(syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			// One may be answered out of what was under way.
			until(t, "a failure", func() (bool, string) {
				err := r.index.Lookup(t.Context(), &lookup.Query{Model: "m", Tokens: ps[0]}, new(lookup.Answer))
				return err != nil, ""
			})
			if n := failOpen(t, r.index); n > 5 {
				t.Errorf("%d lookups wait for a host that stands still", n)
			}
			if s := r.index.Stats(); s.Failed[index.Deadline] == 0 {
				t.Errorf("no deadline is counted: %+v", s)
			}
			if err := p.Signal(syscall.SIGCONT); err != nil {
				t.Fatal(err)
			}
			r.exact("as it goes on", f, ps, worker)
			if err := p.Kill(); err != nil {
				t.Fatal(err)
			}
			until(t, "lookups are skipped", func() (bool, string) {
				err := r.index.Lookup(t.Context(), &lookup.Query{Model: "m", Tokens: ps[0]}, new(lookup.Answer))
				return errors.Is(err, index.ErrSkipped), ""
			})
			until(t, "levels are not known", func() (bool, string) { _, known := worker.Holders[0].Held(); return !known, "" })
		})
	}
}

// BenchmarkLookup is one lookup of a prompt of 1,024 tokens that two ranks hold: in
// this process, in another one over each way, and where the index is skipped.
func BenchmarkLookup(b *testing.B) {
	f, err := engine.OpenFleet(engine.Config{Engine: engine.VLLM, Model: "m", Ranks: 2, Pub: "tcp://127.0.0.1:0", Replay: "tcp://127.0.0.1:0"}, 1)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	w := f.Workers()[0]
	prompt := make([]uint32, 1024)
	for i := range prompt {
		prompt[i] = uint32(i * 7)
	}
	send(b, w, 0, prompt)
	send(b, w, 1, prompt)
	_, targets := startProcess(b, w)
	for _, arm := range []struct {
		name string
		o    index.Options
	}{
		{"embedded", index.Options{}},
		{"shared memory", index.Options{Kind: index.Remote, Target: targets["shared memory"], Timeout: time.Second}},
		{"gRPC", index.Options{Kind: index.Remote, Target: targets["gRPC"], Timeout: time.Second}},
		{"skipped", index.Options{Kind: index.Remote, Target: "127.0.0.1:1"}},
	} {
		b.Run(arm.name, func(b *testing.B) {
			idx, err := index.Open(b.Context(), arm.o, quiet)
			if err != nil {
				b.Fatal(err)
			}
			defer func() { _ = idx.Close() }()
			s := spec(0, w)
			idx.Joined(fleet.NewWorker("w", &s))
			q := &lookup.Query{Model: "m", Tokens: prompt}
			a := index.GetAnswer()
			ready := func() bool {
				err := idx.Lookup(b.Context(), q, a)
				return errors.Is(err, index.ErrSkipped) && arm.name == "skipped" || err == nil && len(a.Matches) == 2
			}
			for end := time.Now().Add(10 * time.Second); !ready(); {
				if time.Now().After(end) {
					b.Fatal("it is never ready")
				}
				<-time.After(time.Millisecond)
			}
			b.ReportAllocs()
			for b.Loop() {
				_ = idx.Lookup(b.Context(), q, a) // of the skipped one it is an error
			}
			index.PutAnswer(a)
		})
	}
}
