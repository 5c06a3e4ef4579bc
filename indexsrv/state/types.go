// SPDX-License-Identifier: Apache-2.0

package state

import (
	"errors"
	"time"

	"kindex/relay/feed"
	"kindex/shard"
)

// Version is the layout's; a reader takes no other.
const Version = 1

// magic begins every file.
const magic = "KINDEXST"

// Bounds of what is read. Chosen, not measured: wide of what is written.
const (
	MaxSection       = 64 << 20 // bytes of a payload
	maxText          = 4 << 10  // bytes of one text
	maxRegistrations = 1 << 20
	maxPeers         = 1 << 10
	maxRanks         = 1 << 16 // of one registration
	maxPart          = 4_096   // positions of one part of a chain
)

// ErrRefused is what every error of a reader is that the file, and not its source, is
// the cause of.
var ErrRefused = errors.New("state refused")

// Head says where a state comes from.
type Head struct {
	Written time.Time
	Host    uint64 // names one life of a host
}

// Registration is one registration as a host was asked for it, and which of its ranks
// are still there. Its fields are checked by whoever registers it again.
type Registration struct {
	Instance       string
	Number         bool // shown as a JSON number
	Endpoint       string
	ReplayEndpoint string
	Model          string
	RoutingGroup   string
	Tenant         string
	BlockSize      int
	Rank           int
	Ranks          int
	Engine         string
	Source         string

	Live []int // ranks, ascending
}

// Stream is one rank's stream: where it stands, and its content there.
type Stream struct {
	Registration int // index of its registration
	Rank         int

	feed.Position
	Memory []byte // as indexsrv.Resume has it
	Relay  []byte // the same

	Content shard.Content // namespaces are content seeds: the model's key is not in them
}

// kind of a section.
type kind uint16

const (
	kindHead kind = 1 + iota
	kindRegistrations
	kindPeers
	kindStream
	kindContent
	kindOrphans
	kindStreamEnd
	kindEnd
)

const (
	fileHead    = len(magic) + 8
	sectionHead = 8
	sumBytes    = 8
)
