// SPDX-License-Identifier: Apache-2.0

// Package normal turns an engine's events into operations on a rank's content:
// which copies count, where, and in which namespace. It knows no index. The index
// host and the relay use the same code.
//
// What makes no membership is left out and counted by [Reason].
package normal
