// SPDX-License-Identifier: Apache-2.0

// Before: State.Apply. After: the two encoders, then the rank's history.

package live

// Effects is what one batch changed: what a subscriber must apply that knows
// nothing of waiting stores and inherited namespaces. The zero value is ready for
// use and is used again from batch to batch.
//
// It refers to the memory of the State that filled it: it is good until that
// State's next Apply or Clear.
type Effects struct{}

// Empty reports whether the batch changed nothing.
func (fx *Effects) Empty() bool { return true }

// AppendOwn appends fx to dst as the field events of kindex.relay.v1.Batch.
func AppendOwn(dst []byte, fx *Effects) []byte { return dst }

// AppendPeer appends fx to dst as the field events of smg.grpc.common.KvEventBatch.
// The events are numbered from id on; the next number is returned. A State that
// hashes tokens has no such form: nothing is appended.
func AppendPeer(dst []byte, fx *Effects, id uint64) ([]byte, uint64) { return dst, id }
