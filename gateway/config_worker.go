// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"fmt"

	"kindex/gateway/fleet"
	"kindex/internal/settings"
)

// addWorker takes a worker as the command line writes it.
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

// workerFaults returns what is wrong with the workers, alone and together.
func (c *Config) workerFaults() []error {
	var faults []error
	urls, instances := map[string]bool{}, map[string]string{}
	for i := range c.Workers {
		w := c.Workers[i] // a copy: validating brings it into its canonical form
		if err := w.Validate(); err != nil {
			faults = append(faults, fmt.Errorf("worker %s: %w", c.Workers[i].URL, err))
			continue
		}
		if urls[w.URL] {
			faults = append(faults, fmt.Errorf("worker: %s is given twice", w.URL))
		}
		urls[w.URL] = true
		if other, ok := instances[w.Instance]; ok && w.Instance != "" {
			faults = append(faults, fmt.Errorf("worker %s: instance: %s is %s's already", w.URL, w.Instance, other))
		}
		instances[w.Instance] = w.URL
	}
	return faults
}
