// SPDX-License-Identifier: Apache-2.0

// Before: peer.go. After: package normal.

package client

import (
	"encoding/binary"
	"math"
	"strconv"

	"github.com/zeebo/xxh3"

	"kindex/internal/kv"
	"kindex/proto/peer/common"
	"kindex/relay/wire"
)

// decodePeer makes b what m says. b aliases nothing of m but strings.
func decodePeer(m *common.KvEventBatch, b *kv.Batch) {
	s := &b.Storage
	s.Hashes, s.Tokens = s.Hashes[:0], s.Tokens[:0]
	s.Keys, s.KeyLists = s.Keys[:0], s.KeyLists[:0]
	b.Timestamp = m.GetTimestamp()
	b.Rank, b.HasRank = int(m.GetDpRank()), m.DpRank != nil
	b.Events = b.Events[:0]
	for _, e := range m.GetEvents() {
		switch d := e.GetData().(type) {
		case *common.KvCacheEvent_Stored:
			b.Events = append(b.Events, decodeStored(d.Stored, s))
		case *common.KvCacheEvent_Removed:
			b.Events = append(b.Events, decodeRemoved(d.Removed, s))
		case *common.KvCacheEvent_Cleared:
			b.Events = append(b.Events, kv.Event{Kind: kv.KindCleared, Ownership: d.Cleared.GetOwnership()})
		}
	}
}

func decodeStored(d *common.KvBlocksStored, s *kv.Storage) kv.Event {
	ev := kv.Event{
		Kind: kv.KindStored, Form: kv.FormSigned,
		Parent: kv.EngineHash(d.GetParentBlockHash()), HasParent: d.ParentBlockHash != nil,
		LoRAName: d.GetLoraName(), Salt: d.GetCacheSalt(), HasSalt: d.CacheSalt != nil,
		Medium: d.GetMedium(), Ownership: d.GetOwnership(), SessionID: d.GetSessionId(),
		Group: groupOf(d.GroupIdx), HasGroup: d.GroupIdx != nil,
		SpecName: d.GetKvCacheSpecKind(), Spec: wire.SpecOf(d.GetKvCacheSpecKind()),
		Window: int(d.GetKvCacheSpecSlidingWindow()), HasWindow: d.KvCacheSpecSlidingWindow != nil,
		Locality: localityOf(d.GetLocality()),
	}
	hashes, tokens, lists := len(s.Hashes), len(s.Tokens), len(s.KeyLists)
	for i, bl := range d.GetBlocks() {
		if i == 0 {
			ev.BlockSize = int(bl.GetBlockSize())
			ev.LoRAID, ev.HasLoRAID = bl.GetLoraId(), bl.LoraId != nil
			ev.Tier = tierOf(d.Tier, d.GetMedium(), bl.CacheLevel)
		} else if int(bl.GetBlockSize()) != ev.BlockSize {
			ev.BlockSize = 0 // they are not of one size: nothing lines up
		}
		s.Hashes = append(s.Hashes, kv.EngineHash(bl.GetBlockHash()))
		s.Tokens = append(s.Tokens, bl.GetTokenIds()...)
		keys := len(s.Keys)
		for _, k := range bl.GetExtraKeys() {
			s.Keys = append(s.Keys, extraKey(k))
		}
		ev.HasExtra = ev.HasExtra || len(s.Keys) > keys
		s.KeyLists = append(s.KeyLists, s.Keys[keys:len(s.Keys):len(s.Keys)])
	}
	ev.Hashes = s.Hashes[hashes:len(s.Hashes):len(s.Hashes)]
	ev.Tokens = s.Tokens[tokens:len(s.Tokens):len(s.Tokens)]
	if ev.HasExtra {
		ev.Extra = s.KeyLists[lists:len(s.KeyLists):len(s.KeyLists)]
	}
	return ev
}

func decodeRemoved(d *common.KvBlocksRemoved, s *kv.Storage) kv.Event {
	from := len(s.Hashes)
	for _, h := range d.GetBlockHashes() {
		s.Hashes = append(s.Hashes, kv.EngineHash(h))
	}
	return kv.Event{
		Kind: kv.KindRemoved, Form: kv.FormSigned, Hashes: s.Hashes[from:len(s.Hashes):len(s.Hashes)],
		Medium: d.GetMedium(), Tier: tierOf(d.Tier, d.GetMedium(), d.CacheLevel),
		Group: groupOf(d.GroupIdx), HasGroup: d.GroupIdx != nil,
		Locality: localityOf(d.GetLocality()), Ownership: d.GetOwnership(),
	}
}

