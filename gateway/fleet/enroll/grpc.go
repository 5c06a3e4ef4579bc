// SPDX-License-Identifier: Apache-2.0

// Before: a turn of the prober. After: the engine's gRPC server.

package enroll

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"kindex/gateway/fleet"
	"kindex/proto/peer/sglang"
	"kindex/proto/peer/vllm"
)

// askGRPC finds out which engine's service there is, and what it says of itself.
func (p *Prober) askGRPC(ctx context.Context, given *fleet.Spec) (*found, error) {
	scheme, target, _ := strings.Cut(given.URL, "://")
	creds := insecure.NewCredentials()
	if scheme == "grpcs" {
		conf := p.o.TLS
		if conf == nil {
			conf = &tls.Config{MinVersion: tls.VersionTLS12}
		}
		creds = credentials.NewTLS(conf)
	}
	conn, err := grpc.NewClient("passthrough:///"+target, grpc.WithTransportCredentials(creds), grpc.WithNoProxy(), grpc.WithDisableServiceConfig(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)))
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }() // nothing hangs on it
	if key := given.Terms.APIKey; key != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+key)
	}
	f := &found{url: given.URL}
	f.events.Relay = target // its own server has the stream, or a relay that stands for it
	for _, ask := range []func(context.Context, *grpc.ClientConn, *found) error{askSGLang, askVLLM} {
		err = ask(ctx, conn, f)
		if status.Code(err) != codes.Unimplemented {
			break
		}
	}
	switch status.Code(err) {
	case codes.OK:
	case codes.Unimplemented:
		return nil, errors.New("gRPC: neither SGLang's nor vLLM's service is there")
	case codes.Unauthenticated, codes.PermissionDenied:
		return nil, errors.New("gRPC: api_key is missing or not the engine's")
	default:
		return nil, fmt.Errorf("gRPC: %w", err)
	}
	if len(f.models) == 0 {
		return nil, errors.New("gRPC: it names no model")
	}
	return f, nil
}

func healthy(ok bool, message string) error {
	if ok {
		return nil
	}
	return status.Errorf(codes.Unavailable, "not healthy: %.200s", message)
}

// serves notes the name that requests use, or else the path of the model.
func (f *found) serves(name, path string) {
	if name == "" {
		name = path
	}
	if name != "" {
		f.models = []string{name}
	}
}

func askSGLang(ctx context.Context, conn *grpc.ClientConn, f *found) error {
	c := sglang.NewSglangSchedulerClient(conn)
	h, err := c.HealthCheck(ctx, &sglang.HealthCheckRequest{})
	if err == nil {
		err = healthy(h.GetHealthy(), h.GetMessage())
	}
	if err != nil {
		return err
	}
	f.engine = fleet.SGLang
	m, err := c.GetModelInfo(ctx, &sglang.GetModelInfoRequest{})
	if err != nil {
		return err
	}
	f.serves(m.GetServedModelName(), m.GetModelPath())
	if info, err := c.GetServerInfo(ctx, &sglang.GetServerInfoRequest{}); err == nil {
		f.version = info.GetSglangVersion()
		args := info.GetServerArgs().GetFields()
		f.ranks, f.blockSize = int(args["dp_size"].GetNumberValue()), int(args["page_size"].GetNumberValue())
	}
	if f.ranks == 0 {
		if loads, err := c.GetLoads(ctx, &sglang.GetLoadsRequest{}); err == nil {
			f.ranks = int(loads.GetDpRankCount())
		}
	}
	return nil
}

func askVLLM(ctx context.Context, conn *grpc.ClientConn, f *found) error {
	c := vllm.NewVllmEngineClient(conn)
	h, err := c.HealthCheck(ctx, &vllm.HealthCheckRequest{})
	if err == nil {
		err = healthy(h.GetHealthy(), h.GetMessage())
	}
	if err != nil {
		return err
	}
	f.engine = fleet.VLLM
	m, err := c.GetModelInfo(ctx, &vllm.GetModelInfoRequest{})
	if err != nil {
		return err
	}
	f.serves(m.GetServedModelName(), m.GetModelPath())
	if info, err := c.GetServerInfo(ctx, &vllm.GetServerInfoRequest{}); err == nil {
		f.ranks, f.blockSize = int(info.GetDataParallelSize()), int(info.GetBlockSize())
	}
	return nil
}
