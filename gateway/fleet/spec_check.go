// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"errors"
	"fmt"
	"iter"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// The limits of a specification's texts.
const (
	maxURL    = 512
	maxName   = 256 // of a model, an adapter, an instance
	maxLabels = 64
	maxLabel  = 256 // bytes of a key or a value
	maxKey    = 4_096
	maxBlock  = 1 << 16
	maxCost   = 1e6
)

// Served is what a worker can be asked for. It is immutable.
type Served struct {
	Models   []string
	Adapters map[string]string // each with the one of Models that it adapts
}

// names yields every name that can be asked for, with the model that it adapts; "": it is
// a model.
func (s *Served) names() iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		for i, m := range s.Models {
			if slices.Contains(s.Models[:i], m) {
				continue
			}
			if !yield(m, "") {
				return
			}
		}
		for name, base := range s.Adapters {
			if !slices.Contains(s.Models, name) && !yield(name, base) {
				return
			}
		}
	}
}

// base returns the model that a name adapts; "": it is a model.
func (s *Served) base(name string) string {
	if slices.Contains(s.Models, name) {
		return ""
	}
	return s.Adapters[name]
}

// validate returns the first fault.
func (s *Served) validate() error {
	n := len(s.Models) + len(s.Adapters)
	switch {
	case n > MaxModelsPerSpec:
		return fmt.Errorf("models: %d with the adapters: a worker has at most %d", n, MaxModelsPerSpec)
	case len(s.Models) == 0:
		return errors.New("models: a worker has at least one that is no adapter")
	}
	for name := range s.names() {
		if err := checkName("models", name); err != nil {
			return err
		}
	}
	for name, base := range s.Adapters {
		if !slices.Contains(s.Models, base) {
			return fmt.Errorf("models: adapter %.100q adapts %.100q, which is not one of the worker's models", name, base)
		}
	}
	return nil
}

// urlForm is the right form of a worker's URL.
const urlForm = "it must be http, https, grpc or grpcs://HOST:PORT"

