// SPDX-License-Identifier: Apache-2.0

// Package record reads kvrec/1 recordings: what real engines published on their
// event sockets, beside what they were asked and what they answered.
//
// A recording is JSON lines, gzipped or plain, one object a line in the order
// the recorder received them. The first line is the header. The engine's own
// truth stands between the messages: the cached tokens of each answer, its block
// table at some moments, the content it was asked to publish.
package record
