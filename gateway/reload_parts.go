// SPDX-License-Identifier: Apache-2.0

// Before: reload.go, with what the configuration says now. After: the parts.

package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"

	"kindex/gateway/fleet"
)

// reloads counts what became of them.
type reloads struct{ done, failed atomic.Uint64 }

// watchConfig reads the configuration again on each signal, and when its file changes,
// until ctx ends.
func (g *Gateway) watchConfig(ctx context.Context, args []string, signals <-chan string) {
	r := &reloader{args: args, log: g.log, audit: &g.gate.audit, workers: configured{g}, apply: g.apply, last: g.cfg}
	changed := make(chan string, 1)
	if g.cfg.file != "" {
		g.background.Go(func() {
			watchFile(ctx, g.cfg.file, g.log, func() {
				select {
				case changed <- "file":
				case <-ctx.Done():
				}
			})
		})
	}
	for {
		var why string
		select {
		case <-ctx.Done():
			return
		case why = <-signals:
			if err := g.access.reopen(); err != nil {
				g.log.Warn("the access log cannot be opened again", "error", err)
			}
		case why = <-changed:
		}
		if r.reload(why) == nil {
			g.reloads.done.Add(1)
		} else {
			g.reloads.failed.Add(1)
		}
	}
}

// apply takes over the settings of c that are reloadable.
func (g *Gateway) apply(c *Config) {
	g.live.Store(c)
	if g.level != nil {
		g.level.Set(c.LogLevel)
	}
	g.admit.Set(c.admitOptions())
	if err := g.watch.Set(c.healthOptions(g.log)); err != nil {
		g.log.Warn("thresholds", "error", err) // they were checked
	}
	g.front.retries.Store(int64(c.Retries))
	if g.rpc != nil {
		g.rpc.SetRetries(c.Retries)
	}
}

// configured are the workers, as a configuration changes them.
type configured struct{ g *Gateway }

func (c configured) add(s fleet.Spec) error {
	reg, err := c.g.prober.Register(s)
	if errors.Is(err, fleet.ErrExists) && leaving(reg) { // it drains, and is wanted again
		return c.replace(s)
	}
	return err
}

func (c configured) replace(s fleet.Spec) error {
	if reg := c.g.fleet.Get(s.URL); reg != nil {
		if _, err := c.g.fleet.Remove(reg.ID); err != nil && !errors.Is(err, fleet.ErrUnknown) {
			return err
		}
	}
	_, err := c.g.prober.Register(s)
	return err
}

func (c configured) update(s fleet.Spec) error {
	if err := s.Validate(); err != nil {
		return err
	}
	reg := c.g.fleet.Get(s.URL)
	if reg == nil {
		return fmt.Errorf("%s: %w", s.URL, fleet.ErrUnknown)
	}
	_, err := c.g.fleet.Update(reg.ID, func(t *fleet.Terms) error { *t = s.Terms; return nil })
	return err
}

func (c configured) remove(url string) error {
	reg := c.g.fleet.Get(url)
	if reg == nil {
		c.g.log.Log(context.Background(), slog.LevelDebug, "a worker that the configuration no longer has was removed before", "url", url)
		return nil
	}
	_, err := c.g.fleet.Drain(reg.ID, c.g.live.Load().DrainTimeout)
	return err
}
