// SPDX-License-Identifier: Apache-2.0

// Before: store.go (what events say of their blocks). After: the encoders.

package live

import (
	"strings"

	"kindex/internal/kv"
)

// place is where a copy lies: the tier, and below it the cache group.
type place uint16

func placeOf(t kv.Tier, group uint8) place { return place(t)<<8 | place(group) }

func (p place) tier() kv.Tier { return kv.Tier(p >> 8) }
func (p place) group() uint8  { return uint8(p) }

// attr is what the blocks of one event share: place, namespace, and what only the
// peer's contract shows. Equal attributes are kept once.
type attr struct {
	place      place
	seed       uint64
	lora, salt string
	blockSize  int
	peer       peerAttr
}

// peerAttr is what only the peer's contract shows. Empty where tokens are hashed.
type peerAttr struct {
	medium, spec, ownership, session string

	hasGroup, hasWindow, hasLoRAID bool

	group, window int
	loraID        int64
	locality      kv.Locality
}

// peerAttrOf returns what ev says for the peer's contract alone.
func peerAttrOf(ev *kv.Event) peerAttr {
	p := peerAttr{
		medium: ev.Medium, spec: ev.SpecName, ownership: ev.Ownership, session: ev.SessionID,
		hasGroup: ev.HasGroup, hasWindow: ev.HasWindow, hasLoRAID: ev.HasLoRAID,
		locality: ev.Locality,
	}
	if p.hasGroup {
		p.group = ev.Group
	}
	if p.hasWindow {
		p.window = ev.Window
	}
	if p.hasLoRAID {
		p.loraID = ev.LoRAID
	}
	return p
}

// text returns the bytes of a's strings.
func (a *attr) text() int {
	return len(a.lora) + len(a.salt) + len(a.peer.medium) + len(a.peer.spec) + len(a.peer.ownership) + len(a.peer.session)
}

// maxText bounds the strings of one event's attributes, in bytes.
const maxText = 60_000

// shared is an attr that is kept, with its encodings. It never changes, so that
// effects and cuts may keep it.
type shared struct {
	attr

	stored []byte // the peer's fields of KvBlocksStored behind blocks and parent
	block  []byte // the peer's fields of KvBlock between tokens and extra keys
}

// sharedBytes is the fixed cost of one shared attr: itself, its place in the map,
// its counts. Reckoned, not measured.
const sharedBytes = 640

// attrs numbers the attributes in use; a number is used again when nobody has it.
//
// Concurrency: the State's.
type attrs struct {
	list  []*shared // nil: free
	refs  []uint32
	place []place // by number, for those who need no more of it
	index map[attr]uint32
	free  []uint32
	last  uint32
	bytes uint64
	peer  bool
}

// intern returns the number of a, with one reference more.
func (as *attrs) intern(a *attr) uint32 {
	if int(as.last) < len(as.list) {
		if s := as.list[as.last]; s != nil && s.attr == *a {
			as.refs[as.last]++
			return as.last
		}
	}
	i, ok := as.index[*a]
	if !ok {
		i = as.add(a)
	}
	as.refs[i]++
	as.last = i
	return i
}

func (as *attrs) add(a *attr) uint32 {
	s := &shared{attr: *a}
	for _, text := range []*string{&s.lora, &s.salt, &s.peer.medium, &s.peer.spec, &s.peer.ownership, &s.peer.session} {
		*text = strings.Clone(*text)
	}
	if as.peer {
		s.stored, s.block = appendStoredTail(nil, &s.attr), appendBlockTail(nil, &s.attr)
	}
	if as.index == nil {
		as.index = map[attr]uint32{}
	}
	var i uint32
	if n := len(as.free); n > 0 {
		i, as.free = as.free[n-1], as.free[:n-1]
	} else {
		i = uint32(len(as.list))
		as.list, as.refs, as.place = append(as.list, nil), append(as.refs, 0), append(as.place, 0)
	}
	as.list[i], as.place[i] = s, a.place
	as.index[s.attr] = i
	as.bytes += s.bytes()
	return i
}

func (s *shared) bytes() uint64 {
	return sharedBytes + uint64(s.text()+cap(s.stored)+cap(s.block))
}

func (as *attrs) ref(i uint32) { as.refs[i]++ }

func (as *attrs) unref(i uint32) {
	if as.refs[i]--; as.refs[i] > 0 {
		return
	}
	s := as.list[i]
	delete(as.index, s.attr)
	as.bytes -= s.bytes()
	as.list[i] = nil
	as.free = append(as.free, i)
}