// CanonicalURL returns the form in which a worker's URL is kept: lower case, a port, no
// slash at its end; below a path, too, for HTTP.
func CanonicalURL(s string) (string, error) {
	if len(s) > maxURL {
		return "", fmt.Errorf("url: %d bytes: it must be at most %d", len(s), maxURL)
	}
	scheme, _, ok := strings.Cut(s, "://")
	scheme = strings.ToLower(scheme)
	if ok && (scheme == "ipc" || scheme == "zmq") {
		return "", fmt.Errorf("url: %.200q: %s is not spoken here: %s", s, scheme, urlForm)
	}
	u, err := url.Parse(s)
	if err != nil || !ok {
		return "", fmt.Errorf("url: %.200q: %s", s, urlForm)
	}
	port := u.Port()
	switch scheme {
	case "http", "https":
		if port == "" {
			port = map[string]string{"http": "80", "https": "443"}[scheme]
		}
	case "grpc", "grpcs":
	default:
		return "", fmt.Errorf("url: %.200q: %s", s, urlForm)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	host := strings.ToLower(u.Hostname())
	switch {
	case err != nil || n == 0:
		return "", fmt.Errorf("url: %.200q: the port must be 1 to 65535: %s", s, urlForm)
	case host == "" || strings.ContainsAny(host, " \t\r\n\"'<>"):
		return "", fmt.Errorf("url: %.200q: a host is missing: %s", s, urlForm)
	case u.User != nil && !strings.ContainsFunc(u.Host, func(c rune) bool { return c < '0' || c > '9' }):
		return "", fmt.Errorf("url: %.200q: a rank is not part of it: register the engine once, with dp_size: %s", s, urlForm)
	case u.User != nil:
		return "", errors.New("url: a user in it is not taken: give api_key; " + urlForm)
	case scheme[0] == 'g' && strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "" || u.Opaque != "":
		return "", fmt.Errorf("url: %.200q: it must end after the port or a path: %s", s, urlForm)
	}
	return scheme + "://" + net.JoinHostPort(host, strconv.FormatUint(n, 10)) + strings.TrimRight(u.EscapedPath(), "/"), nil
}

// Validate brings s into its canonical form and returns the first fault.
func (s *Spec) Validate() error {
	at, err := CanonicalURL(s.URL)
	if err != nil {
		return err
	}
	s.URL = at
	switch {
	case s.Engine != "" && s.Engine != VLLM && s.Engine != SGLang:
		return fmt.Errorf("runtime_type: %.100q: it must be %s or %s", s.Engine, VLLM, SGLang)
	case s.Ranks < 0 || s.Ranks > MaxRanks:
		return fmt.Errorf("dp_size: %d: it must be 1 to %d", s.Ranks, MaxRanks)
	case s.BlockSize < 0 || s.BlockSize > maxBlock:
		return fmt.Errorf("kv_block_size: %d: it must be 1 to %d tokens", s.BlockSize, maxBlock)
	}
	if s.Instance != "" {
		if err := checkName("instance_id", s.Instance); err != nil {
			return err
		}
	}
	if s.Name != "" {
		if err := checkName("name", s.Name); err != nil {
			return err
		}
	}
	if err := s.Events.validate(); err != nil {
		return err
	}
	if served := (&Served{s.Models, s.Adapters}); len(s.Models)+len(s.Adapters) > 0 {
		if err := served.validate(); err != nil {
			return err
		}
	}
	return s.Terms.validate()
}

func (e *Events) validate() error {
	for _, at := range []struct {
		field, is string
		check     func(string) error
	}{
		{"endpoint", e.Endpoint, checkEndpoint},
		{"replay_endpoint", e.Replay, checkEndpoint},
		{"relay", e.Relay, checkTarget},
		{"name", e.Name, func(s string) error { return checkName("name", s) }},
	} {
		if at.is == "" {
			continue
		}
		if err := at.check(at.is); err != nil {
			return fmt.Errorf("kv_events.%s: %w", at.field, err)
		}
	}
	return nil
}

// checkName returns why s is no name of a model or an instance.
func checkName(field, s string) error {
	if s == "" || len(s) > maxName {
		return fmt.Errorf("%s: a name of %d bytes: it must be 1 to %d", field, len(s), maxName)
	}
	return checkText(field, s)
}

// checkText returns why s cannot stand in a header or a log line.
func checkText(field, s string) error {
	for _, c := range s {
		if c < ' ' || c == 0x7f || c == '\uFFFD' {
			return fmt.Errorf("%s: %.100q: it must be UTF-8 without control characters", field, s)
		}
	}
	return nil
}

func (t *Terms) validate() error {
	switch {
	case t.Priority < 0 || t.Priority > maxPriority:
		return fmt.Errorf("priority: %d: it must be 0 to %d", t.Priority, maxPriority)
	case t.Cost != t.Cost || t.Cost < 0 || t.Cost > maxCost:
		return fmt.Errorf("cost: %v: it must be above 0, at most %v", t.Cost, maxCost)
	case len(t.Labels) > maxLabels:
		return fmt.Errorf("labels: %d: a worker has at most %d", len(t.Labels), maxLabels)
	case len(t.APIKey) > maxKey:
		return fmt.Errorf("api_key: %d bytes: it must be at most %d", len(t.APIKey), maxKey)
	}
	if u := t.Overload.Usage; u != nil && !(*u > 0 && *u <= 1) {
		return fmt.Errorf("overload.token_usage: %v: it must be above 0, at most 1", *u)
	}
	if t.Cost == 0 {
		t.Cost = DefaultCost
	}
	for i := range len(t.APIKey) { // sent in a header
		if c := t.APIKey[i]; c <= ' ' || c >= 0x7f {
			return errors.New("api_key: it must be of visible ASCII characters")
		}
	}
	for k, v := range t.Labels {
		if k == "" || len(k) > maxLabel || len(v) > maxLabel {
			return fmt.Errorf("labels: %.50q: a key must be 1 to %d bytes, a value at most %d", k, maxLabel, maxLabel)
		}
		if err := checkText("labels", k); err != nil {
			return err
		}
		if err := checkText("labels", v); err != nil {
			return err
		}
	}
	return nil
}
