// SPDX-License-Identifier: Apache-2.0

// Before: the services, with messages that are encoded already, and the
// pass-through, with frames that nobody decodes. After: gRPC's transport.

package relay

import (
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/gzip" // what clients compress is understood
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// rawMessage is a message that is encoded already. Sending hands its buffers to
// the transport.
type rawMessage mem.BufferSlice

// frame is a message that passes through undecoded: received, then sent once.
type frame struct{ data mem.BufferSlice }

// rawCodec passes rawMessage and frame as they are and leaves all else to
// protobuf.
//
// Concurrency: any goroutine.
type rawCodec struct{ encoding.CodecV2 }

func newCodec() encoding.CodecV2 { return rawCodec{encoding.GetCodecV2(proto.Name)} }

// Marshal implements encoding.CodecV2.
func (c rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	switch v := v.(type) {
	case rawMessage:
		return mem.BufferSlice(v), nil
	case *frame:
		data := v.data
		v.data = nil
		return data, nil
	}
	return c.CodecV2.Marshal(v)
}

// Unmarshal implements encoding.CodecV2.
func (c rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	if f, ok := v.(*frame); ok {
		data.Ref()
		f.data = data
		return nil
	}
	return c.CodecV2.Unmarshal(data, v)
}

// joinBelow is the size up to which a message is copied into one buffer: that
// costs less than the transport's work for one more piece.
const joinBelow = 16 << 10

// joined returns the message of head, body and a field with tail, which is left
// out where tail is empty: protobuf takes concatenation for merging. body is not
// changed and may be sent to others at the same time.
func joined(head, body []byte, field protowire.Number, tail []byte) rawMessage {
	size := len(head) + len(body)
	if len(tail) > 0 {
		size += protowire.SizeTag(field) + protowire.SizeBytes(len(tail))
	}
	if size > joinBelow {
		m := make(rawMessage, 0, 3)
		if len(head) > 0 {
			m = append(m, mem.SliceBuffer(append([]byte(nil), head...)))
		}
		m = append(m, mem.SliceBuffer(body))
		if len(tail) > 0 {
			m = append(m, mem.SliceBuffer(appendField(nil, field, tail)))
		}
		return m
	}
	if mem.IsBelowBufferPoolingThreshold(size) {
		b := append(append(make([]byte, 0, size), head...), body...)
		return rawMessage{mem.SliceBuffer(appendField(b, field, tail))}
	}
	pool := mem.DefaultBufferPool()
	b := pool.Get(size)
	*b = appendField(append(append((*b)[:0], head...), body...), field, tail)
	return rawMessage{mem.NewBuffer(b, pool)}
}

// appendField appends a field of bytes, or nothing where there are none.
func appendField(b []byte, field protowire.Number, value []byte) []byte {
	if len(value) == 0 {
		return b
	}
	return protowire.AppendBytes(protowire.AppendTag(b, field, protowire.BytesType), value)
}
