// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"encoding/hex"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"kindex/internal/longtest"
	"kindex/proto/peer/common"
	"kindex/proto/peer/sglang"
	"kindex/proto/peer/vllm"
)

// protosEnv holds the peer's released contracts.
var protosEnv = environment{"smg-grpc-proto-0.4.28", [][]string{
	{"$ENV/bin/python", "-m", "pip", "install", "-q", "smg-grpc-proto==0.4.28"},
}}

// dumpDescriptors prints one line of hexadecimal for each released file.
const dumpDescriptors = `
from smg_grpc_proto.generated import common_pb2, vllm_engine_pb2, sglang_scheduler_pb2
for m in common_pb2, vllm_engine_pb2, sglang_scheduler_pb2:
    print(m.DESCRIPTOR.serialized_pb.hex())
`

// TestPeerProtos holds every message, field, enum and RPC of our files of the
// peer's contracts against the released package's own descriptors.
func TestPeerProtos(t *testing.T) {
	longtest.Skip(t)
	protosEnv.install(t)
	out, err := exec.Command(protosEnv.python(t), "-c", dumpDescriptors).Output()
	if err != nil {
		t.Fatalf("descriptors of the released package: %v", err)
	}
	set := &descriptorpb.FileDescriptorSet{File: []*descriptorpb.FileDescriptorProto{
		protodesc.ToFileDescriptorProto(structpb.File_google_protobuf_struct_proto),
		protodesc.ToFileDescriptorProto(timestamppb.File_google_protobuf_timestamp_proto),
	}}
	for line := range strings.Lines(string(out)) {
		raw, err := hex.DecodeString(strings.TrimSpace(line))
		if err != nil {
			t.Fatal(err)
		}
		file := &descriptorpb.FileDescriptorProto{}
		if err := proto.Unmarshal(raw, file); err != nil {
			t.Fatal(err)
		}
		set.File = append(set.File, file)
	}
	released, err := protodesc.NewFiles(set)
	if err != nil {
		t.Fatal(err)
	}

	d := protoDiff{t: t, find: released.FindDescriptorByName}
	for _, file := range []protoreflect.FileDescriptor{
		common.File_peer_common_common_proto, vllm.File_peer_vllm_vllm_proto, sglang.File_peer_sglang_sglang_proto,
	} {
		d.messages(file.Messages())
		d.enums(file.Enums())
		d.services(file.Services())
	}
	t.Logf("%d messages with %d fields, %d enums, %d RPCs as released", d.nMessages, d.nFields, d.nEnums, d.nMethods)
	if d.nMessages < 70 || d.nFields < 300 || d.nEnums != 2 || d.nMethods != 27 {
		t.Errorf("compared only %d messages, %d fields, %d enums, %d RPCs", d.nMessages, d.nFields, d.nEnums, d.nMethods)
	}
}

// A protoDiff reports what of ours differs from what was released.
type protoDiff struct {
	t                                    *testing.T
	find                                 func(protoreflect.FullName) (protoreflect.Descriptor, error)
	nMessages, nFields, nEnums, nMethods int
}

// theirs returns what the release calls name, or the zero value with an error
// told.
func theirs[D protoreflect.Descriptor](d *protoDiff, name protoreflect.FullName) (found D, ok bool) {
	got, err := d.find(name)
	if err != nil {
		d.t.Errorf("%s: not in the release: %v", name, err)
		return found, false
	}
	found, ok = got.(D)
	if !ok {
		d.t.Errorf("%s: the release has %T", name, got)
	}
	return found, ok
}

func (d *protoDiff) messages(all protoreflect.MessageDescriptors) {
	for i := range all.Len() {
		ours := all.Get(i)
		released, ok := theirs[protoreflect.MessageDescriptor](d, ours.FullName())
		if !ok {
			continue
		}
		d.nMessages++
		for j := range ours.Fields().Len() {
			f := ours.Fields().Get(j)
			d.nFields++
			r := released.Fields().ByNumber(f.Number())
			if r == nil {
				d.t.Errorf("%s: the release has no field %d", f.FullName(), f.Number())
				continue
			}
			if got, want := shapeOf(f), shapeOf(r); got != want {
				d.t.Errorf("%s: got %s, want %s", f.FullName(), got, want)
			}
		}
		d.messages(ours.Messages())
	}
}

// shapeOf says all that decides a field's bytes and its meaning.
func shapeOf(f protoreflect.FieldDescriptor) string {
	s := fmt.Sprintf("%s = %d: %s %s, presence %t, packed %t", f.Name(), f.Number(), f.Cardinality(), f.Kind(), f.HasPresence(), f.IsPacked())
	if f.Message() != nil {
		s += " of " + string(f.Message().FullName())
	}
	if f.Enum() != nil {
		s += " of " + string(f.Enum().FullName())
	}
	if o := f.ContainingOneof(); o != nil {
		s += " in " + string(o.Name())
	}
	return s
}

func (d *protoDiff) enums(all protoreflect.EnumDescriptors) {
	for i := range all.Len() {
		ours := all.Get(i)
		released, ok := theirs[protoreflect.EnumDescriptor](d, ours.FullName())
		if !ok {
			continue
		}
		d.nEnums++
		for j := range max(ours.Values().Len(), released.Values().Len()) {
			if j >= ours.Values().Len() || j >= released.Values().Len() {
				d.t.Errorf("%s: got %d values, want %d", ours.FullName(), ours.Values().Len(), released.Values().Len())
				break
			}
			got, want := ours.Values().Get(j), released.Values().Get(j)
			if got.Name() != want.Name() || got.Number() != want.Number() {
				d.t.Errorf("%s: got %s = %d, want %s = %d", ours.FullName(), got.Name(), got.Number(), want.Name(), want.Number())
			}
		}
	}
}

func (d *protoDiff) services(all protoreflect.ServiceDescriptors) {
	for i := range all.Len() {
		ours := all.Get(i)
		released, ok := theirs[protoreflect.ServiceDescriptor](d, ours.FullName())
		if !ok {
			continue
		}
		for j := range released.Methods().Len() {
			r := released.Methods().Get(j)
			m := ours.Methods().ByName(r.Name())
			if m == nil {
				d.t.Errorf("%s: the release has RPC %s", ours.FullName(), r.Name())
				continue
			}
			d.nMethods++
			if got, want := methodOf(m), methodOf(r); got != want {
				d.t.Errorf("%s: got %s, want %s", m.FullName(), got, want)
			}
		}
	}
}

func methodOf(m protoreflect.MethodDescriptor) string {
	return fmt.Sprintf("(%s, stream %t) returns (%s, stream %t)",
		m.Input().FullName(), m.IsStreamingClient(), m.Output().FullName(), m.IsStreamingServer())
}
