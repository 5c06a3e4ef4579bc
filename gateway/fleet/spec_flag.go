// SPDX-License-Identifier: Apache-2.0

// Before: --worker, and its mappings in a file. After: the registry.

package fleet

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"

	"kindex/internal/settings"
)

// FlagForm is what --worker takes, for messages.
const FlagForm = "URL[,model=NAME[|NAME]...][,engine=vllm|sglang][,events=ENDPOINT][,replay=ENDPOINT][,relay=HOST:PORT][,relay_name=NAME]" +
	"[,dp_size=N][,block=TOKENS][,instance=ID][,name=NAME][,api_key_file=FILE][,priority=N][,cost=FACTOR][,label=KEY:VALUE[|KEY:VALUE]...]"

// flagFields set one field of a specification from text, by the keys of --worker.
var flagFields = map[string]func(*Spec, string) error{
	"url": func(s *Spec, v string) (err error) {
		s.URL, err = CanonicalURL(v)
		if err != nil {
			return errors.New(strings.TrimPrefix(err.Error(), "url: "))
		}
		return nil
	},
	"model": func(s *Spec, v string) error { s.Models = strings.Split(v, "|"); return nil },
	"engine": func(s *Spec, v string) error {
		s.Engine = v
		return settings.OneOf(v, []string{VLLM, SGLang})
	},
	"events":     func(s *Spec, v string) error { s.Events.Endpoint = v; return checkEndpoint(v) },
	"replay":     func(s *Spec, v string) error { s.Events.Replay = v; return checkEndpoint(v) },
	"relay":      func(s *Spec, v string) error { s.Events.Relay = v; return checkTarget(v) },
	"relay_name": func(s *Spec, v string) error { s.Events.Name = v; return nil },
	"dp_size":    func(s *Spec, v string) error { return setInt(&s.Ranks, v, 1, MaxRanks) },
	"block":      func(s *Spec, v string) error { return setInt(&s.BlockSize, v, 1, maxBlock) },
	"instance":   func(s *Spec, v string) error { s.Instance = v; return nil },
	"name":       func(s *Spec, v string) error { s.Name = v; return nil },
	"api_key_file": func(s *Spec, v string) (err error) {
		s.KeyFile = v
		s.Terms.APIKey, err = settings.ReadToken(v)
		return err
	},
	"priority": func(s *Spec, v string) error { return setInt(&s.Terms.Priority, v, 0, maxPriority) },
	"cost": func(s *Spec, v string) (err error) {
		if s.Terms.Cost, err = strconv.ParseFloat(v, 64); err != nil || !(s.Terms.Cost > 0 && s.Terms.Cost <= maxCost) {
			return fmt.Errorf("%.100q must be a number above 0, at most %v", v, maxCost)
		}
		return nil
	},
	"label": func(s *Spec, v string) error {
		s.Terms.Labels = make(map[string]string)
		for one := range strings.SplitSeq(v, "|") {
			key, value, ok := strings.Cut(one, ":")
			if !ok || key == "" {
				return fmt.Errorf("%.100q must be KEY:VALUE", one)
			}
			s.Terms.Labels[key] = value
		}
		return nil
	},
}

func setInt(p *int, v string, lo, hi int) error {
	n, err := strconv.Atoi(v)
	if err != nil || n < lo || n > hi {
		return fmt.Errorf("%.100q must be an integer from %d to %d", v, lo, hi)
	}
	*p = n
	return nil
}

// checkTarget returns why s is no host:port to connect to.
func checkTarget(s string) error {
	host, port, err := net.SplitHostPort(s)
	n, perr := strconv.ParseUint(port, 10, 16)
	if err != nil || perr != nil || n == 0 || host == "" || strings.ContainsAny(s, "/ \t\r\n") {
		return fmt.Errorf("%.200q must be HOST:PORT", s)
	}
	return nil
}

// checkEndpoint returns why s is no endpoint of a publisher.
func checkEndpoint(s string) error {
	rest, ok := strings.CutPrefix(s, "tcp://")
	if ok && checkTarget(rest) == nil {
		return nil
	}
	if path, ok := strings.CutPrefix(s, "ipc://"); ok && path != "" && !strings.ContainsAny(path, " \t\r\n") {
		return nil
	}
	return fmt.Errorf("%.200q must be tcp://HOST:PORT or ipc://PATH", s)
}

// A FlagReader takes a specification key by key, each at most once.
type FlagReader struct {
	spec  Spec
	given []string
}

// Set takes one key.
func (r *FlagReader) Set(key, value string) error {
	if r.given == nil {
		r.spec.Terms = Terms{Priority: DefaultPriority, Cost: DefaultCost}
	}
	set := flagFields[key]
	switch {
	case set == nil:
		return fmt.Errorf("unknown key %.100q: a worker has %s", key, strings.Join(slices.Sorted(maps.Keys(flagFields)), ", "))
	case slices.Contains(r.given, key):
		return fmt.Errorf("%s is given twice", key)
	case value == "":
		return fmt.Errorf("%s is empty", key)
	}
	r.given = append(r.given, key)
	if err := set(&r.spec, value); err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	return nil
}

// End returns the specification.
//
// Errors: the first fault of what the keys say together.
func (r *FlagReader) End() (Spec, error) {
	if r.spec.URL == "" {
		return Spec{}, fmt.Errorf("url is missing: it must be %s", FlagForm)
	}
	return r.spec, r.spec.Validate()
}

// ParseFlag reads a worker as --worker writes it: its URL, then keys.
func ParseFlag(s string) (Spec, error) {
	var r FlagReader
	first, rest, more := strings.Cut(s, ",")
	if err := r.Set("url", first); err != nil {
		return Spec{}, err
	}
	for more {
		var part string
		part, rest, more = strings.Cut(rest, ",")
		key, value, ok := strings.Cut(part, "=")
		if !ok {
			return Spec{}, fmt.Errorf("%.200q: it must be %s", s, FlagForm)
		}
		if err := r.Set(key, value); err != nil {
			return Spec{}, err
		}
	}
	return r.End()
}

// Pairs returns s as a mapping whose keys [FlagReader.Set] takes. An API key that came
// from no file is left out: it is shown nowhere.
func (s *Spec) Pairs() []settings.Pair {
	pairs := []settings.Pair{{Key: "url", Value: s.URL}}
	add := func(key, value string) {
		if value != "" && value != "0" {
			pairs = append(pairs, settings.Pair{Key: key, Value: value})
		}
	}
	add("name", s.Name)
	add("model", strings.Join(s.Models, "|"))
	add("engine", s.Engine)
	add("dp_size", strconv.Itoa(s.Ranks))
	add("block", strconv.Itoa(s.BlockSize))
	add("instance", s.Instance)
	add("events", s.Events.Endpoint)
	add("replay", s.Events.Replay)
	add("relay", s.Events.Relay)
	add("relay_name", s.Events.Name)
	add("api_key_file", s.KeyFile)
	if s.Terms.Priority != DefaultPriority {
		pairs = append(pairs, settings.Pair{Key: "priority", Value: strconv.Itoa(s.Terms.Priority)})
	}
	if s.Terms.Cost != DefaultCost {
		add("cost", strconv.FormatFloat(s.Terms.Cost, 'f', -1, 64))
	}
	var labels []string
	for _, key := range slices.Sorted(maps.Keys(s.Terms.Labels)) {
		labels = append(labels, key+":"+s.Terms.Labels[key])
	}
	add("label", strings.Join(labels, "|"))
	return pairs
}
