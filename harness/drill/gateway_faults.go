// SPDX-License-Identifier: Apache-2.0

// Before: drill.go. After: gateway.go, which has the fleet and its gateways.

package drill

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"time"

	"kindex/harness/mockworker/engine"
	"kindex/harness/proc"
)

// What the gateway's rules allow, beside the index's.
const (
	deadTimeout   = 2500 * time.Millisecond // killed, or refusing connections
	wedgeTimeout  = 4500 * time.Millisecond // silent: the bound of 3 s, and 1.5 s
	returnTimeout = time.Second             // from well again to the first new request
	gatewayHeal   = 3 * time.Second         // a partition goes on so long past exclusion
	gatewayDown   = 4 * time.Second         // an engine that is killed or refuses
)

// gatewayDrills break a worker of a gateway's fleet, the gateway itself, and their
// events. Each has two gateways before one fleet of four live engines, one of which has
// the fault: direct, whose index follows the engines' own sockets, and relayed, behind a
// relay beside each engine.
var gatewayDrills = []Drill{
	{
		"gateway-engine-killed",
		"one of four engines is killed with -9 under load and started again 4 s later with nothing cached: no new request is given to it 2.5 s into the fault, and one within 1 s of its being well; all are answered but streams that had begun there; each ends within 12 s" + afterwards,
		gatewayEngineKilled,
	},
	{
		"gateway-engine-restarted",
		"one of four engines is killed with -9 under load and started again at once with nothing cached: one new request is given to it within 1 s of its being well; all are answered but streams that had begun there; each ends within 12 s" + afterwards,
		gatewayEngineRestarted,
	},
	{
		"gateway-engine-unreachable",
		"one of four engines closes its connections and its listener for 4 s and publishes on: no new request is given to it 2.5 s into the fault, and one within 1 s of its listening; all are answered but streams that had begun there; each ends within 12 s" + afterwards,
		gatewayEngineUnreachable,
	},
	{
		"gateway-engine-partitioned",
		"every packet between the gateways and one of four engines, with its relay, is lost until 3 s past its exclusion (a network namespace): no new request is given to it 4.5 s into the fault, and one within 1 s of the heal; all are answered but streams that had begun there; each ends within 12 s" + afterwards,
		func(ctx context.Context, e *Env) (string, error) { return gatewayPartitioned(ctx, e, 0) },
	},
	{
		"gateway-engine-partitioned-long",
		"every packet between the gateways and one of four engines, with its relay, is lost for 45 s (a network namespace): as of the short one" + afterwards,
		func(ctx context.Context, e *Env) (string, error) { return gatewayPartitioned(ctx, e, longCut) },
	},
	{
		"gateway-engine-paused",
		"one of four engines computes nothing for 8 s and answers probes: no new request is given to it 4.5 s into the fault, and one within 1 s of its end; all are answered, each within 12 s" + afterwards,
		gatewayEnginePaused,
	},
	{
		"gateway-engine-frozen",
		"one of four engines is stopped for 8 s (SIGSTOP): no new request is given to it 4.5 s into the fault, and one within 1 s of its end; all are answered, each within 12 s" + afterwards,
		gatewayEngineFrozen,
	},
	{
		"gateway-batches-dropped",
		"20 batches of one engine are lost on the wire and kept for replay: all requests are answered" + afterwards,
		func(ctx context.Context, e *Env) (string, error) {
			return gatewayEvents(ctx, e, engine.FaultDrop, fmt.Sprintf("batches=%d&keep=1", dropped), dropped, 0)
		},
	},
	{
		"gateway-publisher-delayed",
		"every batch of one engine comes 1.5 s late for 4 s: all requests are answered" + afterwards,
		func(ctx context.Context, e *Env) (string, error) {
			return gatewayEvents(ctx, e, engine.FaultDelay, fmt.Sprintf("ms=%d", delayBy.Milliseconds()), 1, delayFor)
		},
	},
	{
		"gateway-publisher-restarted",
		"one engine's publisher restarts with its cache kept, numbers from 0 and tells none of it again: all requests are answered; gauges are 0 within 1 s of the last; of the other engines the index holds the truth; what answers told is expected of the same prompt's next one",
		func(ctx context.Context, e *Env) (string, error) {
			return gatewayEvents(ctx, e, engine.FaultRestart, "cache=kept", 1, 0)
		},
	},
	{
		"gateway-cpu-starved",
		"two busy programs for each CPU run beside for 15 s: all requests are answered, each within 12 s" + afterwards,
		gatewayStarved,
	},
	{"gateway-restarted", gatewayRestartedRule, gatewayRestarted},
	{"overload", overloadRule, overload},
}

