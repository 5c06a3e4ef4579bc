// SPDX-License-Identifier: Apache-2.0

// Before: the front, which hands over requests for /workers. After: the registry and the
// prober of registrations.

package gateway

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"kindex/gateway/fleet"
	"kindex/gateway/fleet/enroll"
	"kindex/gateway/openai"
)

// Workers answers /workers: who is there, who joins, who changes, who leaves. It knows
// no server: requests come as values.
//
// Concurrency: any goroutine.
type Workers struct {
	Fleet  *fleet.Registry
	Prober *enroll.Prober
	Drain  time.Duration // of a drain that names no time
}

// workersPath is where it is served.
const workersPath = "/workers"

// maxDrain bounds the time that a drain may name.
const maxDrain = 24 * time.Hour

// WorkersReply is an answer of [Workers.Serve]. Its body is JSON.
type WorkersReply struct {
	Status   int
	Location string // ""; else the header of this name
	Allow    string // ""; else the header of this name
	Body     []byte
}

// Serve answers one request. Path is that of the request line, still escaped.
//
// Users must have checked who may change workers: nobody is asked for a key here.
func (s *Workers) Serve(method, path string, query url.Values, body []byte) WorkersReply {
	rest, ok := strings.CutPrefix(path, workersPath)
	if !ok {
		return refuseWorkers(http.StatusNotFound, "not_found", "", "no such route")
	}
	rest = strings.Trim(rest, "/")
	if rest == "" {
		return s.serveAll(method, query, body)
	}
	escaped, drains := strings.CutSuffix(rest, "/drain")
	id, err := url.PathUnescape(escaped)
	if err != nil {
		return refuseWorkers(http.StatusBadRequest, "invalid_worker_id", "", "the worker's id is not escaped as a URL's path is")
	}
	if at, err := fleet.CanonicalURL(id); err == nil {
		id = at
	}
	switch {
	case drains && method == http.MethodPost:
		return s.drain(id, query)
	case drains:
		return wrongMethod(method, "POST")
	}
	switch method {
	case http.MethodGet, http.MethodHead:
		reg := s.Fleet.Get(id)
		if reg == nil {
			return notRegistered(id)
		}
		return answerWorkers(http.StatusOK, viewOf(reg, fleet.Now()))
	case http.MethodPut, http.MethodPatch:
		return s.change(id, body)
	case http.MethodDelete:
		if on := query.Get("drain"); on != "" && on != "0" && on != "false" {
			return s.drain(id, query)
		}
		return s.remove(id)
	}
	return wrongMethod(method, "GET, PUT, PATCH, DELETE")
}

// serveAll answers for /workers itself.
func (s *Workers) serveAll(method string, query url.Values, body []byte) WorkersReply {
	switch method {
	case http.MethodGet, http.MethodHead:
		return s.list(query.Get("model"))
	case http.MethodPost:
		return s.register(body)
	}
	return wrongMethod(method, "GET, POST")
}

// accepted is the answer to what goes on after it.
type accepted struct {
	Status   string   `json:"status"`
	WorkerID string   `json:"worker_id"`
	URL      string   `json:"url"`
	Location string   `json:"location"`
	Message  string   `json:"message"`
	Ignored  []string `json:"ignored,omitempty"` // fields that are known and have no effect here
}

func acceptWorkers(reg *fleet.Registration, ignored []string, message string) WorkersReply {
	a := accepted{
		Status: "accepted", WorkerID: reg.ID, URL: reg.Given().URL, Location: workersPath + "/" + reg.ID, Message: message, Ignored: ignored,
	}
	r := answerWorkers(http.StatusAccepted, &a)
	r.Location = a.Location
	return r
}

// register takes a worker in.
func (s *Workers) register(body []byte) WorkersReply {
	if len(body) > fleet.MaxSpecBody {
		return refuseWorkers(http.StatusRequestEntityTooLarge, "body_too_large", "", fmt.Sprintf("the body must have at most %d bytes", fleet.MaxSpecBody))
	}
	spec, ignored, err := fleet.ParseSpec(body)
	if err != nil {
		return invalidWorkers(err)
	}
	reg, err := s.Prober.Register(spec)
	switch {
	case err == nil:
		return acceptWorkers(reg, ignored, "the engine is asked what it is; the worker joins when it has answered")
	case errors.Is(err, fleet.ErrExists) && reg.Given().Same(&spec) && !leaving(reg):
		s.Prober.Again(reg.ID)
		return acceptWorkers(reg, ignored, "registered already, with the same specification")
	}
	return failedWorkers(err)
}

func leaving(reg *fleet.Registration) bool {
	w := reg.Worker()
	return w != nil && w.State() >= fleet.Draining
}

// change updates a worker in place.
func (s *Workers) change(id string, body []byte) WorkersReply {
	if len(body) > fleet.MaxSpecBody {
		return refuseWorkers(http.StatusRequestEntityTooLarge, "body_too_large", "", fmt.Sprintf("the body must have at most %d bytes", fleet.MaxSpecBody))
	}
	c, err := fleet.ParseChange(body)
	if err != nil {
		return invalidWorkers(err)
	}
	if s.Fleet.Get(id) == nil {
		return notRegistered(id)
	}
	if c.Models != nil {
		if _, err := s.Fleet.Pin(id, fleet.Served{Models: c.Models, Adapters: c.Adapters}); err != nil {
			return failedWorkers(err)
		}
	}
	reg, err := s.Fleet.Update(id, c.Apply)
	if err != nil {
		return failedWorkers(err)
	}
	s.Prober.Again(reg.ID)
	return acceptWorkers(reg, c.Ignored, "changed")
}

