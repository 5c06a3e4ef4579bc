// SPDX-License-Identifier: Apache-2.0

// Before: front_http.go, which has a body. After: front_http_answer.go.

package engine

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"math"
)

const (
	maxPrompts = 256   // of one request
	maxChoices = 128   // of one prompt
	maxStops   = 32    // texts that end an answer
	maxStop    = 1_024 // bytes of one
)

// generation is the body of a completion, of either kind.
type generation struct {
	Model    string          `json:"model"`
	Prompt   json.RawMessage `json:"prompt"`
	Messages []chatMessage   `json:"messages"`

	Stream        bool `json:"stream"`
	StreamOptions *struct {
		Usage      bool `json:"include_usage"`
		Continuous bool `json:"continuous_usage_stats"`
	} `json:"stream_options"`
	N             *int            `json:"n"`
	MaxTokens     *int            `json:"max_tokens"`
	MaxCompletion *int            `json:"max_completion_tokens"`
	Stop          json.RawMessage `json:"stop"`
	StopTokens    []uint32        `json:"stop_token_ids"`
	IncludeStop   bool            `json:"include_stop_str_in_output"`
	Echo          bool            `json:"echo"`
	Logprobs      json.RawMessage `json:"logprobs"`
	TopLogprobs   *int            `json:"top_logprobs"`
	OfPrompt      *int            `json:"prompt_logprobs"`
	Temperature   *float64        `json:"temperature"`
	TopP          *float64        `json:"top_p"`
	Salt          string          `json:"cache_salt"`
	Session       string          `json:"session_id"`
	Rank          *int            `json:"data_parallel_rank"`
	TokenIDs      bool            `json:"return_token_ids"`
	Embeds        []string        `json:"prompt_embeds"`
	Extra         struct {
		Report string `json:"kv_cache_report_mode"`
	} `json:"vllm_xargs"`

	likely int // tokens to tell with each that might have come; below 0: not even its own probability
}

// chatMessage is one of a chat, as a client writes it.
type chatMessage struct {
	Role    string          `json:"role"`
	Content json.RawMessage `json:"content"`
}

// check refuses what an engine refuses, and returns the texts that end an answer.
func (g *generation) check(chat bool) (stops []string, err error) {
	switch {
	case g.StreamOptions != nil && !g.Stream:
		return nil, refuse("stream_options", "Stream options can only be defined when `stream=True`.")
	case g.N != nil && (*g.N < 1 || *g.N > maxChoices):
		return nil, refuse("n", "n must be 1 to %d, got %d.", maxChoices, *g.N)
	case g.MaxTokens != nil && *g.MaxTokens < 1:
		return nil, refuse("max_tokens", "max_tokens must be at least 1, got %d.", *g.MaxTokens)
	case g.MaxCompletion != nil && *g.MaxCompletion < 1:
		return nil, refuse("max_completion_tokens", "max_completion_tokens must be at least 1, got %d.", *g.MaxCompletion)
	case g.Temperature != nil && !(*g.Temperature >= 0):
		return nil, refuse("temperature", "temperature must be non-negative, got %v.", *g.Temperature)
	case g.TopP != nil && !(*g.TopP > 0 && *g.TopP <= 1):
		return nil, refuse("top_p", "top_p must be in (0, 1], got %v.", *g.TopP)
	case !chat && g.Messages != nil:
		return nil, refuse("messages", "messages: belong to /v1/chat/completions: give a prompt")
	case g.OfPrompt != nil:
		return nil, refuse("prompt_logprobs", "prompt_logprobs: this engine makes none up")
	case g.Echo && chat:
		return nil, refuse("echo", "echo: belongs to /v1/completions")
	}
	if err := g.readLogprobs(chat); err != nil {
		return nil, err
	}
	if g.Echo && g.likely >= 0 {
		return nil, refuse("echo", "echo: does not go with logprobs here: this engine makes none up for a prompt")
	}
	return stopTexts(g.Stop)
}

// maxLikely bounds how many tokens are told with each that might have come.
const maxLikely = 20

