// SPDX-License-Identifier: Apache-2.0

// Before: a server's or a client's calls. After: gRPC's transport.

package lookuppb

import (
	"slices"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
)

// Raw is a message as it goes over the wire: encoded already, or received and not
// decoded yet. Its memory is used again.
type Raw struct {
	Bytes []byte
	// Sent is called when the transport has a copy of it; nil: nobody asks.
	Sent func()
}

// codec passes Raw as it is and leaves all else to protobuf.
type codec struct{ encoding.CodecV2 }

// NewCodec returns the codec of both ends.
func NewCodec() encoding.CodecV2 { return codec{encoding.GetCodecV2(proto.Name)} }

// Marshal implements encoding.CodecV2.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if r, ok := v.(*Raw); ok {
		data := mem.BufferSlice{mem.Copy(r.Bytes, mem.DefaultBufferPool())}
		if r.Sent != nil {
			r.Sent()
		}
		return data, nil
	}
	return c.CodecV2.Marshal(v)
}

// Unmarshal implements encoding.CodecV2.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	if r, ok := v.(*Raw); ok {
		n := data.Len()
		r.Bytes = slices.Grow(r.Bytes[:0], n)[:n]
		data.CopyTo(r.Bytes)
		return nil
	}
	return c.CodecV2.Unmarshal(data, v)
}
