// SPDX-License-Identifier: Apache-2.0

// Package relayindex holds what an index host makes of a relay against what another
// makes of the same engine's own sockets: over recordings, cut links and relays that
// are killed. It has tests only.
package relayindex