// readLogprobs reads what is asked of probabilities: of a chat whether, and of how
// many; of a text of how many.
func (g *generation) readLogprobs(chat bool) error {
	g.likely = -1
	n, on := 0, false
	switch {
	case absent(g.Logprobs), string(g.Logprobs) == "false":
	case chat && string(g.Logprobs) == "true":
		on = true
	case chat:
		return refuse("logprobs", "logprobs: must be true or false: top_logprobs says how many")
	case json.Unmarshal(g.Logprobs, &n) != nil:
		return refuse("logprobs", "logprobs: must be a whole number from 0 to %d", maxLikely)
	default:
		on = true
	}
	if g.TopLogprobs != nil {
		if !chat || !on {
			return refuse("top_logprobs", "top_logprobs: goes with logprobs: true of a chat")
		}
		n = *g.TopLogprobs
	}
	if n < 0 || n > maxLikely {
		return refuse("logprobs", "logprobs: must be 0 to %d, got %d", maxLikely, n)
	}
	if on {
		g.likely = n
	}
	return nil
}

func stopTexts(raw json.RawMessage) ([]string, error) {
	if absent(raw) {
		return nil, nil
	}
	var one string
	var out []string
	if json.Unmarshal(raw, &one) == nil {
		out = []string{one}
	} else if json.Unmarshal(raw, &out) != nil {
		return nil, refuse("stop", "stop: must be a text or a list of texts")
	}
	if len(out) > maxStops {
		return nil, refuse("stop", "stop: %d texts: must be at most %d", len(out), maxStops)
	}
	for _, s := range out {
		if s == "" || len(s) > maxStop {
			return nil, refuse("stop", "stop: a text must have 1 to %d bytes", maxStop)
		}
	}
	return out, nil
}

// most returns how many tokens an answer may have: 0: nothing was said.
func (g *generation) most() int {
	switch {
	case g.MaxCompletion != nil:
		return *g.MaxCompletion
	case g.MaxTokens != nil:
		return *g.MaxTokens
	}
	return 0
}

// choices returns how many answers a prompt gets.
func (g *generation) choices() int {
	if g.N == nil {
		return 1
	}
	return *g.N
}

// absent reports whether a field is absent or null.
func absent(raw json.RawMessage) bool { return len(raw) == 0 || string(raw) == "null" }

// plainMessages takes a chat's messages apart.
func plainMessages(all []chatMessage) ([]message, error) {
	if len(all) == 0 {
		return nil, refuse("messages", "messages: must not be empty")
	}
	out := make([]message, len(all))
	for i := range all {
		m := &all[i]
		if m.Role == "" {
			return nil, refuse("messages", "messages[%d].role: missing", i)
		}
		out[i].Role = m.Role
		var text string
		if absent(m.Content) || json.Unmarshal(m.Content, &text) == nil {
			out[i].Parts = []messagePart{{Text: text}} // a call of a tool has no text
			continue
		}
		var parts []contentPart
		if json.Unmarshal(m.Content, &parts) != nil {
			return nil, refuse("messages", "messages[%d].content: must be a text or a list of parts", i)
		}
		for k := range parts {
			p, ok := parts[k].plain()
			if !ok {
				return nil, refuse("messages", "messages[%d].content[%d]: only parts of type text, image_url, video_url, audio_url and input_audio are understood, with what the type names: the type is %q", i, k, parts[k].Type)
			}
			out[i].Parts = append(out[i].Parts, p)
		}
	}
	return out, nil
}

// contentPart is a part of a message's content.
type contentPart struct {
	Type  string   `json:"type"`
	Text  *string  `json:"text"`
	Image *located `json:"image_url"`
	Video *located `json:"video_url"`
	Audio *located `json:"audio_url"`
	Input *struct {
		Data string `json:"data"`
	} `json:"input_audio"`
}

type located struct {
	URL string `json:"url"`
}

// plain returns the part that it says it is; not ok where that is missing.
func (p *contentPart) plain() (out messagePart, ok bool) {
	at := map[string]*located{"image_url": p.Image, "video_url": p.Video, "audio_url": p.Audio}[p.Type]
	switch {
	case p.Type == "text" && p.Text != nil:
		return messagePart{Text: *p.Text}, true
	case p.Type == "input_audio" && p.Input != nil && p.Input.Data != "":
		return messagePart{Item: p.Input.Data}, true
	case at != nil && at.URL != "":
		return messagePart{Item: at.URL}, true
	}
	return out, false
}

