// SPDX-License-Identifier: Apache-2.0

// Before: gRPC's transport. After: call.go, with messages that nobody decodes.

package rpc

import (
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/gzip" // what clients compress is understood
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
)

// frame is a message that passes through undecoded. Sending it any number of times
// leaves it as it is; receiving into it takes the place of what was there.
type frame struct{ data []byte }

// rawCodec passes frames as they are and leaves all else to protobuf.
//
// Concurrency: any goroutine.
type rawCodec struct{ encoding.CodecV2 }

func newCodec() encoding.CodecV2 { return rawCodec{encoding.GetCodecV2(proto.Name)} }

// Marshal implements encoding.CodecV2.
func (c rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	if f, ok := v.(*frame); ok {
		return mem.BufferSlice{mem.SliceBuffer(f.data)}, nil
	}
	return c.CodecV2.Marshal(v)
}

// Unmarshal implements encoding.CodecV2.
func (c rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	if f, ok := v.(*frame); ok {
		f.data = data.Materialize() // the transport takes its own buffers back
		return nil
	}
	return c.CodecV2.Unmarshal(data, v)
}
