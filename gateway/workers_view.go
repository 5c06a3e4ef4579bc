// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"kindex/gateway/fleet"
)

// listView is the answer to GET /workers.
// Source of this and of what follows: SMG's WorkerListResponse and WorkerInfo; from
// in_flight on the fields of a worker are ours.
type listView struct {
	Workers []*workerView `json:"workers"`
	Total   int           `json:"total"`
	Stats   struct {
		Workers int   `json:"total_workers"`
		Healthy int   `json:"healthy_workers"`
		Models  int   `json:"total_models"`
		Load    int64 `json:"total_load"`
		ByType  struct {
			Regular int `json:"regular"`
			Prefill int `json:"prefill"`
			Decode  int `json:"decode"`
		} `json:"by_type"`
	} `json:"stats"`
}

type modelView struct {
	ID     string `json:"id"`
	Parent string `json:"parent,omitempty"` // of an adapter: the model that it adapts
}

type jobView struct {
	Type      string `json:"job_type"`
	URL       string `json:"worker_url"`
	Status    string `json:"status"`
	Message   string `json:"message,omitempty"`
	Attempts  int    `json:"attempts,omitempty"`
	Timestamp int64  `json:"timestamp"` // s since 1970
}

type eventsView struct {
	Endpoint string `json:"endpoint,omitempty"`
	Replay   string `json:"replay_endpoint,omitempty"`
	Relay    string `json:"relay,omitempty"`
	Name     string `json:"name,omitempty"`
}

type healthView struct {
	Timeout   *int64 `json:"timeout_secs,omitempty"`
	Interval  *int64 `json:"check_interval_secs,omitempty"`
	Successes *int   `json:"success_threshold,omitempty"`
	Failures  *int   `json:"failure_threshold,omitempty"`
	Off       *bool  `json:"disable_health_check,omitempty"`
	Settle    *int64 `json:"drain_settle_secs,omitempty"`
}

type resilienceView struct {
	MaxRetries      *int   `json:"max_retries,omitempty"`
	NoRetry         *bool  `json:"disable_retry,omitempty"`
	BreakerFailures *int   `json:"cb_failure_threshold,omitempty"`
	BreakerSuccess  *int   `json:"cb_success_threshold,omitempty"`
	BreakerTimeout  *int64 `json:"cb_timeout_secs,omitempty"`
	NoBreaker       *bool  `json:"disable_circuit_breaker,omitempty"`
	Retryable       []int  `json:"retryable_status_codes,omitempty"`
	Capacity        []int  `json:"capacity_status_codes,omitempty"`
}

type overloadView struct {
	Waiting *int64   `json:"waiting_requests,omitempty"`
	Usage   *float64 `json:"token_usage,omitempty"`
}

// loadsView is an engine's load as its newest readings have it.
type loadsView struct {
	Ranks int         `json:"dp_rank_count"`
	Loads []*loadView `json:"loads"`
}

// loadView is one rank's. What the engine does not say is left out.
type loadView struct {
	Rank       int      `json:"dp_rank"`
	Running    *int64   `json:"num_running_reqs,omitempty"`
	Waiting    *int64   `json:"num_waiting_reqs,omitempty"`
	Uncached   *int64   `json:"num_waiting_uncached_tokens,omitempty"`
	Usage      *float64 `json:"token_usage,omitempty"`
	Active     *float64 `json:"active_token_usage,omitempty"`
	Throughput *float64 `json:"gen_throughput,omitempty"`
	MaxRunning *int64   `json:"max_running_requests,omitempty"`
	Pending    *int64   `json:"prefill_pending_tokens,omitempty"`
	SilenceMS  *int64   `json:"silence_ms,omitempty"`
}

type holderView struct {
	Rank      int    `json:"dp_rank"`
	InFlight  int64  `json:"in_flight"`
	Prefill   int64  `json:"prefill_tokens_in_flight"`
	Streams   int64  `json:"streams"`
	Unread    int64  `json:"in_flight_not_in_reading"`
	AgeMS     *int64 `json:"reading_age_ms,omitempty"` // without: no reading yet
	Pushed    *bool  `json:"reading_pushed,omitempty"`
	LastToken *int64 `json:"last_token_age_ms,omitempty"` // without: none yet
}

