// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"
)

// client asks an index host by the field's HTTP contract: ours and the peer's
// alike, byte for byte the same requests.
type client struct {
	base   string
	http   http.Client
	header map[string]string // of each request
}

func newClient(port int) *client {
	return &client{base: fmt.Sprintf("http://127.0.0.1:%d", port), http: http.Client{Timeout: 10 * time.Second}}
}

// registration is the body of /register, with the fields that both know.
type registration struct {
	Instance int    `json:"instance_id"`
	Endpoint string `json:"endpoint"`
	Replay   string `json:"replay_endpoint,omitempty"`
	Model    string `json:"model_name"`
	Block    int    `json:"block_size"`
	Rank     int    `json:"dp_rank"`
}

// question is the body of /query and /query_by_hash.
type question struct {
	Model  string   `json:"model_name"`
	Tokens []uint32 `json:"token_ids,omitempty"`
	Hashes []int64  `json:"block_hashes,omitempty"`
	LoRA   string   `json:"lora_name,omitempty"`
	Salt   string   `json:"cache_salt,omitempty"`

	prompt []uint32 // what Hashes were made of, or Tokens
}

// reply is the answer to a question; all counts are tokens.
type reply struct {
	Scores    map[string]map[string]int `json:"scores"`
	Instances map[string]instance       `json:"instances"`
}

// instance is what one worker holds of the question.
type instance struct {
	Longest  int            `json:"longest_matched"`
	GPU      int            `json:"gpu"`
	CPU      int            `json:"cpu"`
	Disk     int            `json:"disk"`
	Ranks    map[string]int `json:"dp"`
	Degraded bool           `json:"degraded"`
}

// worker is one entry of /workers, with the fields that ours adds.
type worker struct {
	Instance  json.Number         `json:"instance_id"`
	Status    string              `json:"status"`
	Listeners map[string]listener `json:"listeners"`
}

type listener struct {
	Status   string  `json:"status"`
	LastSeq  *uint64 `json:"last_seq"`
	Epoch    uint64  `json:"epoch"`
	Gaps     uint64  `json:"gaps"`
	Lost     uint64  `json:"lost_batches"`
	Restarts uint64  `json:"restarts"`
	Error    string  `json:"last_error"`
}

// call makes one request and decodes a 2xx reply into out, unless that is nil.
func (c *client) call(method, path string, body, out any) (status int, err error) {
	var in io.Reader
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return 0, err
		}
		in = bytes.NewReader(data)
	}
	req, err := http.NewRequest(method, c.base+path, in)
	if err != nil {
		return 0, err
	}
	req.Header.Set("Content-Type", "application/json")
	for name, value := range c.header {
		req.Header.Set(name, value)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return 0, err
	}
	defer func() { _ = resp.Body.Close() }()
	data, err := io.ReadAll(resp.Body)
	switch {
	case err != nil:
		return resp.StatusCode, err
	case resp.StatusCode/100 != 2:
		return resp.StatusCode, fmt.Errorf("%s %s: %d %.300s", method, path, resp.StatusCode, data)
	case out != nil:
		if err := json.Unmarshal(data, out); err != nil {
			return resp.StatusCode, fmt.Errorf("%s %s: %w in %.300s", method, path, err, data)
		}
	}
	return resp.StatusCode, nil
}

// must is call where anything but the wanted status ends the test.
func (c *client) must(t *testing.T, want int, method, path string, body, out any) {
	t.Helper()
	got, err := c.call(method, path, body, out)
	if got != want {
		t.Fatalf("%s%s: got status %d (%v), want %d", c.base, path, got, err, want)
	}
}

// ask puts q to /query, or to /query_by_hash when it has hashes.
func (c *client) ask(t *testing.T, q *question) reply {
	t.Helper()
	path := "/query"
	if q.Hashes != nil {
		path = "/query_by_hash"
	}
	var r reply
	c.must(t, http.StatusOK, http.MethodPost, path, q, &r)
	return r
}

// eventually polls ok until it holds, or ends the test with what it last said.
func eventually(t *testing.T, limit time.Duration, what string, ok func() (bool, string)) {
	t.Helper()
	deadline := time.Now().Add(limit)
	for pause := time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		good, said := ok()
		switch {
		case good:
			return
		case time.Now().After(deadline):
			t.Fatalf("%s: not within %v: %s", what, limit, said)
		}
		time.Sleep(pause)
	}
}

// awaitUp waits until GET /health is answered with 200, or says why not.
func (c *client) awaitUp(t *testing.T, p *process, limit time.Duration) {
	t.Helper()
	eventually(t, limit, p.name+" to serve", func() (bool, string) {
		if p.exited() {
			t.Fatalf("%s ended: %s", p.name, p.tail())
		}
		_, err := c.call(http.MethodGet, "/health", nil, nil)
		return err == nil, fmt.Sprint(err)
	})
}

// awaitSeq waits until every listener of the instance in model has applied up to
// seq, and is exact. It needs fields that only our host has.
func (c *client) awaitSeq(t *testing.T, model string, seqs map[string]uint64) {
	t.Helper()
	eventually(t, 20*time.Second, "the index host to apply", func() (bool, string) {
		var ws []worker
		if _, err := c.call(http.MethodGet, "/workers?model_name="+model, nil, &ws); err != nil {
			return false, err.Error()
		}
		if len(ws) != 1 {
			return false, fmt.Sprintf("%d workers", len(ws))
		}
		for rank, want := range seqs {
			l := ws[0].Listeners[rank]
			if l.LastSeq == nil || *l.LastSeq != want || l.Status != "active" {
				return false, fmt.Sprintf("rank %s, want %d: %+v", rank, want, l)
			}
		}
		return true, ""
	})
}