// remove ends a worker at once.
func (s *Workers) remove(id string) WorkersReply {
	reg := s.Fleet.Get(id)
	if reg == nil {
		return notRegistered(id)
	}
	if _, err := s.Fleet.Remove(reg.ID); err != nil {
		return failedWorkers(err)
	}
	return acceptWorkers(reg, nil, "removed; what it has in flight goes on")
}

// drain ends a worker when it has nothing in flight.
func (s *Workers) drain(id string, query url.Values) WorkersReply {
	reg := s.Fleet.Get(id)
	if reg == nil {
		return notRegistered(id)
	}
	timeout := s.Drain
	if settle := reg.Given().Terms.Health.Settle; settle != nil {
		timeout = *settle
	}
	if t := query.Get("timeout_secs"); t != "" {
		n, err := strconv.ParseFloat(t, 64)
		if err != nil || !(n >= 0 && n <= maxDrain.Seconds()) {
			return refuseWorkers(http.StatusBadRequest, "invalid_parameter", "timeout_secs",
				fmt.Sprintf("timeout_secs: %.40q: it must be 0 to %d seconds", t, int(maxDrain.Seconds())))
		}
		timeout = time.Duration(n * float64(time.Second))
	}
	if _, err := s.Fleet.Drain(reg.ID, timeout); err != nil {
		return failedWorkers(err)
	}
	return acceptWorkers(reg, nil, fmt.Sprintf("draining; removed when nothing is in flight, after %v at the latest", timeout))
}

// list answers who is there, in the order of their joins, then those that wait.
func (s *Workers) list(model string) WorkersReply {
	now := fleet.Now()
	all := s.Fleet.Registrations()
	order := make(map[string]int)
	for i, w := range s.Fleet.Workers() {
		order[w.ID] = i + 1 - fleet.MaxWorkers
	}
	slices.SortFunc(all, func(a, b *fleet.Registration) int {
		if d := order[a.ID] - order[b.ID]; d != 0 {
			return d
		}
		return strings.Compare(a.Given().URL, b.Given().URL)
	})
	out := listView{Workers: make([]*workerView, 0, len(all))}
	models := make(map[string]bool)
	for _, reg := range all {
		v := viewOf(reg, now)
		if model != "" && !v.serves(model) {
			continue
		}
		out.Workers = append(out.Workers, v)
		out.Stats.Load += v.Load
		if v.Healthy {
			out.Stats.Healthy++
		}
		for _, m := range v.Models {
			models[m.ID] = true
		}
	}
	out.Total = len(out.Workers)
	out.Stats.Workers, out.Stats.ByType.Regular, out.Stats.Models = out.Total, out.Total, len(models)
	return answerWorkers(http.StatusOK, &out)
}

// ServedModels returns the names that GET /v1/models lists, in order.
func (s *Workers) ServedModels() []string { return slices.Sorted(maps.Keys(s.Fleet.Models())) }

func answerWorkers(status int, v any) WorkersReply {
	body, err := json.Marshal(v)
	if err != nil { // a NaN of a reading
		return refuseWorkers(http.StatusInternalServerError, "internal_error", "", oneLine(err))
	}
	return WorkersReply{Status: status, Body: body}
}

func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }

func refuseWorkers(status int, code, param, message string) WorkersReply {
	kind := openai.InvalidRequest
	if status >= http.StatusInternalServerError {
		kind = openai.ServerError
	}
	e := openai.Error{Status: status, Type: kind, Code: code, Param: param, Message: message}
	return WorkersReply{Status: status, Body: e.AppendJSON(nil)}
}

// invalidWorkers refuses a body. What is before the first colon of such an error is the
// field.
func invalidWorkers(err error) WorkersReply {
	line := oneLine(err)
	param, _, ok := strings.Cut(line, ": ")
	if !ok || strings.ContainsAny(param, " /\"") {
		param = ""
	}
	return refuseWorkers(http.StatusBadRequest, "invalid_worker_spec", param, line)
}

func notRegistered(id string) WorkersReply {
	return refuseWorkers(http.StatusNotFound, "worker_not_found", "", fmt.Sprintf("no worker has the id or URL %.300q", id))
}

func wrongMethod(method, allow string) WorkersReply {
	r := refuseWorkers(http.StatusMethodNotAllowed, "method_not_allowed", "", fmt.Sprintf("%.20s is not taken here: it must be one of %s", method, allow))
	r.Allow = allow
	return r
}

// failedWorkers says why the registry refused.
func failedWorkers(err error) WorkersReply {
	switch {
	case errors.Is(err, fleet.ErrUnknown):
		return refuseWorkers(http.StatusNotFound, "worker_not_found", "", oneLine(err))
	case errors.Is(err, fleet.ErrExists):
		return refuseWorkers(http.StatusConflict, "worker_exists", "url", oneLine(err))
	case errors.Is(err, fleet.ErrLeaving):
		return refuseWorkers(http.StatusConflict, "worker_leaving", "", oneLine(err))
	case errors.Is(err, fleet.ErrFull):
		return refuseWorkers(http.StatusInsufficientStorage, "too_many_workers", "", oneLine(err))
	}
	return invalidWorkers(err)
}
