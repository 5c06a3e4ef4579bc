// SPDX-License-Identifier: Apache-2.0

// Package lookups holds the ways into an index host against one another: the same
// question gets the same answer in process, over shared memory, over gRPC by calls and
// by streams, and over HTTP, while engines write; and clients live through the death of hosts.
package lookups
