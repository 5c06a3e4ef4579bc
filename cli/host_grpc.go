// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"kindex/internal/kv"
	"kindex/internal/lookup"
	"kindex/internal/lookuppb"
	kindexv1 "kindex/proto/kindex/v1"
)

// maxMessage bounds one message of a host, bytes: an explanation of a large fleet is
// the longest.
const maxMessage = 256 << 20

// grpcHost is a host over gRPC.
type grpcHost struct {
	address string
	conn    *grpc.ClientConn
}

// dialGRPC returns the host at address.
func dialGRPC(address string, conf *tls.Config, token func() (string, error)) (host, error) {
	creds := insecure.NewCredentials()
	if conf != nil {
		creds = credentials.NewTLS(conf)
	}
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(creds),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "tcp", address)
		}),
		grpc.WithAuthority(address),
		grpc.WithNoProxy(),
		grpc.WithDisableServiceConfig(),
		grpc.WithUserAgent("kindex-cli"),
		grpc.WithPerRPCCredentials(lookuppb.Bearer(token)),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage)),
	}
	conn, err := grpc.NewClient("passthrough:///"+address, options...)
	if err != nil {
		return nil, usagef("%s: %v", address, err)
	}
	return &grpcHost{address, conn}, nil
}

func (h *grpcHost) name() string { return h.address }

func (h *grpcHost) close() { _ = h.conn.Close() } // nothing is under way

func (h *grpcHost) workers(ctx context.Context, f lookup.Filter) ([]lookup.Worker, error) {
	m, err := kindexv1.NewWorkersServiceClient(h.conn).ListWorkers(ctx, &kindexv1.ListWorkersRequest{ModelName: f.Model, RoutingGroup: f.Group, TenantId: f.Tenant})
	if err != nil {
		return nil, lookuppb.FromStatus(ctx, err)
	}
	return lookuppb.DecodeWorkers(m.GetWorkers()), nil
}

func (h *grpcHost) stats(ctx context.Context) (*figures, error) {
	m, err := kindexv1.NewStatsServiceClient(h.conn).GetStats(ctx, &kindexv1.GetStatsRequest{})
	if err != nil {
		return nil, lookuppb.FromStatus(ctx, err)
	}
	f := &figures{
		Version: m.GetVersion(), Revision: m.GetRevision(), Index: m.GetKvIndex(), Uptime: m.GetUptimeSeconds(), Ready: m.GetReady(),
		Streams: m.GetStreams(), Memberships: m.GetMemberships(), Blocks: m.GetBlocks(), Runs: m.GetRuns(),
		Lookups: m.GetLookups(), LookupTime: m.GetLookupSeconds(), Bytes: []nodeBytes{},
	}
	if f.Streams == nil {
		f.Streams = map[string]uint64{}
	}
	for _, b := range m.GetBytes() {
		f.add(b.GetPurpose(), int(b.GetNode()), b.GetBytes())
	}
	return f, nil
}

func (h *grpcHost) explain(ctx context.Context, q *lookup.Query) (*lookup.Explanation, error) {
	m, err := kindexv1.NewExplainServiceClient(h.conn).Explain(ctx, &kindexv1.ExplainRequest{Query: lookuppb.EncodeQuery(q)})
	if err != nil {
		return nil, lookuppb.FromStatus(ctx, err)
	}
	return lookuppb.DecodeExplanation(m), nil
}

func (h *grpcHost) dump(ctx context.Context, s selection, into dumpSink) error {
	ctx, cancel := context.WithCancel(ctx) // ends the call where into does
	defer cancel()
	stream, err := kindexv1.NewContentServiceClient(h.conn).Dump(ctx, &kindexv1.DumpRequest{
		ModelName: s.Model, RoutingGroup: s.Group, TenantId: s.Tenant, InstanceId: s.instance,
	})
	if err != nil {
		return lookuppb.FromStatus(ctx, err)
	}
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return lookuppb.FromStatus(ctx, err)
		}
		switch p := m.GetPart().(type) {
		case *kindexv1.DumpResponse_Stream:
			err = into.head(headOf(p.Stream))
		case *kindexv1.DumpResponse_Stored:
			err = storedOf(p.Stored, into)
		case *kindexv1.DumpResponse_Removed:
			err = into.removed(enginesOf(p.Removed.GetEngineHashes()))
		}
		if err != nil {
			return err
		}
	}
}

func headOf(m *kindexv1.StreamHead) *streamHead {
	return &streamHead{
		Instance: lookup.ExplainedID{Text: m.GetInstanceId(), Number: m.GetInstanceIsNumber()},
		Model:    m.GetModelName(), Group: m.GetRoutingGroup(), Tenant: m.GetTenantId(), Rank: int(m.GetDpRank()), BlockSize: int(m.GetBlockSize()),
		Epoch: m.GetCursor().GetEpoch(), LastSeq: m.GetCursor().LastSeq, Status: m.GetCursor().GetStatus(), Orphans: m.GetCursor().GetOrphans(),
	}
}

func enginesOf(hashes []uint64) []kv.EngineHash {
	out := make([]kv.EngineHash, len(hashes))
	for i, h := range hashes {
		out[i] = kv.EngineHash(h)
	}
	return out
}

// storedOf gives into what m says.
func storedOf(m *kindexv1.Stored, into dumpSink) error {
	tier := m.GetTier() - kindexv1.Tier_TIER_DEVICE
	if tier < 0 || tier >= kv.LocalTiers || m.GetGroup() > 255 || len(m.GetEngineHashes()) != len(m.GetContentHashes()) || len(m.GetEngineHashes()) == 0 {
		return lookup.Refuse(lookup.ErrUnavailable, "the host's dump says what this program does not know: is it of another version?")
	}
	r := &storedRun{tier: kv.Tier(tier), group: uint8(m.GetGroup()), parent: m.Parent, seed: m.GetNamespaceSeed(), engines: enginesOf(m.GetEngineHashes())}
	for _, h := range m.GetContentHashes() {
		r.contents = append(r.contents, kv.ContentHash(h))
	}
	return into.stored(r)
}

// digests implements digester.
func (h *grpcHost) digests(ctx context.Context, s selection) (ds []streamDigest, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := kindexv1.NewContentServiceClient(h.conn).Digest(ctx, &kindexv1.DigestRequest{
		ModelName: s.Model, RoutingGroup: s.Group, TenantId: s.Tenant, InstanceId: s.instance,
	})
	if err != nil {
		return nil, lookuppb.FromStatus(ctx, err)
	}
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return ds, nil
		}
		if err != nil {
			return nil, lookuppb.FromStatus(ctx, err)
		}
		ds = append(ds, streamDigest{*headOf(m.GetStream()), m.GetDigest()})
	}
}