const afterwards = "; gauges are 0 within 1 s of the last and were never below; within 1 s the index holds each engine's truth, and then answers report what was foretold"

// finish has the load go on for a while, ends it, and judges what o allowed.
func (r *gatewayRig) finish(ctx context.Context, o *outage, forgets bool) (string, error) {
	for _, f := range r.faces {
		f.watch.expect(o.well)
	}
	if err := pause(ctx, askAfter); err != nil {
		return "", err
	}
	after, serr := r.settle(ctx, forgets)
	said, err := r.tell(func(f *gatewayFace) (string, error) {
		all := f.load.ended()
		tries, terr := f.tries()
		answered, aerr := f.answers(o, all, tries)
		if o.out > 0 || o.back > 0 {
			routed, rerr := f.routing(o, all, tries)
			return routed + ", " + answered, errors.Join(terr, rerr, aerr)
		}
		return answered, errors.Join(terr, aerr)
	})
	if after != "" {
		said += "; at the end: " + after
	}
	return said, errors.Join(err, serr)
}

// begin starts a fleet and its gateways, with load, and arms the watches.
func (e *Env) beginGateway(ctx context.Context, n *namespace) (*gatewayRig, error) {
	r, err := e.gatewayRig(ctx, n, fleetBlocks)
	if err != nil {
		return nil, err
	}
	if err := r.warm(ctx); err != nil {
		return nil, err
	}
	for _, f := range r.faces {
		f.watch.arm()
	}
	return r, nil
}

func gatewayEngineKilled(ctx context.Context, e *Env) (string, error) {
	return killedEngine(ctx, e, gatewayDown, deadTimeout)
}

func gatewayEngineRestarted(ctx context.Context, e *Env) (string, error) {
	return killedEngine(ctx, e, 0, 0)
}

// killedEngine kills an engine and starts it again.
func killedEngine(ctx context.Context, e *Env, down, out time.Duration) (string, error) {
	r, err := e.beginGateway(ctx, nil)
	if err != nil {
		return "", err
	}
	o := outage{from: time.Now(), out: out, back: returnTimeout, breaks: true}
	r.sick().proc.Kill()
	if err := pause(ctx, down); err != nil {
		return "", err
	}
	if err := r.sick().start(ctx); err != nil {
		return "", err
	}
	if err := r.healthy(ctx); err != nil {
		return "", err
	}
	o.well = time.Now()
	return r.finish(ctx, &o, false)
}

// healthy waits until the sick engine's own server answers.
func (r *gatewayRig) healthy(ctx context.Context) error {
	l := r.sick()
	return proc.Until(ctx, startTime, func() bool {
		return l.ask(ctx, http.MethodGet, l.api+"/health", nil, nil) == nil
	})
}

func gatewayEngineUnreachable(ctx context.Context, e *Env) (string, error) {
	return e.faulty(ctx, "refuse?on=1", gatewayDown, "refuse?on=0", outage{out: deadTimeout, back: returnTimeout, breaks: true})
}

func gatewayEnginePaused(ctx context.Context, e *Env) (string, error) {
	return e.faulty(ctx, "pause", pausedFor, "resume", outage{out: wedgeTimeout, back: returnTimeout})
}

// faulty has an engine have a fault for a while.
func (e *Env) faulty(ctx context.Context, fault string, d time.Duration, end string, o outage) (string, error) {
	r, err := e.beginGateway(ctx, nil)
	if err != nil {
		return "", err
	}
	o.from = time.Now()
	if err := r.fault(ctx, fault); err != nil {
		return "", err
	}
	if err := pause(ctx, d); err != nil {
		return "", err
	}
	if err := r.fault(ctx, end); err != nil {
		return "", err
	}
	o.well = time.Now()
	return r.finish(ctx, &o, false)
}

