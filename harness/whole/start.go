// SPDX-License-Identifier: Apache-2.0

// Before: run.go. After: the programs, which find one another by what stands here.

package whole

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"kindex/asm"
	"kindex/harness/live"
	"kindex/harness/mockworker/engine"
	"kindex/harness/proc"
	"kindex/harness/publish"
)

// The mock engines' caches and contexts: the trace's longest prompts fit.
const (
	mockBlocks  = 32_768
	mockContext = 131_072 // tokens
)

// start starts all programs and waits until they are ready.
func (r *run) start(ctx context.Context) error {
	args := []string{"--policy", r.cfg.Policy, "--drain-timeout", "2s"}
	if len(r.cfg.Workers) > 0 {
		for _, w := range r.cfg.Workers {
			args = append(args, "--worker", w)
		}
		return r.startGateway(ctx, args)
	}
	ready, err := r.startEngines(ctx)
	if err != nil {
		return err
	}
	relay, err := r.startRelay(ctx, ready.Workers)
	if err != nil {
		return err
	}
	socket, err := r.startIndex(ctx, ready, relay)
	if err != nil {
		return err
	}
	args = append(args, "--kv-index", "remote", "--index", "unix:"+socket)
	for i := range ready.Workers {
		args = append(args, "--worker", fmt.Sprintf("http://%s,relay=127.0.0.1:%d,name=%s,instance=%s", ready.Workers[i].HTTP, relay+i, name(i), name(i)))
	}
	return r.startGateway(ctx, args)
}

// name is what every program calls engine i.
func name(i int) string { return "w" + strconv.Itoa(i) }

// startEngines starts the mock engines, one process for all.
func (r *run) startEngines(ctx context.Context) (*engine.Ready, error) {
	p, err := proc.Talk(r.cfg.program("mockworker"), "--engine", engine.VLLM, "--fleet", strconv.Itoa(r.cfg.Engines),
		"--speed", fmt.Sprint(r.cfg.Speed), "--blocks", strconv.Itoa(mockBlocks), "--context", strconv.Itoa(mockContext),
		"--http", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--pub", "tcp://127.0.0.1:0", "--replay", "tcp://127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	r.procs = append(r.procs, p)
	said := make(chan *engine.Ready, 1)
	go func() {
		var ready engine.Ready
		if json.NewDecoder(p.Out).Decode(&ready) == nil {
			said <- &ready
		}
		_, _ = io.Copy(io.Discard, p.Out) // nothing more is said
		p.Wait()
	}()
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	select {
	case ready := <-said:
		if len(ready.Workers) == 0 { // a fleet of one
			ready.Workers = []engine.Ready{*ready}
		}
		r.admin = "http://" + ready.Admin
		return ready, nil
	case <-p.Done():
		return nil, p.Ended()
	case <-ctx.Done():
		return nil, fmt.Errorf("mockworker is not ready: %w", ctx.Err())
	}
}

// startRelay starts one relay for all engines and returns the first one's port.
func (r *run) startRelay(ctx context.Context, engines []engine.Ready) (int, error) {
	port, err := publish.FreePorts(len(engines) + 1)
	if err != nil {
		return 0, err
	}
	status := fmt.Sprintf("127.0.0.1:%d", port+len(engines))
	args := []string{"--listen", fmt.Sprintf("127.0.0.1:%d", port), "--http", status}
	for i := range engines {
		e := &engines[i]
		args = append(args, "--engine", fmt.Sprintf("vllm=%s,replay=%s,metrics=http://%s,name=%s", e.Pub[0], e.Replay[0], e.HTTP, name(i)))
	}
	return port, r.startProgram(ctx, "relay", "http://"+status, args)
}

// startIndex starts an index host that follows the relay, and returns the socket of its
// shared memory.
func (r *run) startIndex(ctx context.Context, ready *engine.Ready, relay int) (string, error) {
	addr, err := r.freePort("--listen", r.cfg.Listen)
	if err != nil {
		return "", err
	}
	if r.dir, err = os.MkdirTemp("", "kindex-run"); err != nil {
		return "", err
	}
	socket := filepath.Join(r.dir, "index.sock")
	args := []string{"--listen", addr, "--shm-listen", socket, "--cpu-features", asm.Level()}
	for i := range ready.Workers {
		args = append(args, "--worker", fmt.Sprintf("%s=127.0.0.1:%d,source=relay,model=mock,block=%d", name(i), relay+i, ready.BlockSize))
	}
	r.index = "http://" + addr
	return socket, r.startProgram(ctx, "indexsrv", r.index, args)
}

func (r *run) startGateway(ctx context.Context, args []string) error {
	addr, err := r.freePort("--gateway", r.cfg.Gateway)
	if err != nil {
		return err
	}
	r.gateway = "http://" + addr
	return r.startProgram(ctx, "gateway", r.gateway, append([]string{"--listen", addr}, args...))
}

// freePort returns addr, or says that it is taken and which is not.
func (r *run) freePort(flag, addr string) (string, error) {
	got, err := live.FreePort(flag, addr)
	if err == nil && got != addr {
		r.screen.Printf("%s is taken, %s is not\n", addr, got)
	}
	return got, err
}

// startProgram starts a program and waits until it says at url that it is ready.
func (r *run) startProgram(ctx context.Context, program, url string, args []string) error {
	p, err := proc.Start(r.cfg.program(program), nil, args...)
	if err != nil {
		return err
	}
	r.procs = append(r.procs, p)
	c := http.Client{Timeout: time.Second}
	defer c.CloseIdleConnections()
	why := ""
	err = proc.Until(ctx, startTime, func() bool {
		if p.Ended() != nil {
			return true
		}
		resp, err := c.Get(url + "/readyz")
		if err != nil {
			why = err.Error()
			return false
		}
		defer func() { _ = resp.Body.Close() }()
		b, _ := io.ReadAll(io.LimitReader(resp.Body, 500)) // what it is not ready for
		why = string(b)
		return resp.StatusCode == http.StatusOK
	})
	if end := p.Ended(); end != nil {
		return end
	}
	if err != nil {
		return fmt.Errorf("%s is not ready: %w: %s", program, err, why)
	}
	return nil
}
