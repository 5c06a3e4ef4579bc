// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"
	"io"
	"slices"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"kindex/proto/peer/sglang"
	"kindex/proto/peer/vllm"
)

// heard is what a client was told of one choice: the tokens of its pieces, and its end.
type heard struct {
	tokens []uint32
	end    interface {
		GetOutputIds() []uint32
		GetFinishReason() string
		GetPromptTokens() uint32
		GetCachedTokens() uint32
	}
}

// received reads an answer of either contract, by choice.
func received[T any](t *testing.T, in grpc.ServerStreamingClient[T]) (map[uint32]*heard, error) {
	t.Helper()
	all := make(map[uint32]*heard)
	of := func(index uint32) *heard {
		if all[index] == nil {
			all[index] = &heard{}
		}
		if all[index].end != nil {
			t.Errorf("choice %d goes on after its end", index)
		}
		return all[index]
	}
	for {
		m, err := in.Recv()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		switch m := any(m).(type) {
		case *vllm.GenerateResponse:
			if c := m.GetChunk(); c != nil {
				of(c.GetIndex()).tokens = append(of(c.GetIndex()).tokens, c.GetTokenIds()...)
			} else {
				of(m.GetComplete().GetIndex()).end = m.GetComplete()
			}
		case *sglang.GenerateResponse:
			if c := m.GetChunk(); c != nil {
				of(c.GetIndex()).tokens = append(of(c.GetIndex()).tokens, c.GetTokenIds()...)
			} else {
				of(m.GetComplete().GetIndex()).end = m.GetComplete()
			}
		}
	}
}

// choices asks for n answers to one prompt over a contract.
func (s *started) choices(t *testing.T, kind, id, lora string, prompt []uint32, n, most uint32, stream bool) (map[uint32]*heard, error) {
	t.Helper()
	if kind == VLLM {
		in, err := vllm.NewVllmEngineClient(s.conn).Generate(t.Context(), &vllm.GenerateRequest{
			RequestId: id, Stream: stream, Input: &vllm.GenerateRequest_Tokenized{Tokenized: &vllm.TokenizedInput{InputIds: prompt}},
			SamplingParams: &vllm.SamplingParams{MaxTokens: &most, N: n},
		})
		if err != nil {
			t.Fatal(err)
		}
		return received(t, in)
	}
	in, err := sglang.NewSglangSchedulerClient(s.conn).Generate(t.Context(), &sglang.GenerateRequest{
		RequestId: id, Stream: stream, Tokenized: &sglang.TokenizedInput{InputIds: prompt}, LoraId: lora,
		SamplingParams: &sglang.SamplingParams{MaxNewTokens: &most, N: n},
	})
	if err != nil {
		t.Fatal(err)
	}
	return received(t, in)
}

// TestChoices asks for several answers to one prompt by gRPC: as many come, each of its
// own number, whole; an abort of the request's id ends all.
func TestChoices(t *testing.T) {
	for _, kind := range []string{VLLM, SGLang} {
		t.Run(kind, func(t *testing.T) {
			s := start(t, "--engine "+kind+" --block 4 --pass 2ms")
			for _, stream := range []bool{false, true} {
				for _, n := range []uint32{0, 1, 3} {
					all, err := s.choices(t, kind, "one", "", []uint32{1, 2, 3, 4, 5, 6, 7, 8, 9}, n, 5, stream)
					if err != nil || len(all) != max(int(n), 1) {
						t.Fatalf("n %d: %d choices: %v", n, len(all), err)
					}
					for i := range max(n, 1) {
						c := all[i]
						if c == nil || c.end == nil || len(c.end.GetOutputIds()) != 5 || c.end.GetFinishReason() != filled || c.end.GetPromptTokens() != 9 {
							t.Fatalf("n %d, choice %d: %+v", n, i, c)
						}
						if stream && !slices.Equal(c.tokens, c.end.GetOutputIds()) {
							t.Errorf("n %d, choice %d: pieces %v, the end says %v", n, i, c.tokens, c.end.GetOutputIds())
						}
					}
				}
			}
			if _, err := s.choices(t, kind, "many", "", []uint32{1}, maxChoices+1, 5, false); status.Code(err) != codes.InvalidArgument {
				t.Errorf("%d choices: %v, want InvalidArgument", maxChoices+1, err)
			}
			done := make(chan map[uint32]*heard, 1)
			go func() {
				all, err := s.choices(t, kind, "long", "", []uint32{1, 2, 3}, 2, 5_000, true)
				if err != nil {
					t.Error(err)
				}
				done <- all
			}()
			s.await(t, func(l *Load) bool { return l.Running == 2 })
			var err error
			if kind == VLLM {
				_, err = vllm.NewVllmEngineClient(s.conn).Abort(t.Context(), &vllm.AbortRequest{RequestIds: []string{"long"}})
			} else {
				_, err = sglang.NewSglangSchedulerClient(s.conn).Abort(t.Context(), &sglang.AbortRequest{RequestId: "long"})
			}
			if err != nil {
				t.Fatal(err)
			}
			for i, c := range <-done {
				if c.end == nil || c.end.GetFinishReason() != aborted {
					t.Errorf("choice %d of an aborted request: %+v", i, c)
				}
			}
			s.await(t, func(l *Load) bool { return l.Running == 0 && l.UsedTokens == 0 })
		})
	}
}

// TestAdapterByID has SGLang's contract name an adapter: its prompts share nothing with
// the base model's.
func TestAdapterByID(t *testing.T) {
	s := start(t, "--engine sglang --block 4 --lora one")
	prompt := []uint32{1, 2, 3, 4, 5, 6, 7, 8, 9}
	for i, c := range []struct {
		lora   string
		cached uint32
	}{{"", 0}, {"one", 0}, {"one", 8}, {"", 8}} {
		all, err := s.choices(t, SGLang, "a", c.lora, prompt, 1, 1, false)
		if err != nil {
			t.Fatal(err)
		}
		if got := all[0].end.GetCachedTokens(); got != c.cached {
			t.Errorf("request %d, adapter %q: %d tokens cached, want %d", i, c.lora, got, c.cached)
		}
	}
	if _, err := s.choices(t, SGLang, "b", "two", prompt, 1, 1, false); status.Code(err) != codes.InvalidArgument {
		t.Errorf("an adapter that is not served: %v, want InvalidArgument", err)
	}
}
