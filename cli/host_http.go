// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"

	"kindex/internal/lookup"
)

// httpHost is a host over HTTP.
type httpHost struct {
	base   string // scheme://host:port
	client *http.Client
	token  func() (string, error)
}

func newHTTPHost(base string, conf *tls.Config, token func() (string, error)) *httpHost {
	t := &http.Transport{TLSClientConfig: conf, MaxIdleConnsPerHost: 2, ResponseHeaderTimeout: 0}
	return &httpHost{base, &http.Client{Transport: t}, token}
}

func (h *httpHost) name() string { return h.base }

func (h *httpHost) close() { h.client.CloseIdleConnections() }

// maxErrorBody is how much of a refusal is read.
const maxErrorBody = 64 << 10

// kindOf maps HTTP's statuses to kinds of errors.
var kindOf = map[int]error{
	http.StatusBadRequest: lookup.ErrInvalid, http.StatusRequestEntityTooLarge: lookup.ErrInvalid, http.StatusUnsupportedMediaType: lookup.ErrInvalid,
	http.StatusNotFound: lookup.ErrNotFound, http.StatusConflict: lookup.ErrConflict,
	http.StatusUnauthorized: lookup.ErrDenied, http.StatusForbidden: lookup.ErrDenied,
	http.StatusServiceUnavailable: lookup.ErrUnavailable, http.StatusGatewayTimeout: lookup.ErrDeadline, http.StatusRequestTimeout: lookup.ErrDeadline,
}

// ask returns the body of an answer that is no refusal.
func (h *httpHost) ask(ctx context.Context, method, path string, body []byte) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, method, h.base+path, bytes.NewReader(body))
	if err != nil {
		return nil, lookup.Refuse(lookup.ErrInvalid, "%v", err)
	}
	token, err := h.token()
	if err != nil {
		return nil, err
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := h.client.Do(req)
	if err != nil {
		return nil, h.unreached(ctx, err)
	}
	if resp.StatusCode == http.StatusOK {
		return resp.Body, nil
	}
	defer resp.Body.Close() //nolint:errcheck // it is thrown away
	var refusal struct {
		Error string `json:"error"`
	}
	text, _ := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody)) // what came of it
	if json.Unmarshal(text, &refusal) != nil || refusal.Error == "" {
		// Whatever it is, it is no host of ours, or an older one without this path.
		return nil, lookup.Refuse(lookup.ErrUnavailable, "%s %s answered %s: is it an index host of this version?", method, path, resp.Status)
	}
	kind := kindOf[resp.StatusCode]
	if kind == nil || kind == lookup.ErrNotFound && bytes.HasPrefix([]byte(refusal.Error), []byte("unknown path")) {
		kind = lookup.ErrUnavailable
	}
	return nil, &lookup.Refusal{Kind: kind, Text: refusal.Error}
}

// unreached is why there is no answer.
func (h *httpHost) unreached(ctx context.Context, err error) error {
	if ended := lookup.OfContext(ctx); ended != nil {
		return ended
	}
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err // without the URL, which the host's name has
	}
	return lookup.Refuse(lookup.ErrUnavailable, "%v", err)
}

// get decodes the answer to GET path into v.
func (h *httpHost) get(ctx context.Context, path string, v any) error {
	return h.decode(ctx, http.MethodGet, path, nil, v)
}

func (h *httpHost) decode(ctx context.Context, method, path string, body []byte, v any) error {
	answer, err := h.ask(ctx, method, path, body)
	if err != nil {
		return err
	}
	defer answer.Close() //nolint:errcheck // it was read
	if err := json.NewDecoder(io.LimitReader(answer, maxMessage)).Decode(v); err != nil {
		if ended := lookup.OfContext(ctx); ended != nil {
			return ended
		}
		return lookup.Refuse(lookup.ErrUnavailable, "%s: not the answer of an index host: %v", path, err)
	}
	return nil
}

// args are s's query arguments.
func (s *selection) args() url.Values {
	v := url.Values{}
	for name, text := range map[string]string{"model_name": s.Model, "routing_group": s.Group, "tenant_id": s.Tenant, "instance_id": s.instance} {
		if text != "" {
			v.Set(name, text)
		}
	}
	return v
}

// httpWorker is a worker as /workers shows it.
type httpWorker struct {
	Instance  lookup.ExplainedID      `json:"instance_id"`
	Source    string                  `json:"source"`
	Status    string                  `json:"status"`
	Model     string                  `json:"model_name"`
	Group     string                  `json:"routing_group"`
	Tenant    string                  `json:"tenant_id"`
	BlockSize int                     `json:"block_size"`
	Listeners map[string]httpListener `json:"listeners"`
}

