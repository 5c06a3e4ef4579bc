// SPDX-License-Identifier: Apache-2.0

// Package warm holds hosts that went on from a state, their own or another host's,
// against what the publisher itself says of each batch: with the programs as they are
// run, real sockets, and restarts of all kinds.
package warm
