// SPDX-License-Identifier: Apache-2.0

// Before: the HTTP front, which has a body. After: the router and its prompts.

package openai

import (
	"strconv"

	"kindex/internal/jsonscan"
)

// Kind says which route a body came by.
type Kind uint8

// The kinds.
const (
	Chat       Kind = iota // /v1/chat/completions
	Completion             // /v1/completions
	Embedding              // /v1/embeddings
	Generate               // SGLang's /generate
	Tokenize               // /tokenize
	Detokenize             // /detokenize
)

// Form says what a prompt is made of.
type Form uint8

// The forms.
const (
	NoPrompt Form = iota // there is none, or none that is understood
	Text                 // Call.Text
	IDs                  // Call.Tokens
	Messages             // Call.Messages
	Embeds               // embeddings: no tokens stand for them
)

// Reasons why a prompt's tokens cannot be known from a body alone: Call.Unsure. They
// are fit for a label.
const (
	Truncated = "truncated"       // the engine cuts the prompt
	Embedded  = "embeddings"      // tokens are not what it is made of
	Suffixed  = "suffix"          // the engine puts the prompt and a suffix into a template
	Odd       = "odd_prompt"      // a form, or a value, that is not understood
	Isolated  = "extra_key"       // a namespace that events of the cache do not tell
	Templated = "template_fields" // fields that change a chat's text and that /tokenize does not take
)

// A Call is what a body says that routing needs. Its byte slices point into Body or
// into the call itself: they live until the next [Parse] into it, or the body's reuse.
//
// Concurrency: one goroutine writes; any may read afterwards.
type Call struct {
	Kind Kind
	Body []byte // as it came

	Model  string // "": none was given
	Stream bool
	User   string
	Salt   string // cache_salt
	LoRA   string // lora_path or lora_name: an adapter beside the model's own name

	// The first prompt. Prompts is how many there are: engines answer each by itself,
	// and the usage of an answer is that of all together.
	Form     Form
	Prompts  int
	Tokens   []uint32
	Text     []byte // unescaped
	Messages []byte // the array, as it stands in Body

	// Unsure is why a prompt's tokens cannot be known from the above alone; "": they
	// can.
	Unsure string

	Multimodal bool // images, audio or video are part of the prompt
	UsageInSSE bool // a stream's end tells the usage: stream_options.include_usage
	Rank       int  // data_parallel_rank; -1: free
	N          int  // answers to each prompt; 1 where nothing is said
	MaxTokens  int  // of one answer; 0: not said

	turns   []Turn
	options []span // members that may change what the engine makes of the prompt
	rankAt  span
	scan    jsonscan.Scanner
}

// Turn is one message of a chat.
type Turn struct {
	From, To int // in Body
	Item     bool
}

// span is a part of a body, from and to; both 0: it is not there.
type span struct{ from, to int }

// Turns returns the messages of a chat, in order.
func (c *Call) Turns() []Turn { return c.turns }

// AppendOptions appends the members of the body, each before a comma, that may change
// what the engine makes of the prompt, besides the prompt itself and the model: they
// belong into the question for its tokens, and what has the same prompt but other
// options has other tokens.
func (c *Call) AppendOptions(dst []byte) []byte {
	for _, o := range c.options {
		dst = append(append(dst, c.Body[o.from:o.to]...), ',')
	}
	return dst
}

// AppendWithRank appends the body with data_parallel_rank set to rank; all else stays
// as it came, byte for byte.
func (c *Call) AppendWithRank(dst []byte, rank int) []byte {
	if at := c.rankAt; at.to > 0 {
		dst = append(dst, c.Body[:at.from]...)
		dst = strconv.AppendInt(dst, int64(rank), 10)
		return append(dst, c.Body[at.to:]...)
	}
	open, empty := brace(c.Body)
	dst = append(dst, c.Body[:open]...)
	dst = append(dst, `"data_parallel_rank":`...)
	dst = strconv.AppendInt(dst, int64(rank), 10)
	if !empty {
		dst = append(dst, ',')
	}
	return append(dst, c.Body[open:]...)
}

// brace returns where the first member of an object belongs, and whether there is none
// yet. body was parsed.
func brace(body []byte) (at int, empty bool) {
	var s jsonscan.Scanner
	s.Reset(body)
	s.Take('{')
	at = s.Offset()
	return at, s.Space() == '}'
}

// Kept returns how many bytes of memory the call keeps for the next one: what has kept
// much is better thrown away.
func (c *Call) Kept() int {
	return 4*cap(c.Tokens) + 24*cap(c.turns) + 16*cap(c.options) + c.scan.Kept()
}