func gatewayEngineFrozen(ctx context.Context, e *Env) (string, error) {
	r, err := e.beginGateway(ctx, nil)
	if err != nil {
		return "", err
	}
	o := outage{from: time.Now(), out: wedgeTimeout, back: returnTimeout}
	if err := r.sick().proc.Freeze(); err != nil {
		return "", err
	}
	// One that ends while it is stopped goes on to be ended.
	defer func() { _ = r.sick().proc.Thaw() }()
	if err := pause(ctx, frozenFor); err != nil {
		return "", err
	}
	if err := r.sick().proc.Thaw(); err != nil {
		return "", err
	}
	o.well = time.Now()
	return r.finish(ctx, &o, false)
}

// gatewayPartitioned cuts one engine off for so long; 0: until a while past exclusion.
func gatewayPartitioned(ctx context.Context, e *Env, d time.Duration) (string, error) {
	n, err := e.openNamespace(ctx)
	if err != nil {
		return "", fmt.Errorf("no network can be made here: %w", err)
	}
	r, err := e.beginGateway(ctx, n)
	if err != nil {
		return "", err
	}
	o := outage{from: time.Now(), out: wedgeTimeout, back: returnTimeout, breaks: true}
	if err := n.cut(ctx); err != nil {
		return "", err
	}
	if d > 0 {
		err = pause(ctx, d)
	} else {
		err = r.pastExclusion(ctx, o.from)
	}
	if err != nil {
		return "", err
	}
	o.well = time.Now()
	if err := n.heal(ctx); err != nil {
		return "", err
	}
	return r.finish(ctx, &o, false)
}

// pastExclusion waits until every gateway passes the sick engine over, and a while more.
func (r *gatewayRig) pastExclusion(ctx context.Context, from time.Time) error {
	_ = proc.Until(ctx, startTime, func() bool {
		for _, f := range r.faces {
			if _, ok := f.watch.excluded(); !ok {
				return false
			}
		}
		return true
	}) // one that is never passed over is the judge's to tell
	return pause(ctx, max(gatewayHeal, time.Until(from.Add(wedgeTimeout+time.Second))))
}

// gatewayEvents has one engine's events have a fault, for so long and until it has had so
// many effects.
func gatewayEvents(ctx context.Context, e *Env, kind, how string, effects uint64, d time.Duration) (string, error) {
	r, err := e.beginGateway(ctx, nil)
	if err != nil {
		return "", err
	}
	o := outage{from: time.Now()}
	if err := r.fault(ctx, kind+"?"+how); err != nil {
		return "", err
	}
	if err := pause(ctx, d); err != nil {
		return "", err
	}
	done := uint64(0)
	if err := proc.Until(ctx, startTime, func() bool {
		done, err = r.effects(ctx, kind)
		return err == nil && done >= effects
	}); err != nil {
		return "", fmt.Errorf("waiting for %d effects of %s, of %d: %w", effects, kind, done, err)
	}
	if err := r.fault(ctx, "clear"); err != nil {
		return "", err
	}
	o.well = time.Now()
	said, err := r.finish(ctx, &o, kind == engine.FaultRestart)
	return fmt.Sprintf("%s: %d; %s", kind, done, said), err
}

func gatewayStarved(ctx context.Context, e *Env) (string, error) {
	r, err := e.beginGateway(ctx, nil)
	if err != nil {
		return "", err
	}
	o := outage{from: time.Now()}
	var loops []*proc.Process
	for range 2 * runtime.NumCPU() {
		p, err := proc.Start("/bin/sh", nil, "-c", "while :; do :; done")
		if err != nil {
			return "", err
		}
		e.later(func() error { p.Kill(); return nil })
		loops = append(loops, p)
	}
	if err := pause(ctx, starvedFor); err != nil {
		return "", err
	}
	for _, p := range loops {
		p.Kill()
	}
	o.well = time.Now()
	return r.finish(ctx, &o, false)
}
