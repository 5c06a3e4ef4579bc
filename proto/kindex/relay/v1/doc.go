// SPDX-License-Identifier: Apache-2.0

// Package relayv1 is the relay's own contract, generated from relay.proto.
package relayv1
