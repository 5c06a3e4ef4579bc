// SPDX-License-Identifier: Apache-2.0

// Before: the HTTP front, which has a body. After: the router and its prompts.

package openai

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
	// can. It is one of a few fixed names, fit for a label.
	Unsure string

	Multimodal bool // images, audio or video are part of the prompt
	UsageInSSE bool // a stream's end tells the usage: stream_options.include_usage
	Rank       int  // data_parallel_rank; -1: free
	N          int  // answers to each prompt; 1 where nothing is said
	MaxTokens  int  // of one answer; 0: not said
}
