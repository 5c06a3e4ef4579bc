// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"kindex/gateway/fleet"
	"kindex/internal/settings"
)

// workerForm is what --worker takes, for messages.
const workerForm = "URL[,model=NAME][,engine=vllm|sglang][,events=ENDPOINT][,replay=ENDPOINT][,relay=HOST:PORT][,dp_size=N][,block=TOKENS][,instance=ID]..."

// Bounds of a worker's numbers.
const (
	maxRanks     = 1 << 10
	maxBlockSize = 1 << 16
)

// workerFields set one field of a worker from text, by the keys of --worker.
var workerFields = map[string]func(*fleet.Spec, string) error{
	"url":   setURL,
	"model": func(w *fleet.Spec, s string) error { w.Models = strings.Split(s, "|"); return nil },
	"engine": func(w *fleet.Spec, s string) error {
		w.Engine = s
		return settings.OneOf(s, []string{fleet.VLLM, fleet.SGLang})
	},
	"dp_size":    func(w *fleet.Spec, s string) error { return setInt(&w.Ranks, s, 1, maxRanks) },
	"block":      func(w *fleet.Spec, s string) error { return setInt(&w.BlockSize, s, 1, maxBlockSize) },
	"instance":   func(w *fleet.Spec, s string) error { w.Instance = s; return nil },
	"events":     func(w *fleet.Spec, s string) error { w.Events.Endpoint = s; return nil },
	"replay":     func(w *fleet.Spec, s string) error { w.Events.Replay = s; return nil },
	"relay":      func(w *fleet.Spec, s string) error { w.Events.Relay = s; return nil },
	"relay_name": func(w *fleet.Spec, s string) error { w.Events.Name = s; return nil },
	"priority":   func(w *fleet.Spec, s string) error { return setInt(&w.Terms.Priority, s, 0, 1_000_000) },
	"cost":       setCost,
}

func setInt(p *int, s string, lo, hi int) error {
	n, err := strconv.Atoi(s)
	if err != nil || n < lo || n > hi {
		return fmt.Errorf("%.100q must be an integer from %d to %d", s, lo, hi)
	}
	*p = n
	return nil
}

func setCost(w *fleet.Spec, s string) error {
	v, err := strconv.ParseFloat(s, 64)
	if err != nil || !(v > 0 && v <= 1e6) {
		return fmt.Errorf("%.100q must be a number over 0, up to 1000000", s)
	}
	w.Terms.Cost = v
	return nil
}

func setURL(w *fleet.Spec, s string) error {
	u, err := url.Parse(s)
	if err != nil || u.Hostname() == "" || u.Port() == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" ||
		!slices.Contains([]string{"http", "https", "grpc", "grpcs"}, u.Scheme) {
		return fmt.Errorf("%.200q must be http, https, grpc or grpcs://HOST:PORT", s)
	}
	w.URL = strings.TrimSuffix(s, "/")
	return nil
}

// workerReader sets the fields of one worker, each once.
type workerReader struct {
	spec  fleet.Spec
	given []string
}

func newWorkerReader() *workerReader {
	return &workerReader{spec: fleet.Spec{Ranks: 1, Terms: fleet.Terms{Priority: 50, Cost: 1}}}
}

func (r *workerReader) set(key, value string) error {
	set := workerFields[key]
	if set == nil {
		return fmt.Errorf("unknown key %.100q: a worker has %s", key, strings.Join(slices.Sorted(maps.Keys(workerFields)), ", "))
	}
	if slices.Contains(r.given, key) {
		return fmt.Errorf("%s is given twice", key)
	}
	r.given = append(r.given, key)
	if value == "" {
		return fmt.Errorf("%s is empty", key)
	}
	if err := set(&r.spec, value); err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	return nil
}

func (r *workerReader) end(c *Config) error {
	if r.spec.URL == "" {
		return errors.New("url is missing")
	}
	c.Workers = append(c.Workers, r.spec)
	return nil
}

// addWorker takes a worker as the command line writes it: its URL, then key=value
// fields, separated by commas.
func (c *Config) addWorker(s string) error {
	r := newWorkerReader()
	first, rest, more := strings.Cut(s, ",")
	if err := r.set("url", first); err != nil {
		return fmt.Errorf("%w: it must be %s", err, workerForm)
	}
	for more {
		var part string
		part, rest, more = strings.Cut(rest, ",")
		key, value, ok := strings.Cut(part, "=")
		if !ok {
			return fmt.Errorf("%.200q: it must be %s", s, workerForm)
		}
		if err := r.set(key, value); err != nil {
			return err
		}
	}
	return r.end(c)
}

// beginWorker takes a worker as a mapping of the file.
func (c *Config) beginWorker() (set func(key, value string, quoted bool) error, end func() error) {
	r := newWorkerReader()
	set = func(key, value string, _ bool) error { return r.set(key, value) }
	return set, func() error { return r.end(c) }
}

// workerItems are the workers as mappings.
func (c *Config) workerItems() [][]settings.Pair {
	var items [][]settings.Pair
	for i := range c.Workers {
		w := &c.Workers[i]
		item := []settings.Pair{{Key: "url", Value: w.URL}}
		add := func(key, value string) {
			if value != "" && value != "0" {
				item = append(item, settings.Pair{Key: key, Value: value})
			}
		}
		add("model", strings.Join(w.Models, "|"))
		add("engine", w.Engine)
		add("dp_size", strconv.Itoa(w.Ranks))
		add("block", strconv.Itoa(w.BlockSize))
		add("instance", w.Instance)
		add("events", w.Events.Endpoint)
		add("replay", w.Events.Replay)
		add("relay", w.Events.Relay)
		add("relay_name", w.Events.Name)
		item = append(item, settings.Pair{Key: "priority", Value: strconv.Itoa(w.Terms.Priority)})
		add("cost", strconv.FormatFloat(w.Terms.Cost, 'f', -1, 64))
		items = append(items, item)
	}
	return items
}

// workerFaults returns what is wrong with the workers together.
func (c *Config) workerFaults() []error {
	var faults []error
	seen := map[string]bool{}
	for i := range c.Workers {
		u := c.Workers[i].URL
		if seen[u] {
			faults = append(faults, fmt.Errorf("worker: %s is given twice", u))
		}
		seen[u] = true
	}
	return faults
}
