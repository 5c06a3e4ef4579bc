// SPDX-License-Identifier: Apache-2.0

package indexsrv

import (
	"kindex/indexsrv/state"
	"kindex/internal/kv"
	"kindex/shard"
)

// rankAt is a registered rank and the number of its registration in a list.
type rankAt struct {
	rank         *rank
	registration int
}

// registrations lists what is registered, in the order of registration, and all ranks.
func (g *registry) registrations() (regs []state.Registration, ranks []rankAt) {
	numbers := map[*Registration]int{}
	for _, w := range g.workers(nil) {
		for _, r := range *w.ranks.Load() {
			n, ok := numbers[r.reg]
			if !ok {
				n = len(regs)
				numbers[r.reg] = n
				regs = append(regs, keepRegistration(r.reg))
			}
			regs[n].Live = append(regs[n].Live, r.number)
			ranks = append(ranks, rankAt{r, n})
		}
	}
	return regs, ranks
}

func keepRegistration(r *Registration) state.Registration {
	return state.Registration{
		Instance: r.Instance.text, Number: r.Instance.number,
		Endpoint: r.Endpoint, ReplayEndpoint: r.ReplayEndpoint,
		Model: r.Model, RoutingGroup: r.RoutingGroup, Tenant: r.Tenant,
		BlockSize: r.BlockSize, Rank: r.Rank, Ranks: r.Ranks, Engine: r.Engine, Source: r.Source,
	}
}

func registrationOf(r *state.Registration) Registration {
	return Registration{
		Instance: InstanceID{r.Instance, r.Number},
		Endpoint: r.Endpoint, ReplayEndpoint: r.ReplayEndpoint,
		Model: r.Model, RoutingGroup: r.RoutingGroup, Tenant: r.Tenant,
		BlockSize: r.BlockSize, Rank: r.Rank, Ranks: r.Ranks, Engine: r.Engine, Source: r.Source,
	}
}

// rebase gives the namespaces of c other numbers: content seeds for a state, which
// knows no model's key, and back.
func rebase[To, From ~uint64](c *shard.Content, number func(From) To) {
	for i := range c.Stretches {
		c.Stretches[i].Namespace = kv.Namespace(number(From(c.Stretches[i].Namespace)))
	}
	for i := range c.Orphans {
		st := &c.Orphans[i].Store
		st.Namespace = kv.Namespace(number(From(st.Namespace)))
	}
}

// sameStream reports whether what was told at one is what is told at the other.
func sameStream(a, b *StreamConfig) bool {
	return a.Rank == b.Rank && a.Endpoint == b.Endpoint && a.ReplayEndpoint == b.ReplayEndpoint &&
		a.Model == b.Model && a.BlockSize == b.BlockSize && a.Engine == b.Engine && (a.Relay == nil) == (b.Relay == nil)
}