type httpListener struct {
	Endpoint    string            `json:"endpoint"`
	Status      string            `json:"status"`
	LastSeq     *uint64           `json:"last_seq"`
	Epoch       uint64            `json:"epoch"`
	Gaps        uint64            `json:"gaps"`
	Recovered   uint64            `json:"recovered_batches"`
	Lost        uint64            `json:"lost_batches"`
	Restarts    uint64            `json:"restarts"`
	Duplicates  uint64            `json:"duplicates"`
	Snapshots   uint64            `json:"snapshots"`
	Resets      uint64            `json:"resets"`
	RelayRanks  int               `json:"relay_ranks"`
	Resumed     uint64            `json:"resumed"`
	Cold        string            `json:"cold_start"`
	Orphans     uint64            `json:"orphans"`
	Memberships uint64            `json:"memberships"`
	Dropped     map[string]uint64 `json:"dropped"`
	LastError   string            `json:"last_error"`
	Shard       int               `json:"shard"`
	Node        int               `json:"node"`
}

func (h *httpHost) workers(ctx context.Context, f lookup.Filter) ([]lookup.Worker, error) {
	var list []httpWorker
	s := selection{Filter: lookup.Filter{Model: f.Model, Group: f.Group}}
	if err := h.get(ctx, "/workers?"+s.args().Encode(), &list); err != nil {
		return nil, err
	}
	ws := []lookup.Worker{}
	for _, m := range list {
		if m.Tenant == "" {
			m.Tenant = lookup.DefaultName
		}
		if f.Tenant != "" && m.Tenant != f.Tenant {
			continue // the route takes no tenant
		}
		w := lookup.Worker{
			Instance: m.Instance.Text, Number: m.Instance.Number, Model: m.Model, Group: m.Group, Tenant: m.Tenant,
			BlockSize: m.BlockSize, Source: m.Source, Status: m.Status,
		}
		for number, l := range m.Listeners {
			rank, err := strconv.Atoi(number)
			if err != nil {
				return nil, lookup.Refuse(lookup.ErrUnavailable, "/workers: not the answer of an index host: rank %q", number)
			}
			r := lookup.Rank{
				Rank: rank, Endpoint: l.Endpoint, Status: l.Status, LastError: l.LastError, Epoch: l.Epoch,
				Gaps: l.Gaps, Recovered: l.Recovered, Lost: l.Lost, Restarts: l.Restarts, Duplicates: l.Duplicates,
				Snapshots: l.Snapshots, Resets: l.Resets, RelayRanks: l.RelayRanks, Resumed: l.Resumed, Cold: l.Cold,
				Orphans: l.Orphans, Memberships: l.Memberships, Dropped: l.Dropped, Shard: l.Shard, Node: l.Node,
			}
			if r.HasSeq = l.LastSeq != nil; r.HasSeq {
				r.LastSeq = *l.LastSeq
			}
			w.Ranks = append(w.Ranks, r)
		}
		slices.SortFunc(w.Ranks, func(a, b lookup.Rank) int { return a.Rank - b.Rank })
		ws = append(ws, w)
	}
	return ws, nil
}

func (h *httpHost) explain(ctx context.Context, q *lookup.Query) (*lookup.Explanation, error) {
	ask := map[string]any{"model_name": q.Model}
	for name, text := range map[string]string{"routing_group": q.Group, "tenant_id": q.Tenant, "lora_name": q.LoRA, "cache_salt": q.Salt} {
		if text != "" {
			ask[name] = text
		}
	}
	if q.Tokens != nil {
		ask["token_ids"] = q.Tokens
	} else {
		ask["block_hashes"] = q.Hashes
	}
	if q.Limit > 0 {
		ask["max_results"] = q.Limit
	}
	if q.Only != nil {
		ask["instances"] = q.Only
	}
	body, err := json.Marshal(ask)
	if err != nil {
		return nil, fmt.Errorf("BUG: cli: a query is no JSON: %w", err)
	}
	e := &lookup.Explanation{}
	if err := h.decode(ctx, http.MethodPost, "/explain", body, e); err != nil {
		return nil, err
	}
	return e, nil
}

func (h *httpHost) dump(ctx context.Context, s selection, into dumpSink) error {
	args := s.args()
	args.Set("format", "ndjson")
	answer, err := h.ask(ctx, http.MethodGet, "/dump?"+args.Encode(), nil)
	if err != nil {
		return err
	}
	defer answer.Close() //nolint:errcheck // it was read
	err = readDump(bufio.NewReaderSize(answer, 1<<16), lookup.ErrUnavailable, into)
	if ended := lookup.OfContext(ctx); err != nil && ended != nil {
		return ended
	}
	return err
}
