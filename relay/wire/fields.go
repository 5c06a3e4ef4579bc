// SPDX-License-Identifier: Apache-2.0

package wire

// Before this file: decode.go, which knows the field that comes next. After it:
// the event's fields, checked one by one.

import (
	"encoding/binary"
	"math"

	"kindex/internal/kv"
)

// field reads one field's value into e. nil is as good as the field's absence,
// but for the lists and the block size, which no release leaves empty that way.
func (d *Decoder) field(e *kv.Event, f Field) (Reason, bool) {
	r := &d.r
	ok := false
	switch f {
	case FieldHashes:
		return BadHash, d.hashes(e)
	case FieldParent:
		return BadHash, d.parent(e)
	case FieldTokens:
		return BadTokens, d.tokens(e)
	case FieldBlockSize:
		e.BlockSize, ok = r.natural()
		return BadBlockSize, ok
	case FieldExtraKeys:
		return BadExtraKeys, d.extraKeys(e)
	case FieldLookahead:
		return BadTokens, d.lookahead(e)
	case FieldLoRAID:
		if e.HasLoRAID = !r.null(); e.HasLoRAID {
			e.LoRAID, ok = r.int64()
			return BadField, ok
		}
	case FieldGroup:
		if e.HasGroup = !r.null(); e.HasGroup {
			e.Group, ok = r.natural()
			return BadField, ok
		}
	case FieldWindow:
		if e.HasWindow = !r.null(); e.HasWindow {
			e.Window, ok = r.natural()
			return BadField, ok
		}
	default:
		return BadField, d.word(e, f)
	}
	return 0, true
}

// word reads a field that is a string or nil.
func (d *Decoder) word(e *kv.Event, f Field) bool {
	s, has := "", !d.r.null()
	if has {
		raw, ok := d.r.text()
		if !ok {
			return false
		}
		if s, ok = d.names.name(raw); !ok {
			return false
		}
	}
	switch f {
	case FieldMedium:
		e.Medium, e.Tier = s, tierOf(s)
	case FieldLoRAName:
		e.LoRAName = s
	case FieldSpec:
		e.SpecName, e.Spec = s, specOf(s)
	case FieldOwnership:
		e.Ownership = s
	case FieldSession:
		e.SessionID = s
	case FieldSalt:
		e.Salt, e.HasSalt = s, has
	case FieldLocality:
		return locality(e, s)
	default:
		return false
	}
	return true
}

func locality(e *kv.Event, s string) bool {
	switch s {
	case "":
		e.Locality = kv.LocalityUnstated
	case "LOCAL":
		e.Locality = kv.LocalityLocal
	case "REMOTE":
		e.Locality = kv.LocalityRemote
	default:
		return false
	}
	return true
}

// hashes reads the block hashes: integers, signed or not, or bytes.
func (d *Decoder) hashes(e *kv.Event) bool {
	r := &d.r
	n, ok := r.array()
	if !ok {
		return false
	}
	s := &d.b.Storage
	out := carve(&s.Hashes, n)
	e.Digests = nil
	for i := range out {
		if p := r.pos; len(r.buf)-p >= 9 && r.buf[p] == uint64b {
			out[i] = kv.EngineHash(binary.BigEndian.Uint64(r.buf[p+1:]))
			r.pos += 9
			continue
		}
		h, digest, ok := d.hash(e)
		if !ok {
			return false
		}
		out[i] = h
		if digest != nil {
			if e.Digests == nil {
				e.Digests = carve(&s.Digests, n)
				clear(e.Digests)
			}
			e.Digests[i] = digest
		}
	}
	e.Hashes = out
	return true
}

func (d *Decoder) parent(e *kv.Event) bool {
	e.Parent, e.ParentDigest, e.HasParent = 0, nil, false
	if d.r.null() {
		return true
	}
	var ok bool
	e.Parent, e.ParentDigest, ok = d.hash(e)
	e.HasParent = ok
	return ok
}

// hash reads one hash and notes its form in e. Bytes are folded to their last
// 8, big-endian; fewer than 8 count as if zeros stood before them.
func (d *Decoder) hash(e *kv.Event) (kv.EngineHash, []byte, bool) {
	r := &d.r
	if r.pos < len(r.buf) {
		if c := r.buf[r.pos]; c >= bin8 && c <= bin8+2 {
			digest, ok := r.binary()
			if !ok || len(digest) == 0 {
				return 0, nil, false
			}
			e.Form = kv.FormBytes
			return Fold(digest), digest, true
		}
	}
	v, neg, ok := r.integer()
	if neg && e.Form == kv.FormUnsigned {
		e.Form = kv.FormSigned
	}
	return kv.EngineHash(v), nil, ok
}

