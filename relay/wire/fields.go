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
	var ok bool
	switch f {
	case FieldHashes:
		return BadField, d.hashes(e)
	case FieldParent:
		return BadField, d.parent(e)
	case FieldTokens:
		return BadField, d.tokens(e)
	case FieldBlockSize:
		e.BlockSize, ok = r.natural()
		return BadField, ok
	case FieldExtraKeys:
		return BadField, d.extraKeys(e)
	case FieldLookahead:
		return BadField, d.lookahead(e)
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
		if last := d.last[f]; string(raw) == last {
			s = last
		} else if s, ok = d.names.name(raw); !ok {
			return false
		} else if len(s) <= internBytes {
			d.last[f] = s
		}
	}
	switch f {
	case FieldMedium:
		e.Medium, e.Tier = s, TierOf(s)
	case FieldLoRAName:
		e.LoRAName = s
	case FieldSpec:
		e.SpecName, e.Spec = s, SpecOf(s)
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
		if b := r.buf[r.pos:]; len(b) >= 9 && b[0] == uint64b {
			out[i] = kv.EngineHash(binary.BigEndian.Uint64(b[1:]))
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

// digestBytes is the length of a SHA-256 digest, by far the commonest.
const digestBytes = 32

// hash reads one hash and notes its form in e. Bytes are folded to their last
// 8, big-endian; fewer than 8 count as if zeros stood before them.
func (d *Decoder) hash(e *kv.Event) (kv.EngineHash, []byte, bool) {
	r := &d.r
	if r.pos < len(r.buf) {
		b := r.buf[r.pos:]
		if len(b) > digestBytes+1 && b[0] == bin8 && b[1] == digestBytes {
			digest := b[2 : 2+digestBytes : 2+digestBytes]
			r.pos += 2 + digestBytes
			e.Form = kv.FormBytes
			return kv.EngineHash(binary.BigEndian.Uint64(digest[digestBytes-8:])), digest, true
		}
		if b[0] >= bin8 && b[0] <= bin8+2 {
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
		b := r.buf[r.pos:]
		if len(b) >= 7 && b[0] == fixArray|2 && b[1] == uint16b && b[4] == uint16b {
			e.Tokens[i] = uint32(b[2])<<8 | uint32(b[3])
			e.Second[i] = uint32(b[5])<<8 | uint32(b[6])
			r.pos += 7
			continue
		}
		if m, ok := r.array(); !ok || m != len(pair) || !r.tokens(pair[:]) {
			return false
		}
		e.Tokens[i], e.Second[i] = pair[0], pair[1]
	}
	return true
}

// tokens fills dst with the next values, which must be integers from 0 to
// 2^32-1 in any format.
//
// Four ids of a common vocabulary take 3 bytes each, so four first bytes are
// tested at once. Past 65535 the widths mix as the text does, and guessing them
// costs more than computing them: the step from one id to the next is then
// arithmetic on its first byte. (Measured: BENCHMARKS.md, decoding.)
func (r *reader) tokens(dst []uint32) bool {
	const (
		quad = 4
		room = quad*5 + 4 // the longest four, and an 8-byte load at the last
	)
	buf, p, i := r.buf, r.pos, 0
	for i+quad <= len(dst) && p+room <= len(buf) {
		b, d := buf[p:p+room], dst[i:i+quad]
		if b[0] == uint16b && b[3] == uint16b && b[6] == uint16b && b[9] == uint16b {
			d[0] = uint32(b[1])<<8 | uint32(b[2])
			d[1] = uint32(b[4])<<8 | uint32(b[5])
			d[2] = uint32(b[7])<<8 | uint32(b[8])
			d[3] = uint32(b[10])<<8 | uint32(b[11])
			p, i = p+3*quad, i+quad
			continue
		}
		for k := range d {
			switch c := uint(buf[p]); {
			case c == uint16b || c == uint32b:
				wide := c - uint16b // 0 or 1: 2 or 4 bytes follow
				v := binary.BigEndian.Uint64(buf[p:]) << 8
				d[k] = uint32(v >> ((48 - 16*wide) & 63))
				p += int(3 + 2*wide)
			case c < fixMap:
				d[k] = uint32(c)
				p++
			case c == uint8b:
				d[k] = uint32(buf[p+1])
				p += 2
			default:
				r.pos = p
				return r.tokensSlow(dst[i+k:])
			}
		}
		i += quad
	}
	r.pos = p
	return r.tokensSlow(dst[i:])
}

func (r *reader) tokensSlow(dst []uint32) bool {
	for i := range dst {
		v, neg, ok := r.integer()
		if !ok || neg || v > math.MaxUint32 {
			return false
		}
		dst[i] = uint32(v)
	}
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
