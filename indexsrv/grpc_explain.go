// SPDX-License-Identifier: Apache-2.0

// Before: the gRPC server. After: Host.Explain.

package indexsrv

import (
	"context"

	"kindex/internal/lookuppb"
	kindexv1 "kindex/proto/kindex/v1"
)

// explainService answers as POST /explain does.
type explainService struct {
	kindexv1.UnimplementedExplainServiceServer
	s *rpcServer
}

// Explain implements kindexv1.ExplainServiceServer.
func (x explainService) Explain(ctx context.Context, m *kindexv1.ExplainRequest) (*kindexv1.ExplainResponse, error) {
	e, err := x.s.h.Explain(ctx, lookuppb.DecodeQuery(m.GetQuery()))
	if err != nil {
		return nil, lookuppb.Status(err)
	}
	return lookuppb.EncodeExplanation(e), nil
}
