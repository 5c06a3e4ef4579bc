// SPDX-License-Identifier: Apache-2.0

package gatewayreplay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"kindex/harness/proc"
	"kindex/harness/publish"
	"kindex/harness/pyenv"
)

const (
	model     = "mock"
	block     = 16 // tokens
	startTime = 60 * time.Second
	settle    = time.Second // from ready workers to the first request
	maxPage   = 8 << 20
)

// programs are what runs start.
type programs struct {
	gateway, engines, index, smg string
	dir                          string // of sockets, the tokenizer and its words
}

func find(ctx context.Context, o *Options) (p *programs, err error) {
	p = &programs{}
	if p.dir, err = os.MkdirTemp("", "gatewayreplay"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close())
		}
	}()
	if p.engines, err = proc.Find("mockworker"); err != nil {
		return nil, err
	}
	if err := writeTokenizer(p.dir); err != nil {
		return nil, err
	}
	for _, v := range o.Variants {
		switch {
		case peer(v):
			python, err := pyenv.SMG.Python(ctx)
			if err != nil {
				return nil, err
			}
			p.smg = filepath.Join(filepath.Dir(python), "smg")
			continue
		case v == RemoteShm || v == RemoteGRPC:
			if p.index, err = proc.Find("indexsrv"); err != nil {
				return nil, err
			}
		}
		if p.gateway, err = proc.Find("gateway"); err != nil {
			return nil, err
		}
	}
	return p, nil
}

func (p *programs) close() error { return os.RemoveAll(p.dir) }

// rig is what one run stands on.
type rig struct {
	engines, index, gateway *proc.Process
	first                   int    // the lowest port
	addr, admin             string // host:port of the gateway and of the engines' admin
	ready                   time.Duration
}

// Ports of a rig, above the first one.
const (
	portGateway = iota
	portMetrics
	portAdmin
	portIndex
	portIndexGRPC
	portEngines
)

func (r *rig) at(i int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(r.first+i)) }

// engine returns where worker i has what: its HTTP, gRPC, event and replay ports lie
// apart by the number of workers.
func (r *rig) engine(o *Options, what, i int) string { return r.at(portEngines + what*o.Workers + i) }

const (
	engineHTTP = iota
	engineGRPC
	engineEvents
	engineReplay
	enginePorts
)

// start starts a variant's rig. What it returns is to be closed, with an error too.
func (p *programs) start(ctx context.Context, o *Options, variant string) (*rig, error) {
	r := &rig{}
	var err error
	if r.first, err = publish.FreePorts(portEngines + enginePorts*o.Workers); err != nil {
		return r, err
	}
	r.addr, r.admin = r.at(portGateway), r.at(portAdmin)
	if r.engines, err = proc.Start(p.engines, nil, "--fleet", strconv.Itoa(o.Workers), "--engine", "vllm", "--model", model, "--model-path", p.dir,
		"--http", r.engine(o, engineHTTP, 0), "--grpc", r.engine(o, engineGRPC, 0), "--pub", "tcp://"+r.engine(o, engineEvents, 0), "--replay", "tcp://"+r.engine(o, engineReplay, 0),
		"--admin", r.admin, "--context", strconv.Itoa(o.Context), "--blocks", strconv.Itoa(o.Blocks), "--block", strconv.Itoa(block), "--vocabulary", strconv.Itoa(words)); err != nil {
		return r, err
	}
	for i := range o.Workers {
		if err := await(ctx, r.engines, "http://"+r.engine(o, engineHTTP, i)+"/health", nil); err != nil {
			return r, err
		}
	}
	if err := p.startIndex(ctx, o, variant, r); err != nil {
		return r, err
	}
	began := time.Now()
	if err := p.startGateway(o, variant, r); err != nil {
		return r, err
	}
	if err := r.healthy(ctx, o, variant); err != nil {
		return r, err
	}
	r.ready = time.Since(began)
	return r, pause(ctx, settle)
}

func (r *rig) close() {
	for _, p := range []*proc.Process{r.gateway, r.index, r.engines} {
		if p != nil {
			p.Kill()
		}
	}
}

