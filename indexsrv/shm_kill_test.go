// SPDX-License-Identifier: Apache-2.0

//go:build linux

package indexsrv

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"kindex/indexclient"
	"kindex/internal/kv"
	"kindex/internal/longtest"
	"kindex/internal/lookup"
)

// Processes of this test binary that are told by the environment what they are.
const (
	shmServeEnv = "KINDEX_TEST_SHM_SERVE" // a host at that socket
	shmAskEnv   = "KINDEX_TEST_SHM_ASK"   // a client of that socket, without end
	shmUIDEnv   = "KINDEX_TEST_SHM_UID"   // the client becomes that user before
)

const killInstances = 12

// killHost is a host with content that is the same in every process.
func killHost(t *testing.T, log *slog.Logger, socket string) *testHost {
	t.Helper()
	cfg := DefaultConfig()
	cfg.Listen, cfg.ShardsPerNode, cfg.Shm.Listen = "127.0.0.1:0", 2, socket
	src := &fakeSource{}
	h, err := newHost(cfg, src, log)
	if err != nil {
		t.Fatal(err)
	}
	th := &testHost{Host: h, t: t, src: src}
	r := rand.New(rand.NewPCG(21, 22))
	for i := range killInstances {
		reg := Registration{Instance: NumberID(uint64(i)), Model: "m", BlockSize: testBlock, Endpoint: fmt.Sprintf("tcp://127.0.0.1:%d", 20_000+i)}
		if err := h.Register(t.Context(), reg); err != nil {
			t.Fatal(err)
		}
	}
	for _, w := range h.reg.workers(nil) {
		th.churnContent((*w.ranks.Load())[0], r, 100)
	}
	return th
}

func killQuery(r *rand.Rand, q *lookup.Query) {
	q.Model, q.Hashes, q.Limit = "m", q.Hashes[:0], r.IntN(3)*2
	for range 1 + r.IntN(10) {
		q.Hashes = append(q.Hashes, kv.ContentHash(r.IntN(4)))
	}
	if r.IntN(50) == 0 { // several records
		for range 6_000 {
			q.Hashes = append(q.Hashes, kv.ContentHash(r.IntN(4)))
		}
	}
}

// TestShmProcess is no test: it is what this binary does as one of the processes.
func TestShmProcess(t *testing.T) {
	if socket := os.Getenv(shmServeEnv); socket != "" {
		h := killHost(t, quiet, socket)
		serveTestHost(t, h.Host, h.src)
		fmt.Fprintln(os.Stderr, "ready")
		_, _ = io.Copy(io.Discard, os.Stdin) // until killed, or its parent is gone
		return
	}
	socket := os.Getenv(shmAskEnv)
	if socket == "" {
		t.Skip("a process of other tests")
	}
	if uid := os.Getenv(shmUIDEnv); uid != "" {
		var n int
		if _, err := fmt.Sscan(uid, &n); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(syscall.Setgroups(nil), syscall.Setgid(n), syscall.Setuid(n)); err != nil {
			t.Fatal(err)
		}
	}
	c, err := indexclient.Dial(t.Context(), "unix:"+socket, indexclient.Options{Timeout: 20 * time.Second, Wait: true})
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(uint64(os.Getpid()), 0))
	var all sync.WaitGroup
	for k := range 3 {
		var q lookup.Query
		var a lookup.Answer
		if err := c.Lookup(t.Context(), &lookup.Query{Model: "m"}, &a); err != nil {
			fmt.Fprintf(os.Stderr, "refused %v denied=%v\n", err, errors.Is(err, lookup.ErrDenied))
			return
		}
		if k == 0 {
			fmt.Fprintln(os.Stderr, "ready")
		}
		seed := r.Uint64()
		all.Go(func() {
			r := rand.New(rand.NewPCG(seed, 1))
			for {
				killQuery(r, &q)
				if err := c.Lookup(context.Background(), &q, &a); err != nil {
					return
				}
			}
		})
	}
	all.Wait()
}

// process is one that is killed.
type process struct {
	*exec.Cmd
	first string // line of its stderr
}

// start starts this binary as what env says and waits for the first line.
func start(t testing.TB, env ...string) *process {
	t.Helper()
	return startProcess(t, []string{os.Args[0], "-test.run=^TestShmProcess$", "-test.timeout=20m"}, env...)
}

