// SPDX-License-Identifier: Apache-2.0

package lookupbench

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"kindex/harness/proc"
	"kindex/harness/publish"
	"kindex/harness/pyenv"
	"kindex/indexsrv"
	"kindex/numa"
)

// How long hosts may take.
const (
	startTime  = time.Minute
	settleTime = time.Minute
)

// host is one index: a program, or this process.
type host struct {
	name   string
	proc   *proc.Process // nil: this process
	http   string        // host:port
	grpc   string        // "": none
	socket string        // "": none
	index  *indexsrv.Host
	served chan struct{}         // closed when it has ended
	fault  atomic.Pointer[error] // why it ended, of this process's
	end    context.CancelFunc
}

// hosts are all that the arms ask.
type hosts struct {
	dir                         string
	process, pinned, ours, peer *host  // nil: no arm asks it
	cpus                        [2]int // the pinned host's, and its client's
}

func (h *hosts) all() []*host {
	return slices.DeleteFunc([]*host{h.process, h.pinned, h.ours, h.peer}, func(x *host) bool { return x == nil })
}

// hostOf says which host an arm asks.
func (h *hosts) hostOf(arm string) **host {
	switch {
	case arm == ArmProcess, arm == ArmWord:
		return &h.process
	case arm == ArmShmPinned:
		return &h.pinned
	case strings.HasPrefix(arm, "dynamo-"):
		return &h.peer
	default:
		return &h.ours
	}
}

// startHosts starts what the arms need. Arms that this machine has no room for are
// returned, each with the reason.
func startHosts(ctx context.Context, arms []string) (h *hosts, left map[string]string, err error) {
	h, left = &hosts{}, map[string]string{}
	defer func() {
		if err != nil {
			h.close()
		}
	}()
	if h.dir, err = os.MkdirTemp("", "lookupbench"); err != nil {
		return h, left, err
	}
	for _, arm := range arms {
		if arm == ArmShmPinned || arm == ArmWord {
			if why := h.twoCores(); why != "" {
				left[arm] = why
				continue
			}
		}
		at := h.hostOf(arm)
		if *at != nil {
			continue
		}
		switch at {
		case &h.process:
			*at, err = startInProcess()
		case &h.pinned:
			*at, err = h.startPinned()
		case &h.peer:
			*at, err = startPeer(ctx)
		default:
			*at, err = h.startOurs()
		}
		if err == nil {
			err = (*at).up(ctx)
		}
		if err != nil {
			return h, left, fmt.Errorf("%s: %w", arm, err)
		}
	}
	return h, left, nil
}

// twoCores chooses the two cores that spin, or says why there are none.
func (h *hosts) twoCores() string {
	t, err := numa.Discover("/")
	if err != nil {
		return err.Error()
	}
	if _, err := exec.LookPath("taskset"); err != nil {
		return "taskset (util-linux) is missing"
	}
	for _, n := range t.Nodes {
		if len(n.CPUs) >= 2 {
			// The first and the last are not two threads of one core where there are more.
			h.cpus = [2]int{n.CPUs[0], n.CPUs[len(n.CPUs)-1]}
			return ""
		}
	}
	return "no memory node has two CPUs for this process"
}

