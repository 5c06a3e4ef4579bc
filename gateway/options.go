// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"log/slog"

	"github.com/valyala/fasthttp"

	"kindex/gateway/admit"
	"kindex/gateway/health"
)

// healthOptions are a watch's, as c has them.
func (c *HealthConfig) healthOptions(log *slog.Logger) health.Options {
	o := health.DefaultOptions()
	o.StallAfter, o.WedgeAfter, o.StaleAfter = c.StallAfter, c.WedgeAfter, c.StaleAfter
	o.OverloadUsage, o.OverloadWaiting, o.OverloadShed = c.OverloadUsage, int64(c.OverloadWaiting), c.OverloadShed
	o.ProbeInterval, o.ProbeTimeout, o.ProbeFailures, o.ProbeSuccesses = c.ProbeInterval, c.ProbeTimeout, c.ProbeFailures, c.ProbeSuccesses
	o.BreakerFailures, o.BreakerOpen, o.BreakerSuccesses = c.BreakerFailures, c.BreakerOpen, c.BreakerSuccesses
	o.Log = log
	return o
}

func (c *RouteConfig) admitOptions() admit.Options {
	return admit.Options{Limit: c.MaxInflight, Queue: c.Queue, Wait: c.QueueTimeout}
}

// frontOptions are the front's at the data address.
func (g *Gateway) frontOptions() frontOptions {
	c := g.cfg
	o := frontOptions{
		Upstream: g.upstream, Router: g.sheds(g.spoken, g.router), Models: g.workers.ServedModels, Enter: g.enter, Ready: g.unready,
		OwnsAuthorization: g.gate.ownsAuthorization(), Tracing: g.tracing, Answered: g.answered, Mounts: g.mounts(&g.data),
		Retries: c.Retries, FirstByte: c.AnswerTimeout, Stall: c.StallTimeout, Pool: g.spoken.Pool, StandsStill: g.watch.StandsStill,
		WriteStall: c.WriteStallTimeout, ReadTimeout: c.ReadTimeout, IdleTimeout: c.IdleTimeout,
		MaxBody: int(c.MaxBodyBytes), MaxHead: int(c.MaxHeaderBytes),
	}
	if g.gate.authenticated() {
		o.Authorize = func(rc *fasthttp.RequestCtx, path string) bool {
			_, no := g.gate.admit(rc, &g.data, path, accessAsk)
			if no != nil {
				g.deny(rc, no)
			}
			return no == nil
		}
	}
	return o
}

// answered hears of each request at its end.
func (g *Gateway) answered(t *answered) {
	g.asked.Add(1)
	g.met.request(t)
	g.access.request(t)
	g.faults.request(t)
}
