// SPDX-License-Identifier: Apache-2.0

// Before: the bodies of POST and PUT /workers. After: the registry.

package fleet

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"time"
)

// MaxSpecBody bounds the body of a specification, in bytes.
const MaxSpecBody = 1 << 20

// A reader takes a specification, or a change of one, out of a JSON object.
type reader struct {
	spec    Spec
	modelID string
	mode    string
	ignored []string
}

// A field takes one value into a reader. Nil stands for a field that is known and has
// no effect here.
type field func(r *reader, v json.RawMessage) error

// fields is what a specification may have. Source of names: SMG's WorkerSpec; kv_events,
// instance_id and name are ours.
var fields = map[string]field{
	"url":                         text(func(r *reader, s string) error { r.spec.URL = s; return nil }),
	"models":                      models,
	"model_id":                    text(func(r *reader, s string) error { r.modelID = s; return nil }),
	"worker_type":                 text(workerType),
	"connection_mode":             text(connectionMode),
	"runtime_type":                text(runtimeType),
	"runtime":                     text(runtimeType),
	"dp_size":                     whole(1, MaxRanks, func(r *reader, n int) { r.spec.Ranks = n }),
	"kv_block_size":               whole(1, maxBlock, func(r *reader, n int) { r.spec.BlockSize = n }),
	"max_connection_attempts":     whole(1, 1_000_000, func(r *reader, n int) { r.spec.MaxAttempts = n }),
	"instance_id":                 text(func(r *reader, s string) error { r.spec.Instance = s; return nil }),
	"name":                        text(func(r *reader, s string) error { r.spec.Name = s; return nil }),
	"kv_events":                   object("kv_events", eventFields),
	"provider":                    nil,
	"bootstrap_port":              nil,
	"dp_base_url":                 nil,
	"dp_rank":                     nil,
	"kv_connector":                nil,
	"kv_role":                     nil,
	"kv_engine_id":                nil,
	"pairing_protocol":            nil,
	"multimodal_tensor_transport": nil,
	"multimodal_shm_min_bytes":    nil,
	"zmq_handshake_address":       nil,
	"http_pool":                   object("http_pool", poolFields),
}

// changeable is what an update may have too.
var changeable = map[string]field{
	"models":                     models,
	"priority":                   whole(0, maxPriority, func(r *reader, n int) { r.spec.Terms.Priority = n }),
	"cost":                       number(func(r *reader, v float64) { r.spec.Terms.Cost = v }),
	"labels":                     labels,
	"api_key":                    text(func(r *reader, s string) error { r.spec.Terms.APIKey = s; return nil }),
	"health":                     object("health", healthFields),
	"resilience":                 object("resilience", resilienceFields),
	"overload":                   object("overload", overloadFields),
	"load_monitor_interval_secs": whole(1, maxSeconds, func(r *reader, n int) { r.spec.Terms.LoadInterval = time.Duration(n) * time.Second }),
}

// fixed are the fields that an update may not have.
var fixed []string

func init() {
	fixed = slices.Sorted(maps.Keys(fields))
	fixed = slices.DeleteFunc(fixed, func(name string) bool { return changeable[name] != nil })
	maps.Copy(fields, changeable)
	maps.Copy(fields, flatFields)
}

const (
	maxPriority = 1_000_000
	maxSeconds  = 86_400
	maxCount    = 1_000_000
)

var eventFields = map[string]field{
	"endpoint":        text(func(r *reader, s string) error { r.spec.Events.Endpoint = s; return nil }),
	"replay_endpoint": text(func(r *reader, s string) error { r.spec.Events.Replay = s; return nil }),
	"relay":           text(func(r *reader, s string) error { r.spec.Events.Relay = s; return nil }),
	"name":            text(func(r *reader, s string) error { r.spec.Events.Name = s; return nil }),
}

// flatFields are of the registrations before health had an object of its own.
var flatFields = map[string]field{
	"health_check_timeout_secs":  healthFields["timeout_secs"],
	"health_check_interval_secs": healthFields["check_interval_secs"],
	"health_success_threshold":   healthFields["success_threshold"],
	"health_failure_threshold":   healthFields["failure_threshold"],
	"disable_health_check":       healthFields["disable_health_check"],
	"tokenizer_path":             nil,
	"reasoning_parser":           nil,
	"tool_parser":                nil,
	"chat_template":              nil,
}