type workerView struct {
	ID          string            `json:"id"`
	ModelID     *string           `json:"model_id"`
	URL         string            `json:"url"`
	Models      []modelView       `json:"models"`
	Type        string            `json:"worker_type"`
	Mode        string            `json:"connection_mode"`
	Runtime     string            `json:"runtime_type"`
	Labels      map[string]string `json:"labels,omitempty"`
	Priority    int               `json:"priority"`
	Cost        float64           `json:"cost"`
	Ranks       int               `json:"dp_size,omitempty"`
	Block       int               `json:"kv_block_size,omitempty"`
	Health      *healthView       `json:"health,omitempty"`
	Resilience  *resilienceView   `json:"resilience,omitempty"`
	Overload    *overloadView     `json:"overload,omitempty"`
	Attempts    int               `json:"max_connection_attempts,omitempty"`
	LoadSeconds int               `json:"load_monitor_interval_secs,omitempty"`
	Healthy     bool              `json:"is_healthy"`
	Status      string            `json:"status"`
	Load        int64             `json:"load"`
	HTTP2       bool              `json:"http2"`
	Stalled     string            `json:"stalled,omitempty"`
	EngineLoad  *loadsView        `json:"engine_load,omitempty"`
	Job         *jobView          `json:"job_status,omitempty"`

	InFlight  int64         `json:"in_flight"`
	Vetoes    []string      `json:"vetoes"`
	ContactMS *int64        `json:"last_contact_age_ms,omitempty"`
	Holders   []*holderView `json:"holders"`
	Name      string        `json:"name,omitempty"`
	Instance  string        `json:"instance_id"`
	Events    *eventsView   `json:"kv_events,omitempty"`
	HasKey    bool          `json:"has_api_key"`
}

func (v *workerView) serves(model string) bool {
	for _, m := range v.Models {
		if m.ID == model {
			return true
		}
	}
	return false
}

// viewOf says how a registration stands at the time now, by [fleet.Now].
func viewOf(reg *fleet.Registration, now int64) *workerView {
	spec, w := reg.Given(), reg.Worker()
	if w != nil {
		spec = w.Spec
	}
	v := &workerView{
		ID: reg.ID, URL: spec.URL, Type: "regular", Mode: "http", Runtime: spec.Engine, Ranks: spec.Ranks, Block: spec.BlockSize,
		Attempts: spec.MaxAttempts, Status: fleet.Pending.String(), Name: spec.Name, Instance: spec.Instance,
		Models: []modelView{}, Vetoes: []string{}, Holders: []*holderView{},
	}
	if spec.GRPC() {
		v.Mode = "grpc"
	}
	if v.Runtime == "" {
		v.Runtime = "unspecified"
	}
	if e := spec.Events; e != (fleet.Events{}) {
		v.Events = &eventsView{e.Endpoint, e.Replay, e.Relay, e.Name}
	}
	serves := &fleet.Served{Models: spec.Models, Adapters: spec.Adapters}
	terms := &reg.Given().Terms
	if w != nil {
		serves, terms = w.Serves(), w.Terms()
		v.standing(w, now)
	}
	for _, m := range serves.Models {
		v.Models = append(v.Models, modelView{ID: m})
	}
	for _, m := range slices.Sorted(maps.Keys(serves.Adapters)) {
		v.Models = append(v.Models, modelView{m, serves.Adapters[m]})
	}
	if len(serves.Models) > 0 {
		v.ModelID = &v.Models[0].ID
	}
	v.terms(terms)
	if j := reg.Job(); j.Status != "done" || j.Message != "" {
		v.Job = &jobView{"add_worker", spec.URL, j.Status, j.Message, j.Attempts, j.At.Unix()}
		if w == nil && j.Status == "failed" {
			v.Status = fleet.Failed.String()
		}
	}
	return v
}