// Fold returns the 64 bits that name a block whose hash is sent as bytes: the
// last 8, big-endian, which is what an engine sends that is told to send
// integers instead.
func Fold(digest []byte) kv.EngineHash {
	var b [8]byte
	n := min(len(digest), 8)
	copy(b[8-n:], digest[len(digest)-n:])
	return kv.EngineHash(binary.BigEndian.Uint64(b[:]))
}

// tokens reads token ids, or pairs of them.
func (d *Decoder) tokens(e *kv.Event) bool {
	r := &d.r
	n, ok := r.array()
	if !ok {
		return false
	}
	e.Second = nil
	pairs := false
	if n > 0 && r.pos < len(r.buf) {
		c := r.buf[r.pos]
		pairs = c&0xf0 == fixArray || c == array16 || c == array32
	}
	e.Tokens = carve(&d.b.Storage.Tokens, n)
	if !pairs {
		return r.tokens(e.Tokens)
	}
	e.Second = carve(&d.b.Storage.Tokens, n)
	var pair [2]uint32
	for i := range e.Tokens {
		if m, ok := r.array(); !ok || m != len(pair) || !r.tokens(pair[:]) {
			return false
		}
		e.Tokens[i], e.Second[i] = pair[0], pair[1]
	}
	return true
}

// tokens fills dst with the next values, which must be integers from 0 to
// 2^32-1 in any format.
func (r *reader) tokens(dst []uint32) bool {
	buf := r.buf[r.pos:]
	for i := range dst {
		if len(buf) >= 3 && buf[0] == uint16b {
			dst[i] = uint32(buf[1])<<8 | uint32(buf[2])
			buf = buf[3:]
			continue
		}
		if len(buf) >= 5 && buf[0] == uint32b {
			dst[i] = binary.BigEndian.Uint32(buf[1:])
			buf = buf[5:]
			continue
		}
		if len(buf) >= 1 && buf[0] < fixMap {
			dst[i] = uint32(buf[0])
			buf = buf[1:]
			continue
		}
		r.pos = len(r.buf) - len(buf)
		v, neg, ok := r.integer()
		if !ok || neg || v > math.MaxUint32 {
			return false
		}
		dst[i] = uint32(v)
		buf = r.buf[r.pos:]
	}
	r.pos = len(r.buf) - len(buf)
	return true
}

// lookahead reads, for each hash, the tokens after its block.
func (d *Decoder) lookahead(e *kv.Event) bool {
	r := &d.r
	e.Lookahead = nil
	if r.null() {
		return true
	}
	n, ok := r.array()
	if !ok {
		return false
	}
	s := &d.b.Storage
	lists := carve(&s.TokenLists, n)
	for i := range lists {
		m, ok := r.array()
		if !ok {
			return false
		}
		lists[i] = carve(&s.Tokens, m)
		if !r.tokens(lists[i]) {
			return false
		}
	}
	e.Lookahead = lists
	return true
}

// extraKeys reads, for each hash, nil or the keys that are part of it beside
// the tokens. An empty list says nothing of any block.
func (d *Decoder) extraKeys(e *kv.Event) bool {
	r := &d.r
	e.Extra, e.HasExtra = nil, false
	if r.null() {
		return true
	}
	n, ok := r.array()
	if !ok {
		return false
	}
	lists := carve(&d.b.Storage.KeyLists, n)
	for i := range lists {
		lists[i] = nil
		if r.null() {
			continue
		}
		m, ok := r.array()
		if !ok {
			return false
		}
		keys := carve(&d.b.Storage.Keys, m)
		for j := range keys {
			if keys[j], ok = d.extraKey(); !ok {
				return false
			}
		}
		lists[i] = keys
	}
	if n > 0 {
		e.Extra, e.HasExtra = lists, true
	}
	return true
}

// extraKey reads a string, bytes, or [identifier, offset]. An item with more
// in it is refused: what is not understood may be what tells two blocks apart.
func (d *Decoder) extraKey() (k kv.ExtraKey, ok bool) {
	r := &d.r
	if r.pos >= len(r.buf) {
		_, ok = r.next()
		return k, ok
	}
	switch c := r.buf[r.pos]; {
	case c >= bin8 && c <= bin8+2:
		digest, ok := r.binary()
		// Every block has a digest of its own: nothing to share.
		return kv.ExtraKey{Kind: kv.ExtraBytes, ID: string(digest)}, ok
	case c&0xf0 == fixArray:
		if n, ok := r.array(); !ok || n != 2 {
			return k, false
		}
		k.Kind = kv.ExtraItem
	}
	name, ok := r.text()
	if !ok {
		return k, false
	}
	if k.ID, ok = d.names.name(name); !ok {
		return k, false
	}
	if k.Kind == kv.ExtraItem {
		k.Offset, ok = r.int64()
	}
	return k, ok
}
