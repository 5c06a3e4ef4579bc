// SPDX-License-Identifier: Apache-2.0

// Before: the gateway's own word. After: table.go.

package whole

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

const (
	askTime   = 2 * time.Second
	maxAnswer = 16 << 20 // bytes
	metrics   = "kindex_gateway_"
)

// worker is one entry of a gateway's /workers.
type worker struct {
	ID       string   `json:"id"`
	Name     string   `json:"name"`
	URL      string   `json:"url"`
	Model    string   `json:"model_id"`
	Status   string   `json:"status"`
	Vetoes   []string `json:"vetoes"`
	InFlight int64    `json:"in_flight"`
	Load     *struct {
		Loads []struct {
			Running int64   `json:"num_running_reqs"`
			Waiting int64   `json:"num_waiting_reqs"`
			Usage   float64 `json:"token_usage"`
		} `json:"loads"`
	} `json:"engine_load"`
}

// label is what people call it.
func (w *worker) label() string {
	if w.Name != "" {
		return w.Name
	}
	return w.ID
}

// state is how it stands, with all that is held against it.
func (w *worker) state() string {
	return strings.Join(append([]string{w.Status}, w.Vetoes...), ",")
}

// load adds up its ranks; usage is the fullest one's.
func (w *worker) load() (running, waiting int64, usage float64) {
	if w.Load == nil {
		return 0, 0, 0
	}
	for i := range w.Load.Loads {
		l := &w.Load.Loads[i]
		running, waiting, usage = running+l.Running, waiting+l.Waiting, max(usage, l.Usage)
	}
	return running, waiting, usage
}

// gatewayView is what a gateway says of itself at one time.
type gatewayView struct {
	workers []worker
	metrics map[string]float64 // by name and labels, as they are written, their prefix left out
}

// of returns a metric of one worker.
func (g *gatewayView) of(w *worker, name string) float64 {
	return g.metrics[name+"{worker="+strconv.Quote(w.URL)+"}"]
}

// tokens returns one kind of what answers told of caches.
func (g *gatewayView) tokens(kind string) float64 {
	return g.metrics["cache_tokens_total{kind="+strconv.Quote(kind)+"}"]
}

// sum adds up a metric over all its labels.
func (g *gatewayView) sum(name string) (all float64) {
	for k, v := range g.metrics {
		if strings.HasPrefix(k, name+"{") {
			all += v
		}
	}
	return all
}

// look asks a gateway.
func look(ctx context.Context, url string) (*gatewayView, error) {
	g := &gatewayView{metrics: map[string]float64{}}
	b, err := get(ctx, url+"/workers")
	if err != nil {
		return nil, err
	}
	var list struct {
		Workers []worker `json:"workers"`
	}
	if err := json.Unmarshal(b, &list); err != nil {
		return nil, fmt.Errorf("%s/workers: %w", url, err)
	}
	g.workers = list.Workers
	if b, err = get(ctx, url+"/metrics"); err != nil {
		return nil, err
	}
	for in := bufio.NewScanner(bytes.NewReader(b)); in.Scan(); {
		line, ours := strings.CutPrefix(in.Text(), metrics)
		at := strings.LastIndexByte(line, ' ')
		if !ours || at < 0 {
			continue
		}
		if v, err := strconv.ParseFloat(line[at+1:], 64); err == nil {
			g.metrics[line[:at]] = v
		}
	}
	return g, nil
}

func get(ctx context.Context, url string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %.200s", url, resp.Status, bytes.TrimSpace(b))
	}
	return b, err
}
