// SPDX-License-Identifier: Apache-2.0

// Before: the HTTP routes and the configuration, as they read them. After: the
// registry.

package indexsrv

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"kindex/internal/kv"
	"kindex/internal/lookup"
	"kindex/internal/settings"
	"kindex/relay/client"
	"kindex/relay/feed"
)

// Limits of a registration. Chosen, not measured: wide of every engine seen.
const (
	maxNameBytes = 512    // model, group, tenant, instance id
	maxEndpoint  = 512    // bytes
	maxBlockSize = 65_536 // tokens
	maxRank      = 65_535
	maxRanks     = 1_024 // data-parallel ranks of one registration
)

// What a refusal is about. [RefusalStatus] gives each its HTTP status.
var (
	ErrInvalid     = lookup.ErrInvalid
	ErrNotFound    = lookup.ErrNotFound
	ErrConflict    = lookup.ErrConflict
	ErrUnavailable = lookup.ErrUnavailable
	ErrDenied      = lookup.ErrDenied
	ErrDeadline    = lookup.ErrDeadline
)

func refuse(kind error, format string, args ...any) error {
	return lookup.Refuse(kind, format, args...)
}

// InstanceID names one engine process. Clients give integers or strings and get
// back what they gave; 1 and "1" are the same instance, because both are the key
// "1" in an answer.
type InstanceID struct {
	text   string // the key: decimal, or the string itself
	number bool   // shown as a JSON number
}

// NumberID returns the instance id n.
func NumberID(n uint64) InstanceID { return InstanceID{strconv.FormatUint(n, 10), true} }

// TextID returns the instance id s, shown as a string.
func TextID(s string) InstanceID { return InstanceID{text: s} }

// ParseID reads an instance id from a place without types, a command line:
// decimal digits are a number.
func ParseID(s string) InstanceID {
	if n, err := strconv.ParseUint(s, 10, 64); err == nil && strconv.FormatUint(n, 10) == s {
		return NumberID(n)
	}
	return TextID(s)
}

// String returns the id as an object key.
func (id InstanceID) String() string { return id.text }

// Registration asks for one instance's streams. JSON names are HTTP's and the
// configuration file's.
type Registration struct {
	Instance InstanceID
	// Endpoint is the live socket of rank 0, or of Rank where Ranks is 1. Of a relay
	// it is host:port, the same for all ranks.
	Endpoint       string
	ReplayEndpoint string // the same for the replay socket; "": none
	Model          string
	RoutingGroup   string // "": default
	Tenant         string // "": default
	BlockSize      int    // tokens
	Rank           int    // the one data-parallel rank, where Ranks is 1
	Ranks          int    // ranks 0 to Ranks-1, at port + rank; 0 means 1
	Engine         string // "": auto
	Source         string // "": zmq
}

// defaultGroup is the routing group, and the tenant, of those who name none.
const defaultGroup = lookup.DefaultName

// engines and sources that a registration may name, the default first.
var (
	engines = []string{"auto", "vllm", "sglang"}
	sources = []string{sourceZMQ, sourceRelay}
)

const (
	sourceZMQ   = "zmq"   // an engine's own sockets
	sourceRelay = "relay" // an event stream over gRPC
)

// modelName names what a fleet serves side by side: one space of namespaces.
type modelName struct {
	tenant, model, group string
}

func makeModelName(tenant, model, group string) modelName {
	return modelName{orDefault(tenant, defaultGroup), model, orDefault(group, defaultGroup)}
}

// String is [lookup.ModelLabel].
func (n modelName) String() string { return lookup.ModelLabel(n.tenant, n.model, n.group) }

func orDefault(s, def string) string {
	if s == "" {
		return def
	}
	return s
}

// name returns the model that r belongs to.
func (r *Registration) name() modelName { return makeModelName(r.Tenant, r.Model, r.RoutingGroup) }

// Validate returns what is wrong with r, every fault.
func (r *Registration) Validate() []error {
	var faults []error
	bad := func(field, format string, args ...any) {
		faults = append(faults, refuse(ErrInvalid, "%s: %s", field, fmt.Sprintf(format, args...)))
	}
	check := func(field string, err error) {
		if err != nil {
			bad(field, "%v", err)
		}
	}
	check("instance_id", checkName(r.Instance.text, true))
	check("model_name", checkName(r.Model, true))
	check("routing_group", checkName(r.RoutingGroup, false))
	check("tenant_id", checkName(r.Tenant, false))
	if r.BlockSize < 1 || r.BlockSize > maxBlockSize {
		bad("block_size", "must be an integer from 1 to %d", maxBlockSize)
	}
	if r.Rank < 0 || r.Rank > maxRank {
		bad("dp_rank", "must be an integer from 0 to %d", maxRank)
	}
	if r.Ranks < 0 || r.Ranks > maxRanks {
		bad("dp_size", "must be an integer from 1 to %d", maxRanks)
	} else if r.Ranks > 1 && r.Rank != 0 {
		bad("dp_rank", "must be left out where dp_size is %d: ranks 0 to %d are subscribed", r.Ranks, r.Ranks-1)
	}
	check("engine", settings.OneOf(r.Engine, engines))
	check("source", settings.OneOf(r.Source, sources))
	if len(faults) > 0 {
		faults = append(faults, r.endpointFaults()...)
		return faults
	}
	_, faults = r.streams(feed.Limits{})
	return faults
}

