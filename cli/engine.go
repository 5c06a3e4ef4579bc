// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"slices"
	"strings"

	"kindex/relay/feed"
)

// engineForm is what --engine takes: as the relay's, but one rank's.
const engineForm = "vllm|sglang=ENDPOINT[,replay=ENDPOINT]"

// engineSpec is an engine's sockets, those of rank 0 as the engine is configured.
type engineSpec struct {
	kind, live, replay string
}

// parseEngine reads --engine for one rank.
func parseEngine(s string, rank int) (feed.Config, string, error) {
	var e engineSpec
	for part := range strings.SplitSeq(s, ",") {
		key, value, ok := strings.Cut(part, "=")
		bad := !ok || value == ""
		switch {
		case slices.Contains([]string{"vllm", "sglang"}, key) && e.kind == "":
			e.kind, e.live = key, value
		case key == "replay" && e.replay == "":
			e.replay = value
		default:
			bad = true
		}
		if bad {
			return feed.Config{}, "", usagef("--engine: %.200q must be %s", s, engineForm)
		}
	}
	if e.kind == "" {
		return feed.Config{}, "", usagef("--engine: %.200q must be %s", s, engineForm)
	}
	if err := feed.CheckEndpoint(e.live, false); err != nil {
		return feed.Config{}, "", usagef("--engine: %v", err)
	}
	cfg := feed.Config{Rank: rank}
	var err error
	if cfg.Endpoint, err = feed.RankEndpoint(e.live, rank); err != nil {
		return cfg, "", usagef("--rank: %v", err)
	}
	if e.replay == "" {
		return cfg, e.kind, nil
	}
	if err := feed.CheckEndpoint(e.replay, true); err != nil {
		return cfg, "", usagef("--engine: replay: %v", err)
	}
	if cfg.ReplayEndpoint, err = feed.RankEndpoint(e.replay, rank); err != nil {
		return cfg, "", usagef("--rank: %v", err)
	}
	return cfg, e.kind, nil
}
