// SPDX-License-Identifier: Apache-2.0

// Package wire reads and writes what engines publish: batches of cache events,
// the messages they travel in, and load readings.
package wire

// # Terminology
//
//   - message: the parts that a socket delivers at once. Live: topic, sequence,
//     payload. Replayed: an empty delimiter, since newer releases the topic, then
//     sequence and payload. [ParseMessage], [ParseReplay].
//   - payload: one msgpack value, a batch (or, on a load socket, a load reading).
//   - batch: [timestamp, events, rank, ...]: all events of one scheduler pass.
//   - event: something that happened to cached blocks. Its tag says what:
//     BlockStored, BlockRemoved, AllBlocksCleared.
//   - form: how an event is written. The array form is [tag, field, field, ...],
//     by position. The map form is {"type": tag, name: field, ...}.
//   - layout: which form, which fields in which order, and what may be left out:
//     a property of an engine's release. [Layout], [LayoutFor].
//
// # Layouts
//
// All layouts, each with the fields that it adds to the one above it:
//
//	engine      since   form   stored                              removed           hashes
//	vllm        0.9     array  hashes parent tokens block_size     hashes            int64
//	                           lora_id
//	vllm        0.10.2  array  + medium                            + medium          uint64 or bytes
//	vllm        0.14    array  + lora_name
//	vllm        0.17    array  + extra_keys (items without offset)
//	vllm        0.20    array  + group_idx (items with offset)     + group_idx
//	vllm        0.22    array  + spec kind, window
//	vllm        0.24    map
//	vllm        0.26    map    + locality                          + locality        replay with topic
//	vllm        0.29    map    + ownership                         + ownership
//	vllm        0.30    map    + session_id
//	vllm        0.33    map    + lookahead_token_ids
//	sglang      0.4.8   array  hashes parent tokens block_size     hashes            int64
//	                           lora_id
//	sglang      0.5.9   array  + medium                            + medium
//	sglang      0.5.17  array  (rank always written)
//	sglang      0.5.20  map    + cache_salt, session_id
//	sglang      0.5.22  map    + lora_name                         replay with topic
//	tokenspeed  0.1     array  hashes parent tokens block_size     hashes            int64
//
// The decoder is not told the layout. It goes by what it sees, event by event:
// the form by the msgpack type, the fields by position or by name, hashes by
// their type. So a release of tomorrow that appends a field, adds a key, or
// sends a new event costs nothing that is known today. The encoder is told the
// layout, and writes the bytes that the release itself would: for each recorded
// batch of the fixtures, exactly those.
//
// # What is accepted
//
//   - A batch of 2 or more elements; those after the third are skipped. The
//     timestamp is a float or an integer; one that is no finite number reads as 0.
//   - Per event either form. Array: any number of fields; those missing at the
//     end are as nil, those past the known ones are skipped. Map: keys in any
//     order, the tag included; unknown keys of any type, and keys that belong to
//     another kind of event, are skipped; of equal keys the last counts.
//   - Integers in any msgpack width, signed or unsigned.
//   - Hashes: integers, of which the 64-bit pattern counts, or bytes, folded to
//     their last 8 as a big-endian integer ([Fold]); both in one list if need be.
//   - Tokens: integers from 0 to 2^32-1, or, all of them, pairs of such: the
//     pages of an engine that caches bigrams.
//   - A medium of any name; one that is not known has tier [kv.TierUnknown], and
//     what to do with that is the reader's business. Absent, nil or "" is device.
//   - Extra keys: nil or a list for each hash, of strings, [identifier, offset]
//     and bytes. What the strings mean (LoRA name, salt, identifier) is not on the
//     wire and not decided here.
//
// # Errors
//
// Where the damage ends is decided by what can still be told apart:
//
//	damage                                            costs         counted as
//	a field of a wrong type, or out of its range      the event     bad_field
//	a required field missing                          the event     missing_field
//	a tag that is unknown                             the event     unknown_event
//	no event at all (nil, a number, no tag)           the event     bad_event
//	an unknown key or a field too many                nothing       -
//	no batch, cut short, bytes left over, a length    the payload   ErrMalformed, for the caller to count
//	past the end, the byte that no format uses
//
// A bad event is stepped over as a whole, so that nothing of it is taken and the
// next is read. A payload that turns out to be broken anywhere delivers nothing
// of what came before the break, and counts none of its bad events: it is a gap,
// and will be read again. A payload with bytes left over is broken: two payloads
// glued together are two numbers lost, not one batch and a tail.
//
// # Limits
//
//   - A payload has at most [MaxPayload] bytes.
//   - No length is believed before it is compared with the bytes left. Nothing is
//     allocated for a claim that cannot be true, and [Decoder.Decode] allocates no
//     more than 100 bytes per byte of payload, typically none.
//   - Nesting has no limit and needs no stack: values are skipped by count.
//   - Block sizes, groups, windows and ranks are at most 2^31-1.
//   - Between payloads a decoder keeps at most 512 names of 256 bytes, and a batch
//     at most 1,024 events, 131,072 tokens and 16,384 hashes of room.
//   - There are [NumReasons] reasons, so that a metric by reason stays small.
//
// # Memory
//
// The slices of a batch's events are cut from slabs that the batch owns
// ([kv.Batch.Storage]), one slab per element type, so that a batch keeps what its
// largest payload needed and not what each place in it once needed. Two batches
// share nothing, even of one decoder. Digests alias the payload. Strings are
// copied once and shared from then on.
//
// # Not supported
//
//   - Events before vLLM 0.9 and SGLang 0.4.8.
//   - msgpack's timestamp and other extensions as values of known fields.
//   - A batch that is itself a map.
//   - The engines' own hash functions: engine hashes are opaque here, since a LoRA
//     adapter's path and a random seed, which go into them, are not on the wire.