// tierOf returns where a copy lies: the tier says it, else the medium, else the
// cache level.
func tierOf(t *common.KvCacheTier, medium string, level *int32) kv.Tier {
	if t != nil {
		switch *t {
		case common.KvCacheTier_KV_CACHE_TIER_UNSPECIFIED:
		case common.KvCacheTier_KV_CACHE_TIER_DEVICE:
			return kv.TierDevice
		case common.KvCacheTier_KV_CACHE_TIER_HOST:
			return kv.TierHost
		case common.KvCacheTier_KV_CACHE_TIER_DISK:
			return kv.TierDisk
		case common.KvCacheTier_KV_CACHE_TIER_EXTERNAL:
			return kv.TierRemote
		default:
			return kv.TierUnknown
		}
	}
	if medium != "" || level == nil {
		return wire.TierOf(medium)
	}
	switch *level {
	case 0:
		return kv.TierDevice
	case 1:
		return kv.TierHost
	case 2:
		return kv.TierDisk
	case 3:
		return kv.TierRemote
	}
	return kv.TierUnknown
}

func localityOf(l common.KvCacheLocality) kv.Locality {
	switch l {
	case common.KvCacheLocality_KV_CACHE_LOCALITY_LOCAL:
		return kv.LocalityLocal
	case common.KvCacheLocality_KV_CACHE_LOCALITY_REMOTE:
		return kv.LocalityRemote
	case common.KvCacheLocality_KV_CACHE_LOCALITY_UNSPECIFIED:
	}
	return kv.LocalityUnstated
}

// groupOf returns a group's number; one that does not fit is no group's.
func groupOf(g *uint32) int {
	if g == nil {
		return 0
	}
	return int(min(*g, math.MaxInt32))
}

func extraKey(k *common.KvBlockExtraKey) kv.ExtraKey {
	switch d := k.GetKey().(type) {
	case *common.KvBlockExtraKey_Blob:
		return kv.ExtraKey{Kind: kv.ExtraBytes, ID: string(d.Blob)}
	case *common.KvBlockExtraKey_Number:
		return kv.ExtraKey{Kind: kv.ExtraString, ID: strconv.FormatInt(d.Number, 10)}
	case *common.KvBlockExtraKey_Multimodal:
		return kv.ExtraKey{Kind: kv.ExtraItem, ID: d.Multimodal.GetIdentifier(), Offset: d.Multimodal.GetOffset()}
	case *common.KvBlockExtraKey_Text:
		return kv.ExtraKey{Kind: kv.ExtraString, ID: d.Text}
	}
	return kv.ExtraKey{Kind: kv.ExtraString}
}

// sumOf returns a hash of what b says, never 0: of everything by which two batches
// of one number could differ.
func sumOf(b *kv.Batch) uint64 {
	h := xxh3.New()
	buf := make([]byte, 0, 4_096)
	word := func(v uint64) {
		if len(buf) > cap(buf)-8 {
			_, _ = h.Write(buf) // never fails
			buf = buf[:0]
		}
		buf = binary.LittleEndian.AppendUint64(buf, v)
	}
	word(math.Float64bits(b.Timestamp))
	word(uint64(len(b.Events)))
	for i := range b.Events {
		ev := &b.Events[i]
		word(uint64(ev.Kind) | uint64(ev.Tier)<<8 | uint64(ev.Locality)<<16 | uint64(uint32(ev.Group))<<32)
		word(uint64(len(ev.Hashes)))
		for _, hash := range ev.Hashes {
			word(uint64(hash))
		}
		word(uint64(ev.Parent))
		word(uint64(len(ev.Tokens)))
		for k := 0; k+1 < len(ev.Tokens); k += 2 {
			word(uint64(ev.Tokens[k]) | uint64(ev.Tokens[k+1])<<32)
		}
		if n := len(ev.Tokens); n%2 == 1 {
			word(uint64(ev.Tokens[n-1]))
		}
		word(xxh3.HashString(ev.LoRAName))
		word(xxh3.HashString(ev.Salt))
	}
	_, _ = h.Write(buf)
	return max(h.Sum64(), 1)
}
