// SPDX-License-Identifier: Apache-2.0

package live

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

// client asks an index host over HTTP.
//
// Concurrency: any goroutine.
type client struct {
	url  string
	http http.Client
}

func newClient(addr string) *client {
	return &client{url: "http://" + addr, http: http.Client{Timeout: 10 * time.Second}}
}

// maxAnswer bounds what is read of an answer.
const maxAnswer = 64 << 20

// call makes one request and decodes the answer into out, unless that is nil.
func (c *client) call(ctx context.Context, method, path string, in, out any) error {
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.url+path, body)
	if err != nil {
		return err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	switch {
	case err != nil:
		return err
	case resp.StatusCode/100 != 2:
		return fmt.Errorf("%s %s: %s: %.500s", method, path, resp.Status, bytes.TrimSpace(b))
	case out == nil:
		return nil
	}
	if text, ok := out.(*string); ok {
		*text = string(b)
		return nil
	}
	if err := json.Unmarshal(b, out); err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	return nil
}

// registration is the body of /register.
type registration struct {
	ID        string `json:"instance_id"`
	Endpoint  string `json:"endpoint"`
	Replay    string `json:"replay_endpoint,omitempty"`
	Model     string `json:"model_name"`
	BlockSize int    `json:"block_size"`
	Ranks     int    `json:"dp_size"`
	Engine    string `json:"engine"`
}

// worker is one entry of /workers.
type worker struct {
	ID        json.RawMessage     `json:"instance_id"`
	Status    string              `json:"status"`
	Model     string              `json:"model_name"`
	BlockSize int                 `json:"block_size"`
	Listeners map[string]listener `json:"listeners"`
}

// name returns the instance's id as people write it.
func (w *worker) name() string { return strings.Trim(string(w.ID), `"`) }

// listener is one rank of a worker.
type listener struct {
	Endpoint    string  `json:"endpoint"`
	Status      string  `json:"status"`
	LastSeq     *uint64 `json:"last_seq"`
	Epoch       uint64  `json:"epoch"`
	Gaps        uint64  `json:"gaps"`
	Recovered   uint64  `json:"recovered_batches"`
	Lost        uint64  `json:"lost_batches"`
	Restarts    uint64  `json:"restarts"`
	Orphans     uint64  `json:"orphans"`
	Memberships uint64  `json:"memberships"`
	LastError   string  `json:"last_error"`
}

func (c *client) workers(ctx context.Context) ([]worker, error) {
	var out []worker
	err := c.call(ctx, http.MethodGet, "/workers", nil, &out)
	return out, err
}

// query is the body of /query.
type query struct {
	Tokens    []uint32 `json:"token_ids"`
	Model     string   `json:"model_name"`
	Salt      string   `json:"cache_salt,omitempty"`
	LoRA      string   `json:"lora_name,omitempty"`
	ExtraKeys [][]any  `json:"extra_keys,omitempty"`
	Instances []string `json:"instances,omitempty"`
}

// answer is the reply: tokens, by instance and rank.
type answer struct {
	Scores    map[string]map[string]int `json:"scores"` // on the device
	Instances map[string]struct {
		Longest int            `json:"longest_matched"` // in any local tier
		DP      map[string]int `json:"dp"`
	} `json:"instances"`
}

func (c *client) ask(ctx context.Context, q query) (answer, error) {
	var out answer
	err := c.call(ctx, http.MethodPost, "/query", q, &out)
	return out, err
}

// streamKey names a stream of the metrics.
type streamKey struct{ instance, rank string }

// gauges reads one gauge of every stream from /metrics.
func (c *client) gauges(ctx context.Context, name string) (map[streamKey]float64, error) {
	var text string
	if err := c.call(ctx, http.MethodGet, "/metrics", nil, &text); err != nil {
		return nil, err
	}
	out := map[streamKey]float64{}
	for in := bufio.NewScanner(strings.NewReader(text)); in.Scan(); {
		rest, ok := strings.CutPrefix(in.Text(), name+"{")
		if !ok {
			continue
		}
		labels, value, ok := strings.Cut(rest, "} ")
		if !ok {
			continue
		}
		v, err := strconv.ParseFloat(value, 64)
		if err == nil {
			out[streamKey{label(labels, "instance_id"), label(labels, "dp_rank")}] = v
		}
	}
	return out, nil
}

// label returns one label's value.
func label(labels, name string) string {
	_, rest, ok := strings.Cut(","+labels, ","+name+`="`)
	if !ok {
		return ""
	}
	value, _, _ := strings.Cut(rest, `"`)
	return value
}
