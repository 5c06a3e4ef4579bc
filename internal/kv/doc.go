// SPDX-License-Identifier: Apache-2.0

// Package kv is the vocabulary that every other package speaks: content and
// engine hashes, namespaces, tiers, cursors, and the events engines publish.
//
// It holds values only: no I/O, no clock, no locks. It imports nothing of this
// module, so that anything may import it.
package kv