var poolFields = map[string]field{
	"pool_max_idle_per_host": nil, "pool_idle_timeout_secs": nil, "timeout_secs": nil, "connect_timeout_secs": nil, "http2": nil,
}

var healthFields = map[string]field{
	"timeout_secs":         seconds(1, func(r *reader, d *time.Duration) { r.spec.Terms.Health.Timeout = d }),
	"check_interval_secs":  seconds(1, func(r *reader, d *time.Duration) { r.spec.Terms.Health.Interval = d }),
	"success_threshold":    whole(1, maxCount, func(r *reader, n int) { r.spec.Terms.Health.Successes = &n }),
	"failure_threshold":    whole(1, maxCount, func(r *reader, n int) { r.spec.Terms.Health.Failures = &n }),
	"disable_health_check": flag(func(r *reader, on bool) { r.spec.Terms.Health.Off = &on }),
	"drain_settle_secs":    seconds(0, func(r *reader, d *time.Duration) { r.spec.Terms.Health.Settle = d }),
}

var resilienceFields = map[string]field{
	"max_retries":             whole(1, 100, func(r *reader, n int) { r.spec.Terms.Resilience.MaxRetries = &n }),
	"disable_retry":           flag(func(r *reader, on bool) { r.spec.Terms.Resilience.NoRetry = &on }),
	"cb_failure_threshold":    whole(1, maxCount, func(r *reader, n int) { r.spec.Terms.Resilience.BreakerFailures = &n }),
	"cb_success_threshold":    whole(1, maxCount, func(r *reader, n int) { r.spec.Terms.Resilience.BreakerSuccess = &n }),
	"cb_timeout_secs":         seconds(1, func(r *reader, d *time.Duration) { r.spec.Terms.Resilience.BreakerTimeout = d }),
	"disable_circuit_breaker": flag(func(r *reader, on bool) { r.spec.Terms.Resilience.NoBreaker = &on }),
	"retryable_status_codes":  statuses(func(r *reader, all []int) { r.spec.Terms.Resilience.Retryable = all }),
	"capacity_status_codes":   statuses(func(r *reader, all []int) { r.spec.Terms.Resilience.Capacity = all }),
	"initial_backoff_ms":      nil, // a retry goes elsewhere at once
	"max_backoff_ms":          nil,
	"backoff_multiplier":      nil,
	"jitter_factor":           nil,
	"cb_window_secs":          nil, // failures are counted in a row
}

var overloadFields = map[string]field{
	"waiting_requests": whole(1, maxCount, func(r *reader, n int) { v := int64(n); r.spec.Terms.Overload.Waiting = &v }),
	"token_usage":      number(func(r *reader, v float64) { r.spec.Terms.Overload.Usage = &v }),
}

// ParseSpec reads the body of POST /workers. It returns the fields that are known and
// have no effect, too.
//
// Errors: one line that names the field; of [Spec.Validate].
func ParseSpec(body []byte) (Spec, []string, error) {
	r := reader{spec: Spec{MaxAttempts: DefaultAttempts, Terms: Terms{Priority: DefaultPriority, Cost: DefaultCost}}}
	if err := r.read("", body, fields); err != nil {
		return Spec{}, nil, err
	}
	if err := r.end(); err != nil {
		return Spec{}, nil, err
	}
	return r.spec, r.ignored, nil
}

// A Change is what PUT /workers/{id} asks for.
type Change struct {
	Models   []string // nil: as they are
	Adapters map[string]string
	Ignored  []string

	body []byte
}

// ParseChange reads the body of PUT /workers/{id}.
func ParseChange(body []byte) (*Change, error) {
	c := &Change{body: slices.Clone(body)}
	r := reader{spec: Spec{Terms: Terms{Cost: DefaultCost}}}
	if err := r.read("", body, changeable); err != nil {
		return nil, err
	}
	if err := r.spec.Terms.validate(); err != nil {
		return nil, err
	}
	c.Models, c.Adapters, c.Ignored = r.spec.Models, r.spec.Adapters, r.ignored
	return c, nil
}

