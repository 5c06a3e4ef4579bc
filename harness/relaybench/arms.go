// SPDX-License-Identifier: Apache-2.0

package relaybench

import (
	"context"
	_ "embed" // the peer's host
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"kindex/harness/proc"
	"kindex/harness/publish"
	"kindex/harness/pyenv"
)

// Histories, in batches: both relays' default, and one that leaves all memory to the
// state and gives a subscriber from nothing a snapshot.
const (
	defaultHistory = 10_000
	smallHistory   = 100
)

//go:embed relay_host.py
var peerHost string

// The peer's host wants a tokenizer and asks nothing of it.
var tokenizer = map[string]string{
	"config.json":           `{"model_type":"llama","architectures":["LlamaForCausalLM"],"vocab_size":4,"max_position_embeddings":131072,"eos_token_id":2,"bos_token_id":1}`,
	"tokenizer_config.json": `{"tokenizer_class":"PreTrainedTokenizerFast","unk_token":"<unk>","bos_token":"<s>","eos_token":"</s>"}`,
	"tokenizer.json":        `{"version":"1.0","truncation":null,"padding":null,"added_tokens":[],"normalizer":null,"pre_tokenizer":{"type":"WhitespaceSplit"},"post_processor":null,"decoder":null,"model":{"type":"WordLevel","vocab":{"<unk>":0,"<s>":1,"</s>":2,"w":3},"unk_token":"<unk>"}}`,
}

// programs are what the arms start.
type programs struct {
	relay, python string
	dir           string // of the peer's host and sockets
}

// find looks for what the arms need, and makes it where that takes a while.
func find(ctx context.Context, arms []string) (p programs, err error) {
	if p.dir, err = os.MkdirTemp("", "relaybench"); err != nil {
		return p, err
	}
	for _, a := range arms {
		switch {
		case a == ArmSMG && p.python == "":
			if p.python, err = pyenv.SMG.Python(ctx); err == nil {
				err = os.WriteFile(filepath.Join(p.dir, "relay_host.py"), []byte(peerHost), 0o600)
			}
			for name, text := range tokenizer {
				if err == nil {
					err = os.WriteFile(filepath.Join(p.dir, name), []byte(text), 0o600)
				}
			}
		case a != ArmSMG && p.relay == "":
			p.relay, err = proc.Find("relay")
		}
		if err != nil {
			return p, err
		}
	}
	return p, nil
}

func (p *programs) close() error { return os.RemoveAll(p.dir) }

// start starts an arm's relay of the publisher at those ports and returns its address.
func (p *programs) start(arm string, pub, replay, history int) (*proc.Process, string, error) {
	port, err := publish.FreePorts(2)
	if err != nil {
		return nil, "", err
	}
	addr := fmt.Sprintf("127.0.0.1:%d", port)
	if arm == ArmSMG {
		sockets, err := os.MkdirTemp(p.dir, "s")
		if err != nil {
			return nil, "", err
		}
		child, err := proc.Start(p.python, []string{"SMG_KV_EVENT_HISTORY_BATCHES=" + strconv.Itoa(history)},
			filepath.Join(p.dir, "relay_host.py"), strconv.Itoa(port), strconv.Itoa(pub), strconv.Itoa(replay), p.dir, sockets)
		return child, addr, err
	}
	child, err := proc.Start(p.relay, nil,
		"--engine", fmt.Sprintf("vllm=tcp://127.0.0.1:%d,replay=tcp://127.0.0.1:%d", pub, replay),
		"--listen", addr, "--http", fmt.Sprintf("127.0.0.1:%d", port+1), "--history-batches", strconv.Itoa(history))
	return child, addr, err
}

// contract returns how an arm's relay is asked.
func contractOf(arm string) *contract {
	if arm == ArmOwn {
		return &ownContract
	}
	return &peerContract
}
