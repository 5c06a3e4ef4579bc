// SPDX-License-Identifier: Apache-2.0

// Before: a turn of the prober. After: the engine's HTTP server.

package enroll

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"

	"kindex/gateway/fleet"
	"kindex/gateway/upstream"
)

// Bounds of what is read of an engine, in bytes.
const (
	maxAnswer  = 1 << 20
	maxMetrics = 8 << 20
)

// errNotHTTP is wrapped where somebody answers, in another tongue.
var errNotHTTP = errors.New("it does not speak HTTP/1.1")

// caller asks one engine over HTTP.
type caller struct {
	p   *Prober
	ctx context.Context //nolint:containedctx // of one turn
	w   *fleet.Worker

	silent bool // it did not answer a question, which is not to say that it knows none
}

// askHTTP finds out what an HTTP server says of itself.
// Source of the routes: vLLM 0.32, SGLang 0.5.23.
func (p *Prober) askHTTP(ctx context.Context, reg *fleet.Registration) (*found, error) {
	given := reg.Given()
	w := fleet.NewWorker(reg.ID, given)
	defer p.get.Forget(w)
	defer w.SetState(fleet.Removed) // it never was; nothing is kept for it
	c := &caller{p: p, ctx: ctx, w: w}
	f := &found{url: given.URL}
	if err := c.models(f); err != nil {
		return nil, err
	}
	c.version(f)
	info := c.serverInfo(f)
	if info != nil && f.engine == "" {
		f.engine = fleet.SGLang // vLLM has none of its own kind
	}
	if f.engine != fleet.SGLang && (f.ranks == 0 || f.blockSize == 0) {
		c.metrics(f)
	}
	f.silent = c.silent
	return f, ctx.Err()
}

// json asks for path and decodes the answer into v.
func (c *caller) json(path string, v any) error {
	status, body, err := c.p.get.Get(c.ctx, c.w, path, maxAnswer)
	c.silent = c.silent || err != nil || status >= 500
	switch {
	case err != nil:
		if notHTTP(err) {
			return fmt.Errorf("%w: %w", errNotHTTP, err)
		}
		return err
	case status == 401 || status == 403:
		return fmt.Errorf("GET %s: status %d: api_key is missing or not the engine's", path, status)
	case status != 200:
		return fmt.Errorf("GET %s: status %d", path, status)
	}
	if err := json.Unmarshal(body, v); err != nil {
		return fmt.Errorf("GET %s: not the JSON that engines answer: %w", path, err)
	}
	return nil
}

// notHTTP reports whether err can be that of a server that speaks HTTP/2 alone: it
// answers what is no HTTP/1.1, or closes.
func notHTTP(err error) bool {
	e, ok := errors.AsType[*upstream.Error](err)
	return ok && (e.Kind == upstream.Malformed || e.Kind == upstream.Closed)
}

// models asks which models and adapters there are, and what they say of the engine.
func (c *caller) models(f *found) error {
	var list struct {
		Data []struct {
			ID      string  `json:"id"`
			OwnedBy string  `json:"owned_by"`
			Parent  *string `json:"parent"`
		} `json:"data"`
	}
	if err := c.json("/v1/models", &list); err != nil {
		return err
	}
	for _, m := range list.Data {
		if m.ID == "" || len(f.models)+len(f.adapters) >= fleet.MaxModelsPerSpec {
			continue
		}
		if m.Parent != nil && *m.Parent != "" && *m.Parent != m.ID {
			if f.adapters == nil {
				f.adapters = make(map[string]string)
			}
			f.adapters[m.ID] = *m.Parent
			continue
		}
		f.models = append(f.models, m.ID)
		if o := strings.ToLower(m.OwnedBy); o == fleet.VLLM || o == fleet.SGLang {
			f.engine = o
		}
	}
	if len(f.models) == 0 {
		return errors.New("GET /v1/models: it serves no model")
	}
	for name, base := range f.adapters { // of a base that is listed under another name
		known := false
		for _, m := range f.models {
			known = known || m == base
		}
		if !known {
			f.adapters[name] = f.models[0]
		}
	}
	return nil
}

