// SPDX-License-Identifier: Apache-2.0

// Before: gateway_faults.go. After: gateways, relays and live engines as processes;
// gateway_load.go, which asks them; gateway_judge.go.

package drill

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
	"strings"
	"sync"
	"time"

	"kindex/harness/mockworker/engine"
	"kindex/harness/proc"
	"kindex/harness/publish"
)

// The fleet of a gateway's drill, and the load of each gateway.
const (
	fleetSize   = 4
	fleetBlocks = 4_096
	fleetPass   = "6ms"
	askRate     = 25 // requests a second; two gateways ask
	askWarm     = 3 * time.Second
	askAfter    = 2500 * time.Millisecond // behind a fault
	// answerTime is what the gateways are given for the next byte of an answer, so that
	// every stream has an end that a drill can wait for.
	answerTime = 10 * time.Second
	// endTime bounds a request: that, and an answer from somebody else.
	endTime = answerTime + 2*time.Second
	// hangTime is when a client gives up, which none may have to.
	hangTime = 40 * time.Second
)

// gatewayRig is a fleet of live engines, a relay beside each, and two gateways: one
// whose index follows the engines' own sockets, and one that has events and loads from
// the relays. The first engine is the one that has the fault.
type gatewayRig struct {
	e       *Env
	net     *namespace // of the gateways; nil: this one
	engines []*liveEngine
	relays  []string // where each serves
	faces   []*gatewayFace
	dir     string
}

// gatewayFace is one gateway and its load.
type gatewayFace struct {
	r     *gatewayRig
	name  string // direct, relayed
	host  string
	args  []string
	index *indexHost // the host within the gateway
	load  *load
	watch *gatewayWatch
	log   string // its access log

	goroutines float64           // before the load
	ids        map[string]string // instance by worker id
}

// sick is the engine that has the fault.
func (r *gatewayRig) sick() *liveEngine { return r.engines[0] }

func workerName(i int) string { return "w" + strconv.Itoa(i) }

// gatewayRig starts everything, with caches of so many blocks, and waits until every
// gateway serves.
func (e *Env) gatewayRig(ctx context.Context, n *namespace, blocks int) (*gatewayRig, error) {
	r := &gatewayRig{e: e, net: n}
	var err error
	if r.dir, err = os.MkdirTemp("", "kindex-drill-"); err != nil {
		return nil, err
	}
	e.later(func() error { return os.RemoveAll(r.dir) })
	for i := range fleetSize {
		host := "127.0.0.1"
		switch { // only the first one lies behind the switch that can lose everything
		case n != nil && i == 0:
			host = n.address(0, 1)
		case n != nil:
			host = n.address(1, 1)
		}
		l, err := e.startEngineAt(ctx, host, blocks, fleetPass)
		if err != nil {
			return nil, err
		}
		r.engines = append(r.engines, l)
		at, err := r.relayBeside(ctx, l, workerName(i))
		if err != nil {
			return nil, err
		}
		r.relays = append(r.relays, at)
	}
	for _, name := range []string{"direct", "relayed"} {
		f, err := r.newFace(ctx, name, name == "relayed")
		if err != nil {
			return nil, err
		}
		r.faces = append(r.faces, f)
	}
	return r, nil
}

// warm has the load of all gateways begin, and run for a while.
func (r *gatewayRig) warm(ctx context.Context) error {
	for i, f := range r.faces {
		f.load.begin(ctx, askRate, r.e.o.Seed+uint64(i)<<32)
	}
	return pause(ctx, askWarm)
}

// relayBeside starts a relay beside an engine, and returns where it serves.
func (r *gatewayRig) relayBeside(ctx context.Context, l *liveEngine, name string) (string, error) {
	port, err := publish.FreePorts(2)
	if err != nil {
		return "", err
	}
	at := net.JoinHostPort(l.host, strconv.Itoa(port))
	beside := &relayed{e: r.e, http: net.JoinHostPort("127.0.0.1", strconv.Itoa(port+1))}
	beside.args = []string{
		"--engine", fmt.Sprintf("vllm=%s,replay=%s,ranks=1,name=%s,metrics=http://%s", l.Pub(), l.Replay(), name, l.api),
		"--listen", at, "--http", beside.http,
	}
	return at, beside.startRelay(ctx)
}

// newFace starts a gateway before the fleet, by relays or by the engines' sockets.
func (r *gatewayRig) newFace(ctx context.Context, name string, byRelay bool, flags ...string) (*gatewayFace, error) {
	port, err := publish.FreePorts(1)
	if err != nil {
		return nil, err
	}
	f := &gatewayFace{r: r, name: name, host: net.JoinHostPort(r.net.controlHost(), strconv.Itoa(port)), log: filepath.Join(r.dir, name+".log")}
	f.args = append([]string{
		"--listen", f.host, "--open-admin", "--access-log", f.log, "--log-queue", "65536", "--answer-timeout", answerTime.String(), "--log-level", "warn",
	}, flags...)
	for i, l := range r.engines {
		w := fmt.Sprintf("http://%s,instance=%s,model=%s,engine=vllm,block=%d", l.api, workerName(i), modelName, l.Block())
		if byRelay {
			w += fmt.Sprintf(",relay=%s,relay_name=%s", r.relays[i], workerName(i))
		} else {
			w += fmt.Sprintf(",events=%s,replay=%s", l.Pub(), l.Replay())
		}
		f.args = append(f.args, "--worker", w)
	}
	f.load = newLoad(name, "http://"+f.host, hangTime)
	if err := f.start(ctx); err != nil {
		return nil, err
	}
	f.watch = f.watched(ctx)
	r.e.later(func() error { f.load.end(); return nil })
	return f, nil
}

