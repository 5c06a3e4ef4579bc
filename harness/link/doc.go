// SPDX-License-Identifier: Apache-2.0

// Package link is a TCP connection that can be cut: a proxy on the loopback which, on
// command, lets nothing through in either direction, of old connections and of new ones,
// and refuses none of them: as when a cable is out, peers learn of it only by waiting.
//
// What both sides had sent into a cut link arrives once it is healed. A real network
// would lose and send it again, after its timers: those are left out, so that what is
// measured behind a heal is the programs' own.
package link