// version asks vLLM for its version.
func (c *caller) version(f *found) {
	var v struct {
		Version string `json:"version"`
	}
	if f.engine == fleet.SGLang || c.json("/version", &v) != nil {
		return
	}
	f.version = v.Version
	if f.engine == "" && v.Version != "" {
		f.engine = fleet.VLLM
	}
}

// serverInfo is what of SGLang's answer says how it is routed to.
type serverInfo struct {
	Version  string `json:"version"`
	DPSize   int    `json:"dp_size"`
	PageSize int    `json:"page_size"`
	Events   *struct {
		Publisher  string `json:"publisher"`
		Host       string `json:"endpoint_host"`
		Port       int    `json:"endpoint_port_base"`
		ReplayPort int    `json:"replay_endpoint_port_base"`
		BlockSize  int    `json:"block_size"`
		DPSize     int    `json:"dp_size"`
	} `json:"kv_events"`
}

// serverInfo asks how the server was started, where it says so; nil: it does not.
func (c *caller) serverInfo(f *found) *serverInfo {
	var info serverInfo
	if c.json("/server_info", &info) != nil && c.json("/get_server_info", &info) != nil {
		return nil
	}
	if info.DPSize == 0 && info.PageSize == 0 && info.Events == nil {
		return nil // vLLM's of its development mode
	}
	if f.version == "" {
		f.version = info.Version
	}
	f.ranks, f.blockSize = max(info.DPSize, 0), max(info.PageSize, 0)
	e := info.Events
	if e == nil || e.Publisher != "" && e.Publisher != "zmq" || e.Port <= 0 || e.Port > 65_535 {
		return &info
	}
	if e.BlockSize > 0 {
		f.blockSize = e.BlockSize
	}
	host := e.Host
	if wildcard(host) {
		host = hostOf(f.url)
	}
	f.events.Endpoint = "tcp://" + net.JoinHostPort(host, strconv.Itoa(e.Port))
	if e.ReplayPort > 0 && e.ReplayPort <= 65_535 {
		f.events.Replay = "tcp://" + net.JoinHostPort(host, strconv.Itoa(e.ReplayPort))
	}
	return &info
}

// wildcard reports whether a server that says so is bound to every address.
func wildcard(host string) bool {
	ip := net.ParseIP(strings.Trim(host, "[]"))
	return host == "" || host == "*" || ip != nil && ip.IsUnspecified()
}

func hostOf(at string) string {
	u, err := url.Parse(at)
	if err != nil {
		return ""
	}
	return u.Hostname()
}

// cacheConfig is the metric in which vLLM tells each rank's block size.
const cacheConfig = "vllm:cache_config_info{"

// metrics counts vLLM's ranks and reads their block size.
func (c *caller) metrics(f *found) {
	status, body, err := c.p.get.Get(c.ctx, c.w, "/metrics", maxMetrics)
	c.silent = c.silent || err != nil || status >= 500
	if err != nil || status != 200 {
		return
	}
	ranks := 0
	lines := bufio.NewScanner(bytes.NewReader(body))
	lines.Buffer(nil, 1<<16)
	for lines.Scan() {
		line := lines.Text()
		if !strings.HasPrefix(line, cacheConfig) {
			continue
		}
		if n, err := strconv.Atoi(label(line, "block_size")); err == nil && n > 0 && f.blockSize == 0 {
			f.blockSize = n
		}
		if n, err := strconv.Atoi(label(line, "engine")); err == nil && n >= 0 && n < fleet.MaxRanks {
			ranks = max(ranks, n+1)
		}
	}
	if f.ranks == 0 {
		f.ranks = ranks
	}
}

// label returns a label's value of a metric's line; "": it has none.
func label(line, name string) string {
	for _, before := range []string{"{", ","} {
		if _, rest, ok := strings.Cut(line, before+name+`="`); ok {
			value, _, _ := strings.Cut(rest, `"`)
			return value
		}
	}
	return ""
}
