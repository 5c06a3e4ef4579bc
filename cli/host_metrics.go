// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"kindex/internal/lookup"
)

// stats reads the host's metrics: HTTP has its figures nowhere else.
func (h *httpHost) stats(ctx context.Context) (*figures, error) {
	body, err := h.ask(ctx, http.MethodGet, "/metrics", nil)
	if err != nil {
		return nil, err
	}
	defer body.Close() //nolint:errcheck // it was read
	f := &figures{Ready: true, Streams: map[string]uint64{}, Bytes: []nodeBytes{}, ranks: map[streamName]*rankTimes{}}
	lines := bufio.NewScanner(io.LimitReader(body, maxMessage))
	lines.Buffer(make([]byte, 64<<10), 1<<20)
	for lines.Scan() {
		if name, labels, value, ok := sample(lines.Text()); ok {
			f.take(name, labels, value)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, h.unreached(ctx, err)
	}
	if f.Version == "" {
		return nil, lookup.Refuse(lookup.ErrUnavailable, "/metrics: not those of an index host")
	}
	return f, nil
}

// rankTimes are a rank's figures that /workers lacks.
type rankTimes struct {
	held     uint64
	age, lag float64 // seconds
	hasAge   bool
	hasLag   bool
}

// take takes one sample of the metrics.
func (f *figures) take(name string, labels map[string]string, v float64) {
	name, ours := strings.CutPrefix(name, "kindex_")
	if !ours {
		return
	}
	if what, ok := strings.CutPrefix(name, "stream_"); ok {
		f.takeStream(what, labels, v)
		return
	}
	node, _ := strconv.Atoi(labels["node"]) // 0 where it is not said
	switch name {
	case "build_info":
		f.Version, f.Revision = labels["version"], labels["revision"]
	case "streams":
		if n := uint64(v); n > 0 {
			f.Streams[labels["status"]] = n
			f.Ready = f.Ready && (labels["status"] == "active" || labels["status"] == "failed")
		}
	case "index_memberships":
		f.Memberships = uint64(v)
	case "index_blocks":
		f.Blocks = uint64(v)
	case "index_runs":
		f.Runs = uint64(v)
	case "index_bytes":
		f.add(labels["purpose"], node, uint64(v))
	case "lookup_seconds_count":
		f.Lookups = uint64(v)
	case "lookup_seconds_sum":
		f.LookupTime = v
	}
}

func (f *figures) takeStream(what string, labels map[string]string, v float64) {
	rank, err := strconv.Atoi(labels["dp_rank"])
	if err != nil {
		return // the series that many streams share
	}
	key := streamName{labels["tenant_id"], labels["model_name"], labels["routing_group"], labels["instance_id"], rank}
	t := f.ranks[key]
	if t == nil {
		t = &rankTimes{}
		f.ranks[key] = t
	}
	switch what {
	case "held_batches":
		t.held = uint64(v)
	case "age_seconds":
		t.age, t.hasAge = v, true
	case "apply_lag_seconds":
		t.lag, t.hasLag = v, true
	}
}

// fill adds to ws what f knows of their ranks.
func (f *figures) fill(ws []lookup.Worker, now time.Time) {
	for i := range ws {
		w := &ws[i]
		for k := range w.Ranks {
			r := &w.Ranks[k]
			t := f.ranks[streamName{w.Tenant, w.Model, w.Group, w.Instance, r.Rank}]
			if t == nil {
				continue
			}
			r.Held = t.held
			if t.hasAge {
				r.LastBatch = float64(now.UnixNano())/1e9 - t.age
			}
			if t.hasLag {
				r.EngineTime = r.LastBatch - t.lag
			}
		}
	}
}

// sample reads one line of the text format: name{label="value",...} number.
func sample(line string) (name string, labels map[string]string, v float64, ok bool) {
	end := strings.IndexAny(line, "{ ")
	if end <= 0 || line[0] == '#' {
		return "", nil, 0, false
	}
	name, rest := line[:end], line[end:]
	labels = map[string]string{}
	if rest[0] == '{' {
		rest = rest[1:]
		for rest != "" && rest[0] != '}' {
			key, value, more := strings.Cut(rest, "=")
			if !more {
				return "", nil, 0, false
			}
			quoted, err := strconv.QuotedPrefix(value)
			if err != nil {
				return "", nil, 0, false
			}
			plain, err := strconv.Unquote(quoted)
			if err != nil {
				return "", nil, 0, false
			}
			labels[key] = plain
			rest = strings.TrimPrefix(value[len(quoted):], ",")
		}
		rest = strings.TrimPrefix(rest, "}")
	}
	fields := strings.Fields(rest)
	if len(fields) == 0 {
		return "", nil, 0, false
	}
	v, err := strconv.ParseFloat(fields[0], 64)
	return name, labels, v, err == nil
}