// terms says what of t differs from the gateway's settings.
func (v *workerView) terms(t *fleet.Terms) {
	v.Labels, v.Priority, v.Cost, v.HasKey = t.Labels, t.Priority, t.Cost, t.APIKey != ""
	v.LoadSeconds = int(t.LoadInterval / time.Second)
	if h := t.Health; h != (fleet.Health{}) {
		v.Health = &healthView{inSeconds(h.Timeout), inSeconds(h.Interval), h.Successes, h.Failures, h.Off, inSeconds(h.Settle)}
	}
	r := resilienceView{
		t.Resilience.MaxRetries, t.Resilience.NoRetry, t.Resilience.BreakerFailures, t.Resilience.BreakerSuccess,
		inSeconds(t.Resilience.BreakerTimeout), t.Resilience.NoBreaker, t.Resilience.Retryable, t.Resilience.Capacity,
	}
	if r.MaxRetries != nil || r.NoRetry != nil || r.BreakerFailures != nil || r.BreakerSuccess != nil || r.BreakerTimeout != nil ||
		r.NoBreaker != nil || r.Retryable != nil || r.Capacity != nil {
		v.Resilience = &r
	}
	if o := t.Overload; o != (fleet.Overload{}) {
		v.Overload = &overloadView{o.Waiting, o.Usage}
	}
}

func inSeconds(d *time.Duration) *int64 {
	if d == nil {
		return nil
	}
	s := int64(*d / time.Second)
	return &s
}

// standing says how w stands.
func (v *workerView) standing(w *fleet.Worker, now int64) {
	state, vetoes := w.State(), w.Vetoes()
	v.Healthy, v.Status, v.Ranks = state == fleet.Ready, state.String(), len(w.Holders)
	v.ContactMS = age(w.LastContact(), now)
	for i, name := range fleet.VetoNames {
		if vetoes&(1<<i) != 0 {
			v.Vetoes = append(v.Vetoes, name)
		}
	}
	var stalled []string
	for _, s := range []fleet.Veto{fleet.Unreachable, fleet.Wedged, fleet.Stale} {
		if vetoes&s != 0 {
			stalled = append(stalled, s.String())
		}
	}
	v.Stalled = strings.Join(stalled, ",")
	for _, h := range w.Holders {
		v.holder(h, now)
	}
	v.InFlight = v.Load
}

// holder says how one rank stands.
func (v *workerView) holder(h *fleet.Holder, now int64) {
	r := h.Reading()
	n := h.InFlight()
	v.Load += n
	out := &holderView{Rank: h.Rank, InFlight: n, Prefill: h.PrefillInFlight(), Streams: h.Progress().Streams, Unread: h.Unread(r).Requests}
	out.LastToken = age(h.LastToken(), now)
	v.Holders = append(v.Holders, out)
	if r == nil {
		return
	}
	out.AgeMS, out.Pushed = age(r.At, now), &r.Pushed
	if v.EngineLoad == nil {
		v.EngineLoad = &loadsView{Ranks: len(h.Worker.Holders)}
	}
	v.EngineLoad.Loads = append(v.EngineLoad.Loads, &loadView{
		Rank: h.Rank, Running: known(r.Running), Waiting: known(r.Waiting), Uncached: known(r.WaitingUncached), Usage: knownShare(r.Usage),
		Active: knownShare(r.ActiveUsage), Throughput: knownShare(r.Throughput), MaxRunning: known(r.MaxRunning), Pending: known(r.PrefillPending),
		SilenceMS: known(r.SilenceMS),
	})
}

// age returns ms since a mark of [fleet.Now]; nil: there is none.
func age(at, now int64) *int64 {
	if at == 0 {
		return nil
	}
	ms := max(now-at, 0) / int64(time.Millisecond)
	return &ms
}

func known(n int64) *int64 {
	if n < 0 {
		return nil
	}
	return &n
}

func knownShare(v float64) *float64 {
	if v < 0 || math.IsNaN(v) || math.IsInf(v, 0) {
		return nil
	}
	return &v
}