// startIndex starts the index host of a variant that has one beside the gateway.
func (p *programs) startIndex(ctx context.Context, o *Options, variant string, r *rig) error {
	if variant != RemoteShm && variant != RemoteGRPC {
		return nil
	}
	args := []string{"--listen", r.at(portIndex), "--grpc-listen", r.at(portIndexGRPC), "--shm-listen", p.socket(r)}
	for i := range o.Workers {
		args = append(args, "--worker", fmt.Sprintf("%d=tcp://%s,replay=tcp://%s,model=%s,block=%d", i, r.engine(o, engineEvents, i), r.engine(o, engineReplay, i), model, block))
	}
	var err error
	if r.index, err = proc.Start(p.index, nil, args...); err != nil {
		return err
	}
	return await(ctx, r.index, "http://"+r.at(portIndex)+"/readyz", nil)
}

func (p *programs) socket(r *rig) string { return filepath.Join(p.dir, strconv.Itoa(r.first)+".sock") }

func (p *programs) startGateway(o *Options, variant string, r *rig) (err error) {
	if peer(variant) {
		args := []string{
			"launch", "--host", "127.0.0.1", "--port", strconv.Itoa(r.first + portGateway), "--prometheus-host", "127.0.0.1", "--prometheus-port", strconv.Itoa(r.first + portMetrics),
			"--policy", "cache_aware", "--log-level", "warn",
		}
		scheme, what := "http://", engineHTTP
		if variant == SMGGRPC {
			scheme, what = "grpc://", engineGRPC
			args = append(args, "--backend", "vllm", "--model-path", p.dir, "--kv-index", "chain")
		} else {
			args = append(args, "--disable-tokenizer-autoload")
		}
		args = append(args, "--worker-urls")
		for i := range o.Workers {
			args = append(args, scheme+r.engine(o, what, i))
		}
		r.gateway, err = proc.Start(p.smg, nil, args...)
		return err
	}
	args := []string{"--listen", r.addr}
	for i := range o.Workers {
		w := "http://" + r.engine(o, engineHTTP, i)
		switch variant {
		case Chain, ChainText, Positional:
			w += fmt.Sprintf(",events=tcp://%s,replay=tcp://%s", r.engine(o, engineEvents, i), r.engine(o, engineReplay, i))
		case RemoteShm, RemoteGRPC:
			w += fmt.Sprintf(",instance=%d,block=%d", i, block)
		}
		args = append(args, "--worker", w)
	}
	switch variant {
	case Positional:
		args = append(args, "--kv-index", "positional")
	case RemoteShm:
		args = append(args, "--kv-index", "remote", "--index", "unix:"+p.socket(r))
	case RemoteGRPC:
		args = append(args, "--kv-index", "remote", "--index", r.at(portIndexGRPC))
	case LeastLoad:
		args = append(args, "--kv-index", "none", "--policy", "least_load")
	case RoundRobin:
		args = append(args, "--kv-index", "none", "--policy", "round_robin")
	}
	r.gateway, err = proc.Start(p.gateway, nil, append(args, o.Gateway...)...)
	return err
}

// healthy waits until the gateway sends requests to every worker.
func (r *rig) healthy(ctx context.Context, o *Options, variant string) error {
	url, count := "http://"+r.addr+"/workers", func(body []byte) int {
		var said struct {
			Stats struct {
				Healthy int `json:"healthy_workers"`
			} `json:"stats"`
		}
		_ = json.Unmarshal(body, &said) // not ready then
		return said.Stats.Healthy
	}
	if peer(variant) {
		url, count = "http://"+r.addr+"/readiness", func(body []byte) int {
			var said struct {
				Healthy int `json:"healthy_workers"`
			}
			_ = json.Unmarshal(body, &said) // the same
			return said.Healthy
		}
	}
	return await(ctx, r.gateway, url, func(body []byte) bool { return count(body) == o.Workers })
}

// await asks until 200 comes back with a body that is good.
func await(ctx context.Context, child *proc.Process, url string, good func([]byte) bool) error {
	var last error
	err := proc.Until(ctx, startTime, func() bool {
		var body []byte
		if body, last = get(ctx, url); last == nil && good != nil && !good(body) {
			last = fmt.Errorf("%s: not yet: %.200s", url, body)
		}
		return last == nil || child.Ended() != nil
	})
	if ended := child.Ended(); ended != nil {
		return ended
	}
	if err != nil {
		return fmt.Errorf("%w: %w", err, last)
	}
	return nil
}

var asking = http.Client{Timeout: 5 * time.Second}

// get reads a page.
func get(ctx context.Context, url string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, err
	}
	resp, err := asking.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxPage))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("GET %s: status %d", url, resp.StatusCode)
	}
	return body, err
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