// Apply changes t: what was not named stays.
func (c *Change) Apply(t *Terms) error {
	r := reader{spec: Spec{Terms: *t}}
	if err := r.read("", c.body, changeable); err != nil {
		return err
	}
	*t = r.spec.Terms
	return nil
}

// end puts together what fields say of one another.
func (r *reader) end() error {
	s := &r.spec
	if s.URL == "" {
		return fmt.Errorf("url: it is missing: %s", urlForm)
	}
	if r.modelID != "" && !slices.Contains(s.Models, r.modelID) {
		if len(s.Models) > 0 {
			return fmt.Errorf("model_id: %.100q is not one of models", r.modelID)
		}
		s.Models = []string{r.modelID}
	}
	scheme, rest, _ := strings.Cut(s.URL, "://")
	scheme = strings.ToLower(scheme)
	switch {
	case r.mode == "grpc" && scheme == "http":
		s.URL = "grpc://" + rest
	case r.mode == "grpc" && scheme == "https":
		s.URL = "grpcs://" + rest
	case r.mode == "http" && (scheme == "grpc" || scheme == "grpcs"):
		return fmt.Errorf("connection_mode: http, but the URL says %s: leave one out", scheme)
	}
	return s.Validate()
}

// read takes the object in body, whose keys are all of known.
func (r *reader) read(within string, body []byte, known map[string]field) error {
	var all map[string]json.RawMessage
	d := json.NewDecoder(bytes.NewReader(body))
	err := d.Decode(&all)
	if err == nil {
		if _, more := d.Token(); !errors.Is(more, io.EOF) {
			err = errors.New("more than one value")
		}
	}
	if err != nil || all == nil {
		return notObject(within, err)
	}
	for _, key := range slices.Sorted(maps.Keys(all)) {
		f, ok := known[key]
		name := within + key
		switch {
		case !ok:
			return unknown(within, key, known)
		case string(all[key]) == "null":
		case f == nil:
			r.ignored = append(r.ignored, name)
		default:
			err := f(r, all[key])
			if err != nil && strings.HasPrefix(err.Error(), name+".") {
				return err // of a field within
			}
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	return nil
}

func notObject(within string, err error) error {
	what := "the body"
	if within != "" {
		what = "it"
	}
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &syntax):
		return fmt.Errorf("%s must be a JSON object: %w at byte %d", what, err, syntax.Offset)
	case err != nil && !strings.HasPrefix(err.Error(), "json: cannot"):
		return fmt.Errorf("%s must be one JSON object: %w", what, err)
	}
	return fmt.Errorf("%s must be a JSON object", what)
}

// unknown says which field is not there, and which one may be meant.
func unknown(within, key string, known map[string]field) error {
	names := slices.Sorted(maps.Keys(known))
	best, far := "", max(2, len(key)/3)+1
	for _, name := range names {
		if strings.HasPrefix(name, key) && len(key) > 2 {
			best = name
			break
		}
		if d := distance(key, name, far); d < far {
			best, far = name, d
		}
	}
	switch {
	case within == "" && slices.Contains(fixed, key):
		return fmt.Errorf("%s: it cannot be changed: remove the worker and register it again", key)
	case best != "":
		return fmt.Errorf("%s%.100s: no such field: is %s%s meant?", within, key, within, best)
	}
	return fmt.Errorf("%s%.100s: no such field: it must be one of %s", within, key, strings.Join(names, ", "))
}

// distance returns how many bytes must change to make b of a, or far if that is not less.
func distance(a, b string, far int) int {
	if len(a)-len(b) >= far || len(b)-len(a) >= far || len(a) > 100 {
		return far
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost = 1 + min(diagonal, row[j], row[j+1])
			}
			diagonal, row[j+1] = row[j+1], cost
		}
	}
	return min(row[len(b)], far)
}

// Values.

func text(set func(*reader, string) error) field {
	return func(r *reader, v json.RawMessage) error {
		var s string
		if json.Unmarshal(v, &s) != nil {
			return errors.New("it must be a string")
		}
		return set(r, s)
	}
}

