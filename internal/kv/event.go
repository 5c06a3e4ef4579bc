// SPDX-License-Identifier: Apache-2.0

package kv

// Kind is what an event announces.
type Kind uint8

// The kinds of events on the wire.
const (
	KindStored  Kind = iota // BlockStored
	KindRemoved             // BlockRemoved
	KindCleared             // AllBlocksCleared
)

// String returns the wire's tag.
func (k Kind) String() string {
	switch k {
	case KindStored:
		return "BlockStored"
	case KindRemoved:
		return "BlockRemoved"
	case KindCleared:
		return "AllBlocksCleared"
	}
	return "unknown"
}

// SpecKind is the attention kind of a cache group.
type SpecKind uint8

// The attention kinds that matter to us. An engine that names none means
// SpecUnstated.
const (
	SpecUnstated SpecKind = iota
	SpecFull              // full_attention, mla_attention: one block a position
	SpecWindow            // sliding_window and its kin: a sparse subset
	SpecOther             // mamba, chunked_local_attention, whatever comes
)

// Locality says whose storage a copy lies in.
type Locality uint8

// The localities of the wire.
const (
	LocalityUnstated Locality = iota
	LocalityLocal
	LocalityRemote
)

// ExtraKind is the shape of one extra key.
type ExtraKind uint8

// The shapes of extra keys on the wire.
const (
	ExtraString ExtraKind = iota // bare string: LoRA name, salt, or an image identifier of old releases
	ExtraItem                    // [identifier, offset]: one multimodal item
	ExtraBytes                   // a digest of prompt embeddings
)

// ExtraKey is one extra key of one block as the wire shows it.
type ExtraKey struct {
	Kind   ExtraKind
	ID     string // identifier, or the raw bytes of a digest
	Offset int64  // ExtraItem only: item start minus block start, in tokens
}

// HashForm is how an engine writes its hashes.
type HashForm uint8

// The forms of engine hashes.
const (
	FormUnsigned HashForm = iota // vLLM since 0.10.2: low 64 bits, unsigned
	FormSigned                   // SGLang and old vLLM: int64
	FormBytes                    // 16 or 32 byte digests
)

// Event is one decoded event. Slices belong to the decoder's batch and are
// valid until its next use; copy what must outlive it.
//
// Shape: Hashes may be empty; len(Tokens) need not be BlockSize*len(Hashes)
// (window groups list a subset); Extra, when not nil, has one entry per hash.
type Event struct {
	Kind   Kind
	Form   HashForm
	Hashes []EngineHash
	// Digests holds the full digests, one per hash, when Form is FormBytes.
	Digests [][]byte

	Parent       EngineHash
	HasParent    bool
	ParentDigest []byte

	Tokens []uint32 // bigram pages: the first token of each pair
	Second []uint32 // bigram pages: the second of each pair; else nil

	BlockSize int // tokens in a block; 0 in placeholders

	LoRAID    int64
	HasLoRAID bool
	LoRAName  string

	Medium string // the engine's word; "" when absent
	Tier   Tier   // what Medium means; absent is device

	Extra    [][]ExtraKey
	HasExtra bool

	Group    int
	HasGroup bool

	Spec       SpecKind
	SpecName   string // the engine's word
	Window     int    // tokens; window kinds only
	HasWindow  bool
	Locality   Locality
	Ownership  string
	SessionID  string
	Salt       string // SGLang's cache_salt field
	HasSalt    bool
	Lookahead  [][]uint32 // vLLM 0.33: tokens after each block that its hash covers
	ArrayItems int        // array form: elements, tag included; 0 for the map form
}

// Batch is one message of a stream: all events of one scheduler pass.
type Batch struct {
	Timestamp float64 // seconds, the engine's wall clock
	Rank      int     // data-parallel rank as the batch says
	HasRank   bool
	Events    []Event

	// Storage is the memory that a decoder cuts the events' slices from, kept
	// with the batch so that two batches never share any. Nobody else reads it.
	Storage Storage
}

// Storage is a batch's reusable memory: one slab per element type.
type Storage struct {
	Hashes     []EngineHash
	Tokens     []uint32
	Digests    [][]byte
	Keys       []ExtraKey
	KeyLists   [][]ExtraKey
	TokenLists [][]uint32
}

// Load is one reading of an engine's load, as SGLang's load socket sends it.
type Load struct {
	Running               int64
	Waiting               int64
	UsedTokens            int64
	MaxTokens             int64
	Rank                  int64
	WaitingUncachedTokens int64
	TotalTokens           int64
	MaxRunning            int64
	PrefillUncachedTokens int64 // cumulative
	PrefillBusyMicros     int64 // cumulative
	Fields                int   // how many of the above the message carried
	Nils                  uint  // bit i-1: figure i, counted from 1, came as nil
}

// Unsaid tells whether figure i, counted from 1, came as nil: the engine does not
// know it, which is not 0.
func (l *Load) Unsaid(i int) bool { return l.Nils>>(i-1)&1 != 0 }