// start starts the gateway's process, and returns when it serves with all workers.
func (f *gatewayFace) start(ctx context.Context) error {
	h := &indexHost{url: "http://" + f.host + "/index", http: http.Client{Timeout: 10 * time.Second}, plant: f.r.e.o.plant, lie: f.r.e.o.lie}
	var err error
	if h.proc, err = f.r.e.startIn(f.r.net, "gateway", f.args...); err != nil {
		return err
	}
	f.r.e.later(func() error { h.http.CloseIdleConnections(); return nil })
	f.index = h
	err = proc.Until(ctx, startTime, func() bool {
		if h.proc.Ended() != nil {
			return true
		}
		all, err := f.workers(ctx)
		if err != nil {
			return false
		}
		for i := range all {
			if !all[i].well() {
				return false
			}
		}
		return len(all) == len(f.r.engines)
	})
	if ended := h.proc.Ended(); ended != nil {
		return ended
	}
	if err != nil {
		return fmt.Errorf("%s: the gateway does not serve: %w", f.name, err)
	}
	all, err := f.workers(ctx)
	if err != nil {
		return err
	}
	f.ids = map[string]string{}
	for i := range all {
		f.ids[all[i].ID] = all[i].Instance
	}
	f.goroutines, err = f.gauge(ctx, "go_goroutines")
	return err
}

// gatewayWorker is a worker as the gateway tells of it.
type gatewayWorker struct {
	ID       string   `json:"id"`
	Instance string   `json:"instance_id"`
	Status   string   `json:"status"`
	Vetoes   []string `json:"vetoes"`
	InFlight int64    `json:"in_flight"`
	Holders  []struct {
		InFlight int64 `json:"in_flight"`
		Prefill  int64 `json:"prefill_tokens_in_flight"`
		Streams  int64 `json:"streams"`
		Unread   int64 `json:"in_flight_not_in_reading"`
	} `json:"holders"`
}

// well reports whether requests go to it as to any other one.
func (w *gatewayWorker) well() bool {
	for _, v := range w.Vetoes {
		if v != "overloaded" {
			return false
		}
	}
	return w.Status == "ready"
}

// workers asks for all workers.
func (f *gatewayFace) workers(ctx context.Context) ([]gatewayWorker, error) {
	var all struct {
		Workers []gatewayWorker `json:"workers"`
	}
	err := f.get(ctx, "/workers", func(r io.Reader) error { return json.NewDecoder(r).Decode(&all) })
	return all.Workers, err
}

func (f *gatewayFace) get(ctx context.Context, path string, read func(io.Reader) error) error {
	h := indexHost{url: "http://" + f.host, http: f.index.http}
	return h.call(ctx, http.MethodGet, path, nil, read)
}

// gauge reads one metric without labels.
func (f *gatewayFace) gauge(ctx context.Context, name string) (float64, error) {
	all, err := f.gauges(ctx)
	if err != nil {
		return 0, err
	}
	v, ok := all[name]
	if !ok {
		return 0, fmt.Errorf("%s: there is no metric %s", f.name, name)
	}
	return v, nil
}

// gauges reads all metrics, by name with labels.
func (f *gatewayFace) gauges(ctx context.Context) (map[string]float64, error) {
	out := map[string]float64{}
	err := f.get(ctx, "/metrics", func(r io.Reader) error {
		b, err := io.ReadAll(r)
		for line := range strings.Lines(string(b)) {
			at := strings.LastIndexByte(line, ' ')
			if at < 0 || line[0] == '#' {
				continue
			}
			if v, err := strconv.ParseFloat(strings.TrimSpace(line[at+1:]), 64); err == nil {
				out[line[:at]] = v
			}
		}
		return err
	})
	return out, err
}

// each does something of every gateway at once and says whose errors are whose.
func (r *gatewayRig) each(do func(f *gatewayFace) error) error {
	_, err := r.tell(func(f *gatewayFace) (string, error) { return "", do(f) })
	return err
}

// tell is each with something to say of every gateway, in their order.
func (r *gatewayRig) tell(do func(f *gatewayFace) (string, error)) (string, error) {
	said, errs := make([]string, len(r.faces)), make([]error, len(r.faces))
	var all sync.WaitGroup
	for i, f := range r.faces {
		all.Go(func() {
			text, err := do(f)
			if text != "" {
				said[i] = f.name + ": " + text
			}
			if err != nil {
				errs[i] = fmt.Errorf("%s: %w", f.name, err)
			}
		})
	}
	all.Wait()
	var out []string
	for _, s := range said {
		if s != "" {
			out = append(out, s)
		}
	}
	return strings.Join(out, "; "), errors.Join(errs...)
}

// fault sets a fault of the sick engine, with its settings as a query.
func (r *gatewayRig) fault(ctx context.Context, kind string) error {
	l := r.sick()
	return l.ask(ctx, http.MethodPost, l.admin+"/admin/fault/"+engineName+"/"+kind, nil, nil)
}

// effects returns what a kind of fault has done so far.
func (r *gatewayRig) effects(ctx context.Context, kind string) (uint64, error) {
	l := r.sick()
	var all map[string]map[string]engine.FaultState
	err := l.ask(ctx, http.MethodGet, l.admin+"/admin/faults", nil, &all)
	return all[engineName][kind].Effects, err
}
