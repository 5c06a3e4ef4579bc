// SPDX-License-Identifier: Apache-2.0

package indexsrv

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// workerKeys are the fields of a --worker, by the names of /register, with the
// short forms that a command line may use.
var workerKeys = map[string]string{
	"model": "model_name", "block": "block_size", "replay": "replay_endpoint",
}

// workerFields sets one field of a registration from text.
var workerFields = map[string]func(*Registration, string) error{
	"instance_id":     func(r *Registration, s string) error { r.Instance = ParseID(s); return nil },
	"endpoint":        func(r *Registration, s string) error { r.Endpoint = s; return nil },
	"replay_endpoint": func(r *Registration, s string) error { r.ReplayEndpoint = s; return nil },
	"model_name":      func(r *Registration, s string) error { r.Model = s; return nil },
	"routing_group":   func(r *Registration, s string) error { r.RoutingGroup = s; return nil },
	"tenant_id":       func(r *Registration, s string) error { r.Tenant = s; return nil },
	"engine":          func(r *Registration, s string) error { r.Engine = s; return nil },
	"source":          func(r *Registration, s string) error { r.Source = s; return nil },
	"block_size":      func(r *Registration, s string) error { return setInt(&r.BlockSize, s, 1, maxBlockSize) },
	"dp_rank":         func(r *Registration, s string) error { return setInt(&r.Rank, s, 0, maxRank) },
	"dp_size":         func(r *Registration, s string) error { return setInt(&r.Ranks, s, 1, maxRanks) },
}

func setInt(p *int, s string, lo, hi int) error {
	n, err := strconv.Atoi(s)
	if err != nil || n < lo || n > hi {
		return fmt.Errorf("%.100q must be an integer from %d to %d", s, lo, hi)
	}
	*p = n
	return nil
}

// workerForm is what --worker takes, for messages.
const workerForm = "ID=ENDPOINT,model=NAME,block=TOKENS[,replay=ENDPOINT][,dp_size=N][,source=relay]..."

// addWorker takes a worker as the command line writes it.
func (c *Config) addWorker(s string) error {
	r, err := parseWorker(s)
	if err == nil {
		c.Workers = append(c.Workers, r)
	}
	return err
}

// beginWorker takes a worker as a mapping with /register's field names.
func (c *Config) beginWorker() (set func(key, value string, quoted bool) error, end func() error) {
	var r Registration
	var given []string
	set = func(key, value string, quoted bool) error {
		err := setWorkerField(&r, key, value, &given)
		if err == nil && quoted && key == "instance_id" {
			r.Instance = TextID(value)
		}
		return err
	}
	return set, func() error {
		c.Workers = append(c.Workers, r)
		return firstFault(&r)
	}
}

// parseWorker reads one --worker: the instance id, =, the endpoint, and then
// key=value fields, separated by commas.
func parseWorker(s string) (Registration, error) {
	var r Registration
	given := []string{"endpoint"}
	for i, part := range strings.Split(s, ",") {
		key, value, ok := strings.Cut(part, "=")
		if !ok {
			return r, fmt.Errorf("%.200q: it must be %s", s, workerForm)
		}
		if i == 0 {
			r.Instance, r.Endpoint = ParseID(key), value
			continue
		}
		if err := setWorkerField(&r, key, value, &given); err != nil {
			return r, err
		}
	}
	return r, firstFault(&r)
}

// setWorkerField sets the field that key names, once.
func setWorkerField(r *Registration, key, value string, given *[]string) error {
	name := key
	if long, ok := workerKeys[key]; ok {
		name = long
	}
	set, ok := workerFields[name]
	if !ok {
		return fmt.Errorf("unknown key %.100q: a worker has %s", key, strings.Join(workerKeyNames(), ", "))
	}
	if slices.Contains(*given, name) {
		return fmt.Errorf("%s is given twice", name)
	}
	*given = append(*given, name)
	if value == "" {
		return fmt.Errorf("%s is empty", name)
	}
	if err := set(r, value); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

func workerKeyNames() []string {
	var names []string
	for name := range workerFields {
		for short, long := range workerKeys {
			if long == name {
				name = short + " (" + long + ")"
			}
		}
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func firstFault(r *Registration) error {
	if faults := r.Validate(); len(faults) > 0 {
		return faults[0]
	}
	return nil
}