func whole(lo, hi int, set func(*reader, int)) field {
	return func(r *reader, v json.RawMessage) error {
		var n float64
		if json.Unmarshal(v, &n) != nil || n != math.Trunc(n) || n < float64(lo) || n > float64(hi) {
			return fmt.Errorf("%.40s: it must be an integer from %d to %d", v, lo, hi)
		}
		set(r, int(n))
		return nil
	}
}

func number(set func(*reader, float64)) field {
	return func(r *reader, v json.RawMessage) error {
		var n float64
		if json.Unmarshal(v, &n) != nil || n <= 0 {
			return fmt.Errorf("%.40s: it must be a number above 0", v)
		}
		set(r, n)
		return nil
	}
}

func seconds(lo int, set func(*reader, *time.Duration)) field {
	return whole(lo, maxSeconds, func(r *reader, n int) { d := time.Duration(n) * time.Second; set(r, &d) })
}

func flag(set func(*reader, bool)) field {
	return func(r *reader, v json.RawMessage) error {
		var on bool
		if json.Unmarshal(v, &on) != nil {
			return fmt.Errorf("%.40s: it must be true or false", v)
		}
		set(r, on)
		return nil
	}
}

func statuses(set func(*reader, []int)) field {
	return func(r *reader, v json.RawMessage) error {
		all := []int{}
		err := json.Unmarshal(v, &all)
		if err != nil || len(all) > 100 || slices.ContainsFunc(all, func(n int) bool { return n < 400 || n > 599 }) {
			return fmt.Errorf("%.100s: it must be a list of at most 100 HTTP statuses from 400 to 599", v)
		}
		set(r, all)
		return nil
	}
}

func object(name string, known map[string]field) field {
	return func(r *reader, v json.RawMessage) error {
		return r.read(name+".", v, known)
	}
}

func labels(r *reader, v json.RawMessage) error {
	var all map[string]string
	if json.Unmarshal(v, &all) != nil {
		return errors.New("it must be an object of strings")
	}
	r.spec.Terms.Labels = all
	return nil
}

// models takes names, or cards that have the name as id. A card with a parent is an
// adapter of that model, as vLLM lists them.
func models(r *reader, v json.RawMessage) error {
	const form = `it must be a list of names, or of objects {"id": NAME}`
	var all []json.RawMessage
	if json.Unmarshal(v, &all) != nil {
		return errors.New(form)
	}
	if len(all) > MaxModelsPerSpec {
		return fmt.Errorf("%d: a worker has at most %d", len(all), MaxModelsPerSpec)
	}
	r.spec.Models, r.spec.Adapters = []string{}, nil
	for _, one := range all {
		var name string
		card := struct{ ID, Parent string }{}
		switch {
		case json.Unmarshal(one, &name) == nil:
		case json.Unmarshal(one, &card) == nil:
			name = card.ID
		default:
			return errors.New(form)
		}
		switch {
		case name == "" || string(one) == "null":
			return errors.New("a name is missing: " + form)
		case card.Parent != "":
			if r.spec.Adapters == nil {
				r.spec.Adapters = make(map[string]string)
			}
			r.spec.Adapters[name] = card.Parent
		case !slices.Contains(r.spec.Models, name):
			r.spec.Models = append(r.spec.Models, name)
		}
	}
	return nil
}

func workerType(_ *reader, s string) error {
	if s != "regular" {
		return fmt.Errorf("%.100q: only regular workers are taken, which prefill and decode", s)
	}
	return nil
}

func connectionMode(r *reader, s string) error {
	switch s {
	case "http", "grpc":
		r.mode = s
		return nil
	}
	return fmt.Errorf("%.100q: it must be http or grpc", s)
}

func runtimeType(r *reader, s string) error {
	switch s {
	case VLLM, SGLang:
		r.spec.Engine = s
		return nil
	case "unspecified", "generic", "auto", "":
		return nil
	}
	return fmt.Errorf("%.100q: it must be %s or %s, or left out to be found out", s, VLLM, SGLang)
}