func startInProcess() (*host, error) {
	cfg := indexsrv.DefaultConfig()
	cfg.Listen = "127.0.0.1:0"
	x, err := indexsrv.New(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	if err := x.Listen(); err != nil {
		return nil, errors.Join(err, x.Close())
	}
	ctx, end := context.WithCancel(context.Background())
	h := &host{name: "this process", index: x, http: x.Addr().String(), served: make(chan struct{}), end: end}
	go func() {
		defer close(h.served)
		if err := x.Serve(ctx); err != nil {
			h.fault.Store(&err)
		}
	}()
	return h, nil
}

// startOurs starts the program, whose threads sleep while they wait.
func (h *hosts) startOurs() (*host, error) {
	port, err := publish.FreePorts(2)
	if err != nil {
		return nil, err
	}
	x := &host{
		name: "indexsrv", http: fmt.Sprintf("127.0.0.1:%d", port), grpc: fmt.Sprintf("127.0.0.1:%d", port+1),
		socket: filepath.Join(h.dir, "sleep"),
	}
	return x.program(nil, nil, "--listen", x.http, "--grpc-listen", x.grpc, "--shm-listen", x.socket, "--shm-wait", "sleep")
}

// startPinned starts it on a core of its own, where its thread spins.
func (h *hosts) startPinned() (*host, error) {
	port, err := publish.FreePorts(1)
	if err != nil {
		return nil, err
	}
	x := &host{name: "indexsrv, spinning", http: fmt.Sprintf("127.0.0.1:%d", port), socket: filepath.Join(h.dir, "spin")}
	// The program sees one CPU; its other threads are not to wait for the one that spins.
	return x.program([]string{"taskset", "-c", fmt.Sprint(h.cpus[0])}, []string{"GOMAXPROCS=2"},
		"--listen", x.http, "--shm-listen", x.socket, "--shm-wait", "spin")
}

// program starts indexsrv with args, below the program that before is.
func (x *host) program(before, env []string, args ...string) (*host, error) {
	path, err := proc.Find("indexsrv")
	if err != nil {
		return nil, err
	}
	line := slices.Concat(before, []string{path}, args)
	x.proc, err = proc.Start(line[0], env, line[1:]...)
	return x, err
}

// startPeer starts Dynamo's indexer as its package does.
func startPeer(ctx context.Context) (*host, error) {
	python, err := pyenv.Dynamo.Python(ctx)
	if err != nil {
		return nil, err
	}
	port, err := publish.FreePorts(1)
	if err != nil {
		return nil, err
	}
	p, err := proc.Start(python, nil, "-m", "dynamo.indexer", "--port", fmt.Sprint(port))
	return &host{name: "dynamo.indexer", proc: p, http: fmt.Sprintf("127.0.0.1:%d", port)}, err
}

// up waits until the host serves.
func (x *host) up(ctx context.Context) error {
	err := proc.Until(ctx, startTime, func() bool {
		if x.ended() != nil {
			return true
		}
		_, _, err := call(ctx, http.MethodGet, "http://"+x.http+"/health", nil)
		return err == nil
	})
	return errors.Join(err, x.ended())
}

func (x *host) ended() error {
	if x.proc != nil {
		return x.proc.Ended()
	}
	if err := x.fault.Load(); err != nil {
		return *err
	}
	return nil
}

// pid is the process that works for this host.
func (x *host) pid() int {
	if x.proc == nil {
		return os.Getpid()
	}
	return x.proc.PID()
}

// register registers all publishers.
func (x *host) register(ctx context.Context, at []string) error {
	for i, endpoint := range at {
		status, text, err := call(ctx, http.MethodPost, "http://"+x.http+"/register", map[string]any{
			"instance_id": i + 1, "endpoint": endpoint, "model_name": modelName, "block_size": blockTokens, "dp_rank": 0,
		})
		if err != nil {
			return err
		}
		if status != http.StatusCreated {
			return fmt.Errorf("%s: register: %d %s", x.name, status, text)
		}
	}
	return nil
}

// settled waits until the host answers every question right.
func (x *host) settled(ctx context.Context, qs []question) error {
	next := 0
	err := proc.Until(ctx, settleTime, func() bool {
		for ; next < len(qs); next++ {
			_, text, err := call(ctx, http.MethodPost, "http://"+x.http+"/query_by_hash", rawJSON(qs[next].hash))
			if err != nil || !qs[next].right(text) {
				return x.ended() != nil
			}
		}
		return true
	})
	if err != nil {
		_, text, _ := call(ctx, http.MethodPost, "http://"+x.http+"/query_by_hash", rawJSON(qs[next].hash))
		err = fmt.Errorf("%s: question %d is not answered right: %w: %.300s, want %v", x.name, next, err, text, qs[next].scores)
	}
	return errors.Join(err, x.ended())
}

// rawJSON is a body that is JSON already.
type rawJSON []byte

// MarshalJSON implements json.Marshaler.
func (r rawJSON) MarshalJSON() ([]byte, error) { return r, nil }

func (h *hosts) close() {
	for _, x := range h.all() {
		switch {
		case x.proc != nil:
			x.proc.Kill()
		case x.end != nil:
			x.end()
			<-x.served
		}
	}
	if h.dir != "" {
		_ = os.RemoveAll(h.dir)
	}
}

// cost sums up what all programs used, this process left out.
func (h *hosts) cost() (sum time.Duration, err error) {
	for _, x := range h.all() {
		if x.proc != nil {
			c, err := proc.CostOf(x.pid())
			if err != nil {
				return 0, err
			}
			sum += c.CPU
		}
	}
	return sum, nil
}
