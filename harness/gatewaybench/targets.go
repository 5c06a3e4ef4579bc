// SPDX-License-Identifier: Apache-2.0

package gatewaybench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"kindex/harness/proc"
	"kindex/harness/publish"
	"kindex/harness/pyenv"
)

// The parts of this program that are processes of their own.
const (
	RoleWorker = "worker" // ADDR
	RoleBare   = "bare"   // ADDR WORKER...
	RoleClient = "client" // orders on standard input
)

const (
	workers   = 2
	startTime = 60 * time.Second
	readyPoll = time.Millisecond
)

// programs start what is measured.
type programs struct {
	o         *Options
	self      string
	gateway   string // ours
	smg       string // the peer's
	gatewayOn string // CPU; "": any
	othersOn  string
	note      string
}

func find(ctx context.Context, o *Options) (*programs, error) {
	p := &programs{o: o}
	var err error
	if p.self, err = os.Executable(); err != nil {
		return nil, err
	}
	for _, t := range o.Targets {
		switch {
		case t == Ours:
			if p.gateway, err = proc.Find("gateway"); err != nil {
				return nil, err
			}
		case peer(t) && p.smg == "":
			python, err := pyenv.SMG.Python(ctx)
			if err != nil {
				return nil, err
			}
			p.smg = filepath.Join(filepath.Dir(python), "smg")
		}
	}
	if o.Pin == PinSplit {
		_, err := exec.LookPath("taskset")
		if err != nil || runtime.NumCPU() < 2 {
			p.note = "programs are not pinned: that takes two CPUs and taskset"
		} else {
			p.gatewayOn, p.othersOn = "0", "1"
		}
	}
	return p, nil
}

// peer reports whether a target is the peer.
func peer(target string) bool { return strings.HasPrefix(target, SMGCache) }

// pinned returns a command on one CPU.
func pinned(cpu, exe string, args []string) (string, []string) {
	if cpu == "" {
		return exe, args
	}
	return "taskset", append([]string{"-c", cpu, exe}, args...)
}

// target is one started target.
type target struct {
	name  string
	addr  string // host:port
	child *proc.Process
	ready time.Duration // from its start
}

// fleet is all of one round's programs.
type fleet struct {
	workers []string // host:port
	others  []*proc.Process
	client  *client
	targets map[string]*target
}

func (f *fleet) close() {
	for _, t := range f.targets {
		if t.child != nil {
			t.child.Kill()
		}
	}
	if f.client != nil {
		f.client.close()
	}
	for _, p := range f.others {
		p.Kill()
	}
}

// start starts everything, one after the other. What it returns is to be closed, with an
// error too.
func (p *programs) start(ctx context.Context) (*fleet, error) {
	f := &fleet{targets: make(map[string]*target, len(p.o.Targets))}
	port, err := publish.FreePorts(workers + 2*len(p.o.Targets))
	if err != nil {
		return f, err
	}
	at := func(i int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port+i)) }
	for i := range workers {
		f.workers = append(f.workers, at(i))
		exe, args := pinned(p.othersOn, p.self, []string{"gatewaybench", RoleWorker, at(i)})
		child, err := proc.Start(exe, nil, args...)
		if err != nil {
			return f, err
		}
		f.others = append(f.others, child)
		if _, err := awaitReady(ctx, child, "http://"+at(i)+"/health", time.Now()); err != nil {
			return f, err
		}
	}
	if f.client, err = p.startClient(); err != nil {
		return f, err
	}
	for i, name := range p.o.Targets {
		t := &target{name: name, addr: at(workers + 2*i)}
		f.targets[name] = t
		if name == Direct {
			t.addr = f.workers[0]
			continue
		}
		if err := p.startTarget(ctx, t, port+workers+2*i, f.workers); err != nil {
			return f, fmt.Errorf("%s: %w", name, err)
		}
	}
	return f, nil
}

// startTarget starts a gateway at port, which may use the one after it, too.
func (p *programs) startTarget(ctx context.Context, t *target, port int, workers []string) error {
	var exe string
	var args []string
	ready := "/readyz"
	switch t.name {
	case Ours:
		exe, args = p.gateway, []string{"--listen", t.addr}
		for _, w := range workers {
			args = append(args, "--worker", "http://"+w)
		}
		args = append(args, p.o.Gateway...)
	case Bare:
		exe, args = p.self, append([]string{"gatewaybench", RoleBare, t.addr}, workers...)
	default:
		exe, ready = p.smg, "/readiness"
		args = []string{
			"launch", "--host", "127.0.0.1", "--port", strconv.Itoa(port), "--prometheus-host", "127.0.0.1", "--prometheus-port", strconv.Itoa(port + 1),
			"--disable-tokenizer-autoload", "--policy", map[bool]string{true: "round_robin", false: "cache_aware"}[strings.HasPrefix(t.name, SMGTurns)],
		}
		if t.name == SMGCache || t.name == SMGTurns {
			args = append(args, "--log-level", "warn")
		}
		args = append(args, "--worker-urls")
		for _, w := range workers {
			args = append(args, "http://"+w)
		}
	}
	exe, args = pinned(p.gatewayOn, exe, args)
	began := time.Now()
	var err error
	if t.child, err = proc.Start(exe, nil, args...); err != nil {
		return err
	}
	t.ready, err = awaitReady(ctx, t.child, "http://"+t.addr+ready, began)
	return err
}

// awaitReady asks until 200 comes back, and returns how long after began that was.
func awaitReady(ctx context.Context, child *proc.Process, url string, began time.Time) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	asks := &http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	tick := time.NewTicker(readyPoll)
	defer tick.Stop()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
		if err != nil {
			return 0, err
		}
		if resp, err := asks.Do(req); err == nil {
			_ = resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return time.Since(began), nil
			}
		}
		if err := child.Ended(); err != nil {
			return 0, err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return 0, fmt.Errorf("%s: not ready: %w", url, ctx.Err())
		}
	}
}

// costOf is what a process and all its children have used.
func costOf(pid int) (proc.Cost, error) {
	sum, err := proc.CostOf(pid)
	if err != nil {
		return sum, err
	}
	lists, _ := filepath.Glob(filepath.Join("/proc", strconv.Itoa(pid), "task", "*", "children"))
	for _, list := range lists {
		b, _ := os.ReadFile(list) //nolint:gosec // of /proc
		for word := range strings.FieldsSeq(string(b)) {
			child, err := strconv.Atoi(word)
			if err != nil {
				continue
			}
			c, err := costOf(child)
			if errors.Is(err, os.ErrNotExist) {
				continue // ended meanwhile
			}
			if err != nil {
				return sum, err
			}
			sum.CPU, sum.RSS = sum.CPU+c.CPU, sum.RSS+c.RSS
		}
	}
	return sum, nil
}