func startProcess(t testing.TB, args []string, env ...string) *process {
	t.Helper()
	p := &process{Cmd: exec.Command(args[0], args[1:]...)}
	p.Env = append(os.Environ(), env...)
	p.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if _, err := p.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := p.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	s := bufio.NewScanner(out)
	for s.Scan() {
		if p.first = s.Text(); strings.HasPrefix(p.first, "ready") || strings.HasPrefix(p.first, "refused") {
			return p
		}
	}
	_ = p.Wait()
	t.Fatalf("a process ended before it was ready: %s", p.first)
	return nil
}

// kill kills p and waits until it is gone.
func (p *process) kill() {
	_ = p.Process.Kill()
	_ = p.Wait()
}

// shmKept is what a process must not gather.
type shmKept struct{ fds, maps, goroutines int }

func keptNow(t *testing.T) shmKept {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	return shmKept{len(fds), bytes.Count(maps, []byte("kindex-lookups")), runtime.NumGoroutine()}
}

// settles waits until ok, or for long.
func settles(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for range 1000 {
		if ok() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("%s: not within 10 s", what)
}

// TestShmKillServer: however often the server is killed under load, each call gets an
// answer that is right or a clear error when its time is over, and the client keeps
// nothing of the servers before.
func TestShmKillServer(t *testing.T) {
	kills := longtest.N(6, 100)
	truth := killHost(t, quiet, "")
	t.Cleanup(func() { _ = truth.Close() })
	socket := filepath.Join(t.TempDir(), "s")
	p := start(t, shmServeEnv+"="+socket)
	c, err := indexclient.Dial(t.Context(), "unix:"+socket, indexclient.Options{Wait: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	var before shmKept
	var stop atomic.Bool
	var all sync.WaitGroup
	var answers, late, longest atomic.Int64
	for k := range 6 {
		// Some give the server time to come back, some do not.
		limit := []time.Duration{20 * time.Second, 30 * time.Millisecond}[k%2]
		all.Go(func() {
			r := rand.New(rand.NewPCG(23, uint64(k)))
			var q lookup.Query
			var want, got lookup.Answer
			for !stop.Load() {
				killQuery(r, &q)
				ctx, cancel := context.WithTimeout(context.Background(), limit)
				begin := time.Now()
				err := c.Lookup(ctx, &q, &got)
				cancel()
				if over := int64(time.Since(begin) - limit); over > longest.Load() {
					longest.Store(over)
				}
				if err == nil {
					answers.Add(1)
					if err := truth.Lookup(context.Background(), &q, &want); err != nil {
						t.Error(err)
						return
					}
					if got.BlockSize != want.BlockSize || !slices.Equal(got.Matches, want.Matches) {
						t.Errorf("got %+v, want %+v", got, want)
						return
					}
					continue
				}
				late.Add(1)
				kind := lookup.KindOf(err)
				if limit > time.Second || kind != lookup.ErrUnavailable && kind != lookup.ErrDeadline || !strings.Contains(err.Error(), socket) {
					t.Errorf("within %v: %v (%v)", limit, err, kind)
					return
				}
			}
		})
	}
	r := rand.New(rand.NewPCG(24, 0))
	for i := range kills {
		time.Sleep(time.Duration(r.IntN(40)) * time.Millisecond)
		if i == 1 {
			before = keptNow(t)
		}
		n := answers.Load()
		p.kill()
		p = start(t, shmServeEnv+"="+socket)
		settles(t, "answers after a restart", func() bool { return answers.Load() > n })
	}
	after := keptNow(t)
	stop.Store(true)
	all.Wait()
	p.kill()
	// A process more or less at the moment of counting has three pipes and its waiters.
	if after.fds > before.fds+6 || after.maps > 2 || after.goroutines > before.goroutines+12 {
		t.Errorf("kept: %+v, in the beginning %+v", after, before)
	}
	t.Logf("%d kills: %d answers, all right; %d out of time, by %v at most; kept %+v, in the beginning %+v",
		kills, answers.Load(), late.Load(), time.Duration(longest.Load()), after, before)
}

// TestShmKillClient: however often clients are killed, others get their answers, and
// the server keeps nothing of them.
func TestShmKillClient(t *testing.T) {
	kills := longtest.N(6, 100)
	socket := filepath.Join(t.TempDir(), "s")
	h := killHost(t, quiet, socket)
	serveTestHost(t, h.Host, h.src)
	c, err := indexclient.Dial(t.Context(), "unix:"+socket, indexclient.Options{Timeout: 20 * time.Second, Wait: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	var stop atomic.Bool
	var asked atomic.Int64
	var all sync.WaitGroup
	all.Go(func() {
		r := rand.New(rand.NewPCG(25, 0))
		var q lookup.Query
		var want, got lookup.Answer
		for !stop.Load() {
			killQuery(r, &q)
			if err := errors.Join(c.Lookup(context.Background(), &q, &got), h.Lookup(context.Background(), &q, &want)); err != nil {
				t.Error(err)
				return
			}
			if !slices.Equal(got.Matches, want.Matches) {
				t.Errorf("got %+v, want %+v", got, want)
				return
			}
			asked.Add(1)
		}
	})
	settles(t, "the first answer", func() bool { return asked.Load() > 0 })
	before := keptNow(t)
	bytesBefore := h.shm.srv.Bytes.Load()
	for range kills / 2 {
		p, q := start(t, shmAskEnv+"="+socket), start(t, shmAskEnv+"="+socket)
		n := asked.Load()
		p.kill()
		settles(t, "answers after a kill", func() bool { return asked.Load() > n })
		q.kill()
	}
	settles(t, "clients gone", func() bool { return h.shm.srv.Clients.Load() == 1 })
	settles(t, "nothing kept", func() bool {
		after := keptNow(t)
		return after.fds <= before.fds && after.maps <= before.maps && after.goroutines <= before.goroutines+2
	})
	stop.Store(true)
	all.Wait()
	if n := h.shm.srv.Bytes.Load(); n != bytesBefore {
		t.Errorf("memory of clients: %d bytes, before %d", n, bytesBefore)
	}
	t.Logf("%d kills beside %d right answers; kept %+v, in the beginning %+v", kills, asked.Load(), keptNow(t), before)
}

// TestShmForeign: who is not allowed is told so, and it is in the log.
func TestShmForeign(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can become somebody else")
	}
	dir := t.TempDir()
	if err := errors.Join(os.Chmod(dir, 0o755), os.Chmod(filepath.Dir(dir), 0o755)); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "s")
	var mu sync.Mutex
	var log bytes.Buffer
	h := killHost(t, slog.New(slog.NewJSONHandler(lockedWriter{&mu, &log}, nil)), socket)
	serveTestHost(t, h.Host, h.src)
	p := start(t, shmAskEnv+"="+socket, shmUIDEnv+"=65534")
	p.kill()
	if !strings.Contains(p.first, "denied=true") || !strings.Contains(p.first, "uid 65534") || !strings.Contains(p.first, socket) {
		t.Errorf("a foreign user is told %q", p.first)
	}
	mu.Lock()
	defer mu.Unlock()
	if text := log.String(); !strings.Contains(text, `"reason":"peer"`) || !strings.Contains(text, "uid:65534") {
		t.Errorf("the log has no line of it:\n%s", text)
	}
	if n := h.shm.srv.Denied.Load(); n == 0 {
		t.Error("it is not counted")
	}
}

type lockedWriter struct {
	mu *sync.Mutex
	w  io.Writer
}

func (l lockedWriter) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(b)
}

// TestShmStopped: of a server whose process stands still a caller learns so within its
// time, and has its answer once it goes on.
func TestShmStopped(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	p := start(t, shmServeEnv+"="+socket)
	t.Cleanup(p.kill)
	c, err := indexclient.Dial(t.Context(), "unix:"+socket, indexclient.Options{Timeout: 20 * time.Second, Wait: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	q := &lookup.Query{Model: "m", Hashes: []kv.ContentHash{0}}
	var a lookup.Answer
	if err := c.Lookup(t.Context(), q, &a); err != nil {
		t.Fatal(err)
	}
	want := slices.Clone(a.Matches)
	if err := p.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	settles(t, "the process standing still", func() bool {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.Process.Pid))
		return err == nil && bytes.Contains(b, []byte(") T "))
	})
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	if err := c.Lookup(ctx, q, &a); !errors.Is(err, lookup.ErrDeadline) || !strings.Contains(err.Error(), "sign of life") {
		t.Errorf("while it stands still: %v", err)
	}
	if err := p.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if err := c.Lookup(t.Context(), q, &a); err != nil || !slices.Equal(a.Matches, want) {
		t.Errorf("after that: %+v (%v), want %+v", a.Matches, err, want)
	}
}
