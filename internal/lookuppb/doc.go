// SPDX-License-Identifier: Apache-2.0

// Package lookuppb is the wire of lookups over gRPC: the messages of
// proto/kindex/v1/index.proto to and from package lookup's values, without the
// generated types between the two, for a prompt's thousands of numbers would be
// copied once more each way. Both ends use it; what it encodes and accepts is what
// the generated code does, which its tests hold it against.
package lookuppb
