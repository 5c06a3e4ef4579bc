// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"fmt"

	"kindex/gateway/fleet"
	"kindex/internal/settings"
)

// workerForm is what --worker takes, for messages.
const workerForm = fleet.FlagForm

// addWorker takes a worker as the command line writes it: its URL, then key=value
// fields, separated by commas.
func (c *Config) addWorker(s string) error {
	w, err := fleet.ParseFlag(s)
	if err == nil {
		c.Workers = append(c.Workers, w)
	}
	return err
}

// beginWorker takes a worker as a mapping of the file.
func (c *Config) beginWorker() (set func(key, value string, quoted bool) error, end func() error) {
	var r fleet.FlagReader
	set = func(key, value string, _ bool) error { return r.Set(key, value) }
	return set, func() error {
		w, err := r.End()
		if err == nil {
			c.Workers = append(c.Workers, w)
		}
		return err
	}
}

// workerItems are the workers as mappings.
func (c *Config) workerItems() [][]settings.Pair {
	var items [][]settings.Pair
	for i := range c.Workers {
		items = append(items, c.Workers[i].Pairs())
	}
	return items
}

// workerFaults returns what is wrong with the workers together.
func (c *Config) workerFaults() []error {
	var faults []error
	urls, instances := map[string]bool{}, map[string]bool{}
	for i := range c.Workers {
		w := &c.Workers[i]
		if urls[w.URL] {
			faults = append(faults, fmt.Errorf("worker: %s is given twice", w.URL))
		}
		if w.Instance != "" && instances[w.Instance] {
			faults = append(faults, fmt.Errorf("worker %s: instance: %s is given twice", w.URL, w.Instance))
		}
		urls[w.URL], instances[w.Instance] = true, true
	}
	if len(c.Workers) > fleet.MaxWorkers {
		faults = append(faults, fmt.Errorf("worker: %d of them: it must be at most %d", len(c.Workers), fleet.MaxWorkers))
	}
	return faults
}
