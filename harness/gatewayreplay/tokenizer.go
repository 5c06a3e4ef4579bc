// SPDX-License-Identifier: Apache-2.0

package gatewayreplay

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

const (
	words     = 2048 // of the engines' vocabulary; word wN is token N
	fileWords = "words.txt"
)

// writeTokenizer writes the smallest tokenizer that the peer loads, as the mock engines
// have it, and a file of its words.
func writeTokenizer(dir string) error {
	special := []string{"<unk>", "<s>", "</s>"}
	vocab := make(map[string]int, words)
	var added []map[string]any
	for i, word := range special {
		vocab[word] = i
		added = append(added, map[string]any{"id": i, "content": word, "special": true, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false})
	}
	var all []string
	for i := len(special); i < words; i++ {
		word := "w" + strconv.Itoa(i)
		vocab[word] = i
		all = append(all, word)
	}
	errs := []error{os.WriteFile(filepath.Join(dir, fileWords), []byte(strings.Join(all, "\n")), 0o600)}
	for name, content := range map[string]any{
		"tokenizer.json": map[string]any{
			"version": "1.0", "truncation": nil, "padding": nil, "added_tokens": added, "normalizer": nil,
			"pre_tokenizer": map[string]any{"type": "WhitespaceSplit"}, "post_processor": nil, "decoder": nil,
			"model": map[string]any{"type": "WordLevel", "vocab": vocab, "unk_token": special[0]},
		},
		"tokenizer_config.json": map[string]any{
			"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": special[0], "bos_token": special[1], "eos_token": special[2], "model_max_length": 131_072,
		},
		"config.json": map[string]any{
			"model_type": "llama", "architectures": []string{"LlamaForCausalLM"}, "vocab_size": words, "max_position_embeddings": 131_072, "bos_token_id": 1, "eos_token_id": 2,
		},
	} {
		data, err := json.Marshal(content)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), data, 0o600)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
