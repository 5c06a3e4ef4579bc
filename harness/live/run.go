// SPDX-License-Identifier: Apache-2.0

package live

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"sync"
	"time"

	"kindex/asm"
	"kindex/harness/proc"
)

// run is one run.
type run struct {
	cfg     Config
	screen  *Screen
	host    *proc.Process
	client  *client
	engines []*engine
	readers sync.WaitGroup
	began   time.Time
}

// Run starts what cfg says, shows the table on out until ctx ends or the time is
// over, and stops all it started. An error is what went wrong on the way, or a
// prediction that nothing explains.
func Run(ctx context.Context, cfg Config, out io.Writer) (err error) {
	r := &run{cfg: cfg, screen: NewScreen(out), began: time.Now()}
	defer func() {
		if serr := r.stop(); err == nil {
			err = serr
		}
	}()
	if err := r.start(ctx); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	if cfg.For > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, cfg.For)
		defer cancel()
	}
	if err := r.show(ctx); err != nil {
		return err
	}
	for _, e := range r.engines {
		e.mu.Lock()
		wrong := e.counts.wrong
		e.mu.Unlock()
		if wrong > 0 {
			return fmt.Errorf("%s: %d predictions differ from the engine's number and no rule explains them", e.id, wrong)
		}
	}
	return nil
}

// start starts the host and the engines and tells where to ask.
func (r *run) start(ctx context.Context) error {
	addr, err := FreePort("--listen", r.cfg.Listen)
	if err != nil {
		return err
	}
	if addr != r.cfg.Listen {
		r.screen.Printf("%s is taken, %s is not\n", r.cfg.Listen, addr)
	}
	args := []string{"--listen", addr, "--cpu-features", asm.Level()}
	if r.cfg.Index != "" {
		args = append(args, "--kv-index", r.cfg.Index)
	}
	for _, w := range r.cfg.Workers {
		args = append(args, "--worker", w)
	}
	if r.host, err = proc.Start(filepath.Join(r.cfg.Bin, "indexsrv"), nil, args...); err != nil {
		return err
	}
	r.client = newClient(addr)
	err = proc.Until(ctx, 15*time.Second, func() bool {
		return r.host.Ended() != nil || r.client.call(ctx, "GET", "/health", nil, nil) == nil
	})
	if end := r.host.Ended(); end != nil {
		return end
	}
	if err != nil {
		return fmt.Errorf("indexsrv does not answer at %s: %w", addr, err)
	}
	if len(r.cfg.Workers) > 0 {
		r.screen.Printf("index host at %s\n  curl -s %s/workers\n", r.client.url, r.client.url)
		return nil
	}
	if err := r.play(ctx); err != nil {
		return err
	}
	r.screen.Printf("index host at %s, asked before every request of two recorded engines (a sample follows)\n  curl -s %s/workers\n", r.client.url, r.client.url)
	return nil
}

// play starts the engines, registers them and lets them go.
func (r *run) play(ctx context.Context) error {
	for _, e := range []struct{ id, model, path string }{
		{"vllm-1", "demo-vllm", r.cfg.VLLM},
		{"sglang-1", "demo-sglang", r.cfg.SGLang},
	} {
		en, err := startEngine(&r.cfg, e.id, e.model, e.path, r.client)
		if en != nil && en.proc != nil {
			r.engines = append(r.engines, en)
			r.readers.Go(func() { en.follow(ctx) })
		}
		if err != nil {
			return err
		}
	}
	for _, e := range r.engines {
		select {
		case ready := <-e.ready:
			if err := e.register(ctx, ready); err != nil {
				return fmt.Errorf("%s: %w", e.id, err)
			}
		case <-e.proc.Done():
			return e.proc.Ended()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	for _, e := range r.engines {
		if err := e.next(); err != nil {
			return err
		}
	}
	return nil
}

// stop ends all programs: the engines by their input's end, then the host.
func (r *run) stop() error {
	var errs []error
	for _, e := range r.engines {
		_ = e.proc.Stdin.Close()
		errs = append(errs, e.proc.Stop())
	}
	r.readers.Wait()
	if r.host != nil {
		errs = append(errs, r.host.Stop())
	}
	return errors.Join(errs...)
}

// sample returns a command that asks what an engine's last hit asked.
func (r *run) sample() string {
	for _, e := range r.engines {
		e.mu.Lock()
		q := e.sample
		e.mu.Unlock()
		if q == nil {
			continue
		}
		if b, err := json.Marshal(q); err == nil {
			return fmt.Sprintf("curl -s %s/query -d '%s'", r.client.url, b)
		}
	}
	return ""
}
