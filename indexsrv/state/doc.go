// SPDX-License-Identifier: Apache-2.0

// Package state is the form in which an index host's registrations and streams are
// kept in a file, or sent to another host: everything that a host needs to go on
// exactly where another stood.
//
// # Layout
//
//	file    := magic (8 bytes) version (u32) 0 (u32) section* end
//	section := kind (u16) 0 (u16) length (u32) payload sum (u64)
//
// Numbers are little-endian; sum is XXH3-64 of the section's header and payload. The
// last section has the number of all bytes before it, their XXH3-64 and the number of
// streams; nothing follows it. So a file that was cut short, or has any bit changed, is refused.
//
// Sections come in this order:
//
//	head                                        who wrote it and when
//	registrations*                              in their order
//	peers?                                      addresses of other hosts
//	(stream content* orphans* streamEnd)*       each stream with its content
//	end
//
// A stream's content is its positions, parents first: each part of a chain has its
// content hashes and the copies by engine hash, tier and group; a position without
// copies is a hole. There are no tokens anywhere.
//
// The reader takes no length for granted: a section is read as far as it comes, up to
// [MaxSection], and what its payload says is held against what it has.
package state
