// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	mock "kindex/harness/mockworker/engine"
	"kindex/proto/peer/vllm"
)

// TestGRPC: the engine's own service before engines that speak it: for those with a key,
// counted with the rest, and the second request finds what the first one left.
func TestGRPC(t *testing.T) {
	f, err := mock.OpenFleet(mock.Config{Engine: mock.VLLM, Model: "m", GRPC: "127.0.0.1:0", Pub: "tcp://127.0.0.1:0"}, 2)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	path := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(path, []byte(keyText), 0o600); err != nil {
		t.Fatal(err)
	}
	s := startGateway(t, func(c *Config) { c.GRPCListen, c.APIKeyFile = "127.0.0.1:0", path }, "grpc://"+f.Workers()[0].GRPC(), "grpc://"+f.Workers()[1].GRPC())
	eventually(t, func() string { return strings.Join(s.index.Unready(), ", ") })
	conn, err := grpc.NewClient(s.grpcLn.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	tokens := make([]uint32, 100)
	for i := range tokens {
		tokens[i] = uint32(i)
	}
	n := 0
	// generate returns the cached tokens of one request.
	generate := func(key string) (uint32, error) {
		n++
		ctx := metadata.AppendToOutgoingContext(context.Background(), "authorization", "Bearer "+key)
		most := uint32(2)
		c, err := vllm.NewVllmEngineClient(conn).Generate(ctx, &vllm.GenerateRequest{
			RequestId: fmt.Sprint("r", n), Input: &vllm.GenerateRequest_Tokenized{Tokenized: &vllm.TokenizedInput{InputIds: tokens}},
			SamplingParams: &vllm.SamplingParams{MaxTokens: &most},
		})
		if err != nil {
			return 0, err
		}
		for {
			m, err := c.Recv()
			if errors.Is(err, io.EOF) {
				return 0, errors.New("no end")
			}
			if err != nil {
				return 0, err
			}
			if done := m.GetComplete(); done != nil {
				return done.GetCachedTokens(), nil
			}
		}
	}
	if _, err := generate("nobodys-key"); status.Code(err) != codes.Unauthenticated {
		t.Errorf("a wrong key: %v", err)
	}
	if cached, err := generate("reader-key-1"); err != nil || cached != 0 {
		t.Fatalf("%d cached, %v", cached, err)
	}
	eventually(t, func() string {
		if cached, err := generate("user-key-12345"); err != nil || cached != 96 {
			return fmt.Sprintf("%d cached, %v: want 96", cached, err)
		}
		return ""
	})
	eventually(t, func() string {
		var e exposition
		s.writeMetrics(&e)
		if text := string(e.b); !strings.Contains(text, `kindex_gateway_requests_total{route="grpc/Generate",code="200"} `) {
			return "the requests are not counted"
		}
		if !strings.Contains(s.log.String(), "via=grpc") {
			return "the refusal is not in the log"
		}
		return ""
	})
	s.end()
	if _, err := generate("reader-key-1"); status.Code(err) != codes.Unavailable {
		t.Errorf("after the end: %v", err)
	}
}
