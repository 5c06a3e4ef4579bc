// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"fmt"
	"net"
	"strings"

	"kindex/relay/feed"
)

// placed is an address of the configuration: whose it is, and as what.
type placed struct {
	engine int // -1: the relay's HTTP server
	field  string
	rank   int
	own    bool // the relay listens there
}

// places returns every address that c connects to, binds or listens on.
func (c *Config) places() (uses []feed.Use, by []placed) {
	add := func(p placed, endpoint string) {
		uses = append(uses, feed.Use{What: p.field, Endpoint: endpoint})
		by = append(by, p)
	}
	listener := func(engine int, field, address string) {
		host, port, err := net.SplitHostPort(address)
		if err != nil || port == "0" {
			return
		}
		if host == "" {
			host = "*"
		}
		add(placed{engine, field, 0, true}, "tcp://"+net.JoinHostPort(host, port))
	}
	if c.HTTP != httpOff {
		listener(-1, "http", c.HTTP)
	}
	for i := range c.Engines {
		if address, err := c.listenOf(i); err == nil {
			listener(i, "listen", address)
		}
	}
	for i := range c.Engines {
		e := &c.Engines[i]
		for _, f := range [...]struct{ field, endpoint string }{{e.Kind, e.Endpoint}, {"replay", e.Replay}, {"loads", e.Loads}} {
			if f.endpoint == "" {
				continue
			}
			for r := range max(e.Ranks, 1) {
				endpoint, err := feed.RankEndpoint(f.endpoint, r)
				if err != nil {
					break
				}
				add(placed{i, f.field, r, false}, endpoint)
			}
		}
		if e.GRPC != "" {
			add(placed{i, "grpc", 0, false}, "tcp://"+e.GRPC)
		}
	}
	return uses, by
}

// overlapFaults returns which addresses of c are one where they cannot be: sockets
// that speak differently, two engines on one socket, the relay itself.
func (c *Config) overlapFaults() []error {
	var faults []error
	type pair struct{ a, b placed }
	told := map[pair]bool{}
	uses, by := c.places()
	feed.Overlaps(uses, func(first, second int) {
		a, b := by[first], by[second]
		if a.own && b.own || a.field == "grpc" && b.field == "grpc" {
			return // addressFaults tells; engines may share a server
		}
		// Once for two fields, not for each of their ranks.
		key := pair{placed{a.engine, a.field, 0, a.own}, placed{b.engine, b.field, 0, b.own}}
		if told[key] {
			return
		}
		told[key] = true
		faults = append(faults, c.overlapFault(a, b, uses[second].Endpoint))
	})
	return faults
}

func (c *Config) overlapFault(a, b placed, endpoint string) error {
	name := c.nameOf(b.engine)
	switch {
	case a.own && b.field == "grpc":
		return fmt.Errorf("engine %s: grpc: %s is this relay's own address (%s): RPCs would come back to it; give the engine's own server",
			name, strings.TrimPrefix(endpoint, "tcp://"), c.listenerName(a))
	case a.own:
		return fmt.Errorf("engine %s: %s: rank %d would be %s, where this relay listens (%s): give the engine's own socket",
			name, b.field, b.rank, endpoint, c.listenerName(a))
	case a.engine != b.engine:
		return fmt.Errorf("engine %s: %s: rank %d would be %s, which is rank %d of %s of engine %s: every engine needs sockets of its own",
			name, b.field, b.rank, endpoint, a.rank, a.field, c.nameOf(a.engine))
	}
	return fmt.Errorf("engine %s: %s: rank %d would be %s, which is rank %d of %s: give ports that overlap over no rank, such as %s=tcp://h:5557 with replay=tcp://h:5657",
		name, b.field, b.rank, endpoint, a.rank, a.field, c.Engines[b.engine].Kind)
}

func (c *Config) listenerName(p placed) string {
	if p.engine < 0 {
		return "http"
	}
	return "listen of engine " + c.nameOf(p.engine)
}
