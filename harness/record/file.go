// SPDX-License-Identifier: Apache-2.0

package record

import (
	"fmt"
	"slices"
	"strings"

	"kindex/internal/kv"
)

// Kind says what one line of a recording is.
type Kind string

// The kinds of lines.
const (
	KindHeader Kind = "header"
	KindMsg    Kind = "msg"
	KindReq    Kind = "req"
	KindResp   Kind = "resp"
	KindState  Kind = "state"
	KindTruth  Kind = "truth"
	KindCtl    Kind = "ctl"
	KindReplay Kind = "replay"
)

// File is one recording in memory.
type File struct {
	Path    string
	Header  Header
	Lines   []Line // without the header
	Unknown int    // lines of a kind this version does not know
}

// Line is one recorded fact. The field that Kind names is set, no other.
type Line struct {
	N    int     // line number in the file, from 1
	T    float64 // seconds, the recorder's wall clock
	Kind Kind

	Msg    *Msg
	Req    *Req
	Resp   *Resp
	State  *State
	Truth  *Truth
	Ctl    *Ctl
	Replay *Replay
}

// Header describes the recording. Fields that the recorder had no value for are
// zero.
type Header struct {
	Format   string `json:"format"`
	Engine   string `json:"engine"` // vllm, sglang or tokenspeed
	Version  string `json:"version"`
	How      string `json:"how"`
	Scenario string `json:"scenario"`

	Rank  int `json:"rank"`
	Ranks int `json:"ranks"` // 0: one

	PageSize  int     `json:"page_size"`  // SGLang
	BlockSize int     `json:"block_size"` // vLLM's server
	Groups    []Group `json:"groups"`     // vLLM in process
	Args      struct {
		BlockSize int `json:"block_size"`
	} `json:"args"`

	HashAlgo  string `json:"hash_algo"`
	NoneHash  string `json:"none_hash"` // hex
	Lookahead int    `json:"num_hash_lookahead_tokens"`
	IsEagle   bool   `json:"is_eagle"`

	HostTokens  int    `json:"host_tokens"` // SGLang's host pool; 0: none
	Topic       string `json:"topic"`
	BufferSteps int    `json:"buffer_steps"`
}

// Group is one cache group of a vLLM model.
type Group struct {
	Spec      string `json:"spec"` // FullAttentionSpec, SlidingWindowSpec, ...
	BlockSize int    `json:"block_size"`
	Window    int    `json:"window"` // tokens; 0: none
}

// Msg is one message as the SUB socket gave it.
type Msg struct {
	Src    string // pubR: the event socket of rank R; loadR: its load socket
	Frames [][]byte
}

// Req is one request as it was sent.
type Req struct {
	ID        string         `json:"id"`
	Prompt    []uint32       `json:"prompt"`
	MaxTokens int            `json:"max_tokens"`
	Salt      string         `json:"cache_salt"`
	LoRA      *LoRA          `json:"lora"`
	MM        []MMItem       `json:"mm"`
	Session   string         `json:"session_id"`
	ExtraKey  string         `json:"extra_key"`
	Extra     map[string]any `json:"extra_args"`
	Embeds    string         `json:"prompt_embeds_sha256"` // not empty: the prompt is embeddings, its ids are zeros
	Rank      *int           `json:"rank"`                 // asked for; nil: the engine chose
}

// LoRA is the adapter of a request.
type LoRA struct {
	Name string `json:"name"`
	ID   any    `json:"id"` // vLLM: a number; SGLang: a text
	Path string `json:"path"`
}

// MMItem is one image, sound or the like within a prompt.
type MMItem struct {
	ID     string `json:"id"`
	Offset int    `json:"offset"` // tokens
	Length int    `json:"length"` // tokens
}

// Resp is the engine's answer.
type Resp struct {
	ID           string `json:"id"`
	PromptTokens int    `json:"prompt_tokens"`
	// Cached is the engine's own count of prompt tokens it found cached; nil
	// where it gave none.
	Cached *int `json:"cached_tokens"`
	// CachedDevice and CachedHost split it where the engine says: on the device
	// before anything was loaded back, and in host memory.
	CachedDevice *int     `json:"cached_device_before_load"`
	CachedHost   *int     `json:"cached_host"`
	Output       []uint32 `json:"output"`
	// BlockHashes are the request's own engine hashes, hex, in directly driven files.
	BlockHashes []string `json:"block_hashes"`
}

// State is the engine's own block table at one moment.
type State struct {
	Rank    *int
	Pending int // events the engine had recorded and not yet published
	Cached  []Cached
}

// Cached is one entry of the engine's table.
type Cached struct {
	Hash   kv.EngineHash
	Group  int
	Copies int
	Tiers  []string // SGLang: the tiers it lies in; nil: the device
}

// Truth is what the engine was asked to publish in one message.
type Truth struct {
	Src      string
	Seq      uint64
	HasSeq   bool
	Events   []map[string]any // numbers are json.Number
	Snapshot map[string]any   // load sockets: one reading
}

// Ctl is an operation on the engine or a note of the recorder.
type Ctl struct {
	Op   string `json:"op"`
	OK   *bool  `json:"ok"`
	ID   string `json:"id"`   // route: which request
	Rank int    `json:"rank"` // route: to which rank
}

// Replay is one request to a replay socket and its answers.
type Replay struct {
	Src      string // replayR
	TX       [][]byte
	Messages [][][]byte
	Ended    bool // the end marker was seen
}

// PubRank returns the rank whose event socket src is.
func PubRank(src string) (int, bool) { return rankOf(src, "pub") }

// ReplayRank returns the rank whose replay socket src is.
func ReplayRank(src string) (int, bool) { return rankOf(src, "replay") }

// LoadRank returns the rank whose load socket src is.
func LoadRank(src string) (int, bool) { return rankOf(src, "load") }

func rankOf(src, prefix string) (int, bool) {
	s, ok := strings.CutPrefix(src, prefix)
	if !ok || s == "" || len(s) > 4 {
		return 0, false
	}
	n := 0
	for _, c := range s {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + int(c-'0')
	}
	return n, true
}

// Ranks returns the ranks that published, ascending.
func (f *File) Ranks() []int {
	var out []int
	for i := range f.Lines {
		m := f.Lines[i].Msg
		if m == nil {
			continue
		}
		if r, ok := PubRank(m.Src); ok && !slices.Contains(out, r) {
			out = append(out, r)
		}
	}
	slices.Sort(out)
	return out
}

// MainBlockSize returns the tokens in one block of the main cache group, or 0
// where the header does not say (the events then do).
func (h *Header) MainBlockSize() int {
	switch {
	case h.PageSize > 0:
		return h.PageSize
	case h.BlockSize > 0:
		return h.BlockSize
	}
	for _, g := range h.Groups {
		if g.Window == 0 && g.BlockSize > 0 {
			return g.BlockSize
		}
	}
	if len(h.Groups) > 0 {
		return max(0, h.Groups[0].BlockSize)
	}
	return max(0, h.Args.BlockSize)
}

// Error is a recording that cannot be read: where, and what is wrong.
type Error struct {
	Path string
	Line int // 0: the file as a whole
	Err  error
}

// Error returns "path:line: what".
func (e *Error) Error() string {
	if e.Line == 0 {
		return fmt.Sprintf("%s: %v", e.Path, e.Err)
	}
	return fmt.Sprintf("%s:%d: %v", e.Path, e.Line, e.Err)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }
