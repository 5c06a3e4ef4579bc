// SPDX-License-Identifier: Apache-2.0

// Before: an index host's streams of loads. After: the fleet's holders.

package index

import (
	"log/slog"

	"kindex/gateway/fleet"
	"kindex/internal/lookup"
)

// loads takes what an index tells of its holders' loads and levels.
type loads struct {
	idx   lookup.Index
	names *names
	log   *slog.Logger
}

func startLoads(idx lookup.Index, n *names, log *slog.Logger) *loads {
	return &loads{idx: idx, names: n, log: log}
}

func (*loads) unready() []string { return nil }

func (*loads) stream(*fleet.Worker) Stream { return Stream{Status: "pending"} }

func (*loads) count(*Stats) {}

func (*loads) close() {}