func checkName(s string, required bool) error {
	switch {
	case s == "" && !required:
		return nil
	case s == "":
		return fmt.Errorf("is missing: it must be 1 to %d bytes", maxNameBytes)
	case len(s) > maxNameBytes:
		return fmt.Errorf("must be 1 to %d bytes", maxNameBytes)
	case !utf8.ValidString(s):
		return errors.New("must be valid UTF-8")
	case strings.ContainsFunc(s, unicode.IsControl):
		return errors.New("must not contain control characters")
	}
	return nil
}

func (r *Registration) endpointFaults() []error {
	if r.Source == sourceRelay {
		return r.relayFaults()
	}
	var faults []error
	for _, e := range [...]struct {
		field, text string
		replay      bool
	}{{"endpoint", r.Endpoint, false}, {"replay_endpoint", r.ReplayEndpoint, true}} {
		switch {
		case e.text == "" && e.replay:
		case e.text == "":
			faults = append(faults, refuse(ErrInvalid, "%s: is missing: it must be tcp://host:port or ipc://path", e.field))
		case len(e.text) > maxEndpoint:
			faults = append(faults, refuse(ErrInvalid, "%s: must be at most %d bytes", e.field, maxEndpoint))
		default:
			if err := feed.CheckEndpoint(e.text, e.replay); err != nil {
				faults = append(faults, refuse(ErrInvalid, "%s: %v", e.field, err))
			}
		}
	}
	return faults
}

// relayFaults returns what is wrong with the endpoints of a relay.
func (r *Registration) relayFaults() []error {
	var faults []error
	if r.ReplayEndpoint != "" {
		faults = append(faults, refuse(ErrInvalid, "replay_endpoint: must be left out where source is relay: the relay keeps the history"))
	}
	switch {
	case r.Endpoint == "":
		faults = append(faults, refuse(ErrInvalid, "endpoint: is missing: it must be host:port of the relay's gRPC server"))
	case len(r.Endpoint) > maxEndpoint:
		faults = append(faults, refuse(ErrInvalid, "endpoint: must be at most %d bytes", maxEndpoint))
	default:
		if err := client.CheckAddress(r.Endpoint); err != nil {
			faults = append(faults, refuse(ErrInvalid, "endpoint: %v", err))
		}
	}
	return faults
}

// streams returns one configuration for each rank of r, rank ascending.
func (r *Registration) streams(limits feed.Limits) ([]StreamConfig, []error) {
	if faults := r.endpointFaults(); len(faults) > 0 {
		return nil, faults
	}
	name := r.name()
	one := StreamConfig{
		Rank:           r.Rank,
		Endpoint:       r.Endpoint,
		ReplayEndpoint: r.ReplayEndpoint,
		Model:          kv.MakeModelKey(name.tenant, name.model, name.group),
		BlockSize:      r.BlockSize,
		Engine:         orDefault(r.Engine, engines[0]),
		Limits:         limits,
	}
	cfgs := make([]StreamConfig, max(r.Ranks, 1))
	if r.Source == sourceRelay {
		one.Relay = newRelayGroup(len(cfgs))
		for i := range cfgs {
			cfgs[i] = one
			cfgs[i].Rank += i
		}
		return cfgs, nil
	}
	for i := range cfgs {
		c := one
		if r.Ranks <= 1 {
			cfgs[i] = c
			break
		}
		rank := i
		c.Rank = rank
		var err error
		if c.Endpoint, err = feed.RankEndpoint(r.Endpoint, rank); err != nil {
			return nil, []error{refuse(ErrInvalid, "endpoint: %v", err)}
		}
		if r.ReplayEndpoint != "" {
			if c.ReplayEndpoint, err = feed.RankEndpoint(r.ReplayEndpoint, rank); err != nil {
				return nil, []error{refuse(ErrInvalid, "replay_endpoint: %v", err)}
			}
		}
		cfgs[rank] = c
	}
	if other := overlap(cfgs); other != "" {
		return nil, []error{refuse(ErrInvalid, "replay_endpoint: %s is also a live endpoint: the two must not overlap, over all ranks", other)}
	}
	return cfgs, nil
}

// overlap returns an endpoint that cfgs use both live and for replay, or "".
func overlap(cfgs []StreamConfig) (both string) {
	var uses []feed.Use
	for i := range cfgs {
		uses = append(uses, feed.Use{What: "live", Endpoint: cfgs[i].Endpoint}, feed.Use{What: "replay", Endpoint: cfgs[i].ReplayEndpoint})
	}
	feed.Overlaps(uses, func(first, second int) {
		if both == "" && uses[first].What != uses[second].What {
			both = uses[second].Endpoint
		}
	})
	return both
}