// promptText is one prompt: its tokens, and its text if it came as one.
type promptText struct {
	tokens []uint32
	text   string
	items  []Item
	embeds [][]byte
}

// embedded returns a prompt of embeddings: a row of bytes for each token. They are
// whatever they are: torch's form of them is not read.
func embedded(rows []string) (promptText, error) {
	p := promptText{tokens: make([]uint32, len(rows)), embeds: make([][]byte, len(rows))}
	for i, row := range rows {
		b, err := base64.StdEncoding.DecodeString(row)
		if err != nil || len(b) == 0 {
			return p, refuse("prompt_embeds", "prompt_embeds[%d]: must be one token's embedding as base64", i)
		}
		p.embeds[i] = b
	}
	return p, nil
}

const promptForms = "prompt: must be a text, a list of texts, a list of token ids, or a list of lists of token ids"

// prompts reads a prompt in any of its forms.
//
// Cost: about 2 ns a byte of token ids.
func (t tokenizer) prompts(raw json.RawMessage) ([]promptText, error) {
	raw = bytes.TrimLeft(raw, " \t\r\n")
	switch {
	case absent(raw):
		return nil, refuse("prompt", "prompt: missing")
	case raw[0] == '"':
		one, err := t.textPrompt(raw)
		return []promptText{one}, err
	case raw[0] != '[':
		return nil, refuse("prompt", promptForms)
	}
	inner := bytes.TrimLeft(raw[1:], " \t\r\n")
	switch {
	case len(inner) == 0 || inner[0] == ']':
		return nil, refuse("prompt", "prompt: must not be empty")
	case inner[0] != '"' && inner[0] != '[':
		tokens, err := tokenIDs(raw)
		return []promptText{{tokens: tokens}}, err
	}
	var all []json.RawMessage
	if json.Unmarshal(raw, &all) != nil {
		return nil, refuse("prompt", promptForms)
	}
	if len(all) > maxPrompts {
		return nil, refuse("prompt", "prompt: %d prompts: must be at most %d", len(all), maxPrompts)
	}
	out := make([]promptText, len(all))
	for i, p := range all {
		var err error
		switch {
		case p[0] != inner[0]:
			err = refuse("prompt", promptForms)
		case p[0] == '"':
			out[i], err = t.textPrompt(p)
		default:
			out[i].tokens, err = tokenIDs(p)
		}
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (t tokenizer) textPrompt(raw json.RawMessage) (promptText, error) {
	var text string
	if json.Unmarshal(raw, &text) != nil {
		return promptText{}, refuse("prompt", promptForms)
	}
	tokens := t.append(make([]uint32, 0, len(text)/4+1), text)
	if len(tokens) == 0 {
		return promptText{}, refuse("prompt", "prompt: must not be empty")
	}
	return promptText{tokens: tokens, text: text}, nil
}

// tokenIDs reads a list of token ids. raw is valid JSON.
func tokenIDs(raw []byte) ([]uint32, error) {
	out := make([]uint32, 0, len(raw)/4+1)
	n, digits := uint64(0), 0
	for i, c := range raw {
		switch {
		case c >= '0' && c <= '9':
			n = n*10 + uint64(c-'0')
			if digits++; n > math.MaxInt32 {
				return nil, refuse("prompt", "prompt[%d]: a token id must be at most %d", len(out), math.MaxInt32)
			}
		case c == ',' || c == ']':
			if digits == 0 {
				if c == ']' && len(out) == 0 {
					return nil, refuse("prompt", "prompt: must not be empty")
				}
				return nil, refuse("prompt", "prompt[%d]: must be a token id", len(out))
			}
			out = append(out, uint32(n))
			n, digits = 0, 0
			if c == ']' && len(bytes.TrimSpace(raw[i+1:])) > 0 {
				return nil, refuse("prompt", promptForms)
			}
		case c == '[' && i == 0, c == ' ', c == '\n', c == '\t', c == '\r':
		default:
			return nil, refuse("prompt", "prompt[%d]: must be a token id: a whole number from 0 on", len(out))
		}
	}
	return out, nil
}
