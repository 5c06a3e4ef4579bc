// SPDX-License-Identifier: Apache-2.0

// Before: a load.Meter. After: Subscription.

package relay

import "kindex/relay/load"

// MeterLoads returns what [EngineConfig.Load] takes to have m's readings on every
// stream of the engine's ranks.
func MeterLoads(m *load.Meter) func(rank int) LoadSource {
	return func(rank int) LoadSource {
		if s := m.Source(rank); s != nil {
			return meterSource{s}
		}
		return nil
	}
}

type meterSource struct{ *load.Source }

// Pace implements LoadSource.
func (s meterSource) Pace() LoadPace { return s.Source.Pace() }
