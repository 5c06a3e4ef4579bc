// SPDX-License-Identifier: Apache-2.0

// Package shm carries lookups between processes of one machine through memory that
// both have mapped. The layout, word by word, is in docs/protocol.md; how each side
// waits, with figures, in ADR 18.
//
// # Terminology
//
//   - A client is one connection of one process; it may have many callers.
//   - Its memory is a memfd that the server made, sealed so that nobody can change its
//     size. Nobody else has it.
//   - A part is one shard's share of it: a page of words, a ring of requests, a ring of
//     replies. It lies on the shard's node.
//   - A record is what a ring holds: one line of header, then the payload. A message is
//     one record, or several where it is long.
//   - A bell is a word that a side sleeps on.
//
// # Who does what
//
// On the server one goroutine for each shard, the thread, takes requests of all
// clients in turn, up to 32 for a batch, and gives them to the [Handler]. On the client
// whoever asks writes the request to each shard under the client's lock; of those that
// wait one sleeps in the kernel for all, the leader, and takes out whatever comes for
// whomever; the others wait on channels.
//
// # What the server believes
//
// Nothing that it reads. Its positions are its own; a header is copied once, checked,
// and only the copy is used; lengths are bounded by the ring before anything is copied;
// what a client writes meanwhile changes what that client gets. A word that a client
// can get wrong ends that client or does nothing. A client that takes no replies is
// asked nothing more until it does; one that hammers on its bell makes its shard's
// thread look in vain, as one that asks all the time makes it work.
//
// # Life and death
//
// The Unix socket stays open: its end is the other side's end, whatever killed it. A
// side that is stopped is told by its beat, a word that it counts up every 20 ms: after
// five looks without a change it counts as silent. A client gives a silent server up
// after a second, the server a silent client after [ServerOptions.Silence]: sooner, and
// a machine that is only busy would see connections made anew all the time. A generation, new
// with each server, is in the hello, the memory and every record's header.
//
// # Limits
//
// [MaxClients] clients; 256 calls of a client at once, more wait; [MaxBlocks] blocks of
// a chain; a long request of each client at a time.
//
// # Not supported
//
// Systems other than Linux; big-endian machines.
package shm
