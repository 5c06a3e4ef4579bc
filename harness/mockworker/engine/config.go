// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"kindex/internal/enginehash"
	"kindex/internal/kv"
	"kindex/relay/wire"
)

// The engines that it can be.
const (
	VLLM   = "vllm"
	SGLang = "sglang"
	// TokenSpeed publishes nearly as SGLang does; that is all of it that is here.
	TokenSpeed = "tokenspeed"
)

// How vLLM's connector tells of blocks on the host.
const (
	OffloadPlaceholder = "placeholder" // by their hashes alone
	OffloadDescribed   = "described"   // with their tokens
	OffloadSimple      = "simple"      // the simple connector: with their tokens, as local
)

// When SGLang copies blocks to the host.
const (
	WriteThrough  = "write-through"           // when they are put into its tree
	WriteSelected = "write-through-selective" // when that was asked for them again
	WriteBack     = "write-back"              // as the device loses them
)

// Config is what an engine can be told. The zero value of a field that has a
// default means that default.
type Config struct {
	Engine  string // VLLM, SGLang or TokenSpeed
	Version string // the release whose batches and replays it writes; "": the newest known

	Pub    string // rank 0's event endpoint; rank r is at port + r, port 0 takes any
	Replay string // rank 0's replay endpoint, as Pub; "": none
	Topic  string
	// LoadPub is rank 0's load endpoint, as Pub; LoadAuto: next to the events'; "": none.
	LoadPub string
	Buffer  int    // batches a replay can go back; 0: 10,000
	Dials   bool   // Pub is connected to, not bound, as vLLM does with a host's name there
	HTTP    string // host:port of OpenAI's API; "": none
	GRPC    string // host:port of the engine's gRPC contract; "": none
	Admin   string // host:port of the truth; "": none
	APIKey  string // that HTTP clients must show; "": none

	Windows    []int // tokens: a window group beside the main one for each; vLLM only
	WindowOnly bool  // there is no main group
	Retention  int   // tokens between the tails that window groups keep; 0: only what a next turn needs; below 0: all

	Lookahead int  // tokens after a block that its hash covers too: vLLM since 0.33, where it drafts
	Bigram    bool // pages of pairs of tokens: SGLang, where it drafts

	HostBlocks  int    // blocks of a rank's second tier; 0: none
	Offload     string // how vLLM tells of it: OffloadPlaceholder and so on; "": OffloadPlaceholder
	Chunk       int    // blocks that vLLM moves at once; 0: 1
	HostPolicy  string // when SGLang copies to it: WriteThrough and so on; "": WriteThrough
	DiskBlocks  int    // blocks of a third tier, storage; 0: none; vLLM only
	DiskRemote  bool   // that is not this machine's
	DiskOwner   string // name of that tier; "": it has none
	ImageTokens int    // of an image in a chat; 0: 64

	Ranks         int      // data-parallel; 0: 1
	BlockSize     int      // tokens; 0: 16
	Blocks        int      // physical blocks of a rank; 0: 4,096
	MaxRunning    int      // requests of a rank; 0: 256
	ContextLength int      // tokens of a prompt and its answer; 0: 32,768
	Vocabulary    int      // tokens that can be drawn; 0: 2,048
	MaxTokens     int      // to generate where a request names no number; 0: 16
	Model         string   // served name; "": "mock"
	ModelPath     string   // folder of the tokenizer and its config; "": Model
	LoRA          []string // adapters' served names

	Budget       int  // tokens that one pass computes; 0: 8,192
	AdmitByChunk bool // let a request in as soon as its first share fits, not its whole prompt

	PassTime time.Duration // of each pass; 0: as fast as it goes
	Timing   *Timing       // of passes, in PassTime's stead; nil: none
	Speed    float64       // how many times as fast as Timing; 0: 1

	// Ended is told of every request that ended, in order on each rank; nil: nobody
	// is. The rank waits for it.
	Ended func(Stats)

	// Quiet is a model whose events nobody reads: it makes none, and has no content to
	// tell. Where there are window groups or a second tier it says nothing.
	Quiet bool

	audit    func(*scheduler) // a test's: sees the scheduler as each pass begins and ends
	Digests  bool             // vLLM writes whole digests, not integers
	Seed     uint64           // of the drawn tokens
	Hash     string           // vLLM's algorithm; "": sha256_cbor
	HashSeed string           // roots vLLM's chains, as PYTHONHASHSEED does; "": vLLM's own
}

// The limits of a config.
const (
	maxRanks   = 64
	maxBlock   = 4_096
	maxBlocks  = 1 << 24
	maxContext = 1 << 22
	maxBuffer  = 1_000_000
	maxPass    = time.Minute
	maxMany    = 1 << 20
	minSpeed   = 0.001
	maxSpeed   = 1_000_000
	maxFleet   = 256
	maxWindows = 8
	maxChunk   = 1_024

	maxLookahead = 64
)

// setDefaults fills in what was left out.
func (c *Config) setDefaults() {
	for _, d := range []struct {
		field *int
		is    int
	}{
		{&c.Ranks, 1},
		{&c.BlockSize, 16},
		{&c.Blocks, 4_096},
		{&c.MaxRunning, 256},
		{&c.Budget, 8_192},
		{&c.ContextLength, 32_768},
		{&c.Vocabulary, 2_048},
		{&c.MaxTokens, 16},
		{&c.Buffer, 10_000},
		{&c.Chunk, 1},
		{&c.ImageTokens, 64},
	} {
		if *d.field == 0 {
			*d.field = d.is
		}
	}
	if c.Speed == 0 {
		c.Speed = 1
	}
	if c.Model == "" {
		c.Model = "mock"
	}
	if c.ModelPath == "" {
		c.ModelPath = c.Model
	}
	if c.Version == "" {
		c.Version = newest(c.Engine)
	}
	if c.Offload == "" {
		c.Offload = OffloadPlaceholder
	}
	if c.HostPolicy == "" {
		c.HostPolicy = WriteThrough
	}
	if c.HashSeed == "" {
		c.HashSeed = enginehash.DefaultSeed
	}
	if c.Hash == "" {
		c.Hash = enginehash.SHA256CBOR.String()
	}
}

// newest returns the last release whose layout is known.
func newest(engine string) string {
	since := ""
	for _, l := range wire.Layouts() {
		if l.Engine == engine {
			since = l.Since
		}
	}
	return since
}

// changes returns the releases of engine in which its batches changed.
func changes(engine string) (all []string) {
	for _, l := range wire.Layouts() {
		if l.Engine == engine {
			all = append(all, l.Since)
		}
	}
	return all
}

// releases returns the major numbers of engine's known releases.
func releases(engine string) (majors []string) {
	for _, since := range changes(engine) {
		major, _, _ := strings.Cut(since, ".")
		majors = append(majors, major)
	}
	return majors
}

// Validate returns the first fault, naming the flag.
func (c *Config) Validate() error {
	if c.Engine != VLLM && !c.radix() {
		return fmt.Errorf("--engine %q: must be %s, %s or %s", c.Engine, VLLM, SGLang, TokenSpeed)
	}
	for _, l := range []struct {
		flag       string
		is, least  int
		most       int
		whatItWere string
	}{
		{"--ranks", c.Ranks, 1, maxRanks, "ranks"},
		{"--block", c.BlockSize, 1, maxBlock, "tokens"},
		{"--blocks", c.Blocks, 1, maxBlocks, "blocks"},
		{"--max-running", c.MaxRunning, 1, maxMany, "requests"},
		{"--budget", c.Budget, 1, maxContext, "tokens"},
		{"--context", c.ContextLength, 1, maxContext, "tokens"},
		{"--vocabulary", c.Vocabulary, firstWord + 1, maxMany, "tokens"},
		{"--max-tokens", c.MaxTokens, 1, maxContext, "tokens"},
		{"--buffer", c.Buffer, 1, maxBuffer, "batches"},
		{"--image-tokens", c.ImageTokens, 1, maxContext, "tokens"},
		{"--host-blocks", c.HostBlocks, 0, maxBlocks, "blocks"},
		{"--disk-blocks", c.DiskBlocks, 0, maxBlocks, "blocks"},
		{"--offload-chunk", c.Chunk, 1, maxChunk, "blocks"},
		{"--lookahead", c.Lookahead, 0, maxLookahead, "tokens"},
	} {
		if l.is < l.least || l.is > l.most {
			return fmt.Errorf("%s %d: must be %d to %d %s", l.flag, l.is, l.least, l.most, l.whatItWere)
		}
	}
	for i, name := range c.LoRA {
		if name == "" || name == c.Model || slices.Contains(c.LoRA[:i], name) {
			return fmt.Errorf("--lora: %q: must be a name of its own", name)
		}
	}
	if c.PassTime < 0 || c.PassTime > maxPass {
		return fmt.Errorf("--pass %v: must be 0 to %v", c.PassTime, maxPass)
	}
	if math.IsNaN(c.Speed) || c.Speed < minSpeed || c.Speed > maxSpeed {
		return fmt.Errorf("--speed %v: must be %v to %v", c.Speed, minSpeed, maxSpeed)
	}
	if a, err := enginehash.Parse(c.Hash); err != nil || a == enginehash.SGLang {
		return fmt.Errorf("--hash %q: must be one of %v", c.Hash, enginehash.VLLM())
	}
	if major, _, _ := strings.Cut(strings.TrimPrefix(c.Version, "v"), "."); !slices.Contains(releases(c.Engine), major) {
		return fmt.Errorf("--version %.100q: no such release of %s is known: batches changed with %s", c.Version, c.Engine, strings.Join(changes(c.Engine), ", "))
	}
	if _, err := wire.LayoutFor(c.Engine, c.Version); err != nil {
		return fmt.Errorf("--version: %w", err)
	}
	for _, check := range []func() error{c.validateGroups, c.validateTiers, c.validateWire} {
		if err := check(); err != nil {
			return err
		}
	}
	for _, e := range []struct{ flag, at string }{{"--pub", c.Pub}, {"--replay", c.Replay}, {"--load-pub", c.LoadPub}} {
		if e.at == "" && e.flag != "--pub" || e.at == LoadAuto && e.flag == "--load-pub" {
			continue
		}
		if _, err := Endpoint(e.at, c.Ranks-1); err != nil {
			return fmt.Errorf("%s: %w", e.flag, err)
		}
	}
	for _, a := range []struct{ flag, at string }{{"--http", c.HTTP}, {"--grpc", c.GRPC}, {"--admin", c.Admin}} {
		if a.at != "" && !strings.Contains(a.at, ":") {
			return fmt.Errorf("%s %q: must be host:port", a.flag, a.at)
		}
	}
	return nil
}

// radix reports whether the cache is a tree without copies, as SGLang's.
func (c *Config) radix() bool { return c.Engine == SGLang || c.Engine == TokenSpeed }

// layout returns how the release writes; nil for one that is none.
func (c *Config) layout() *wire.Layout {
	l, err := wire.LayoutFor(c.Engine, c.Version)
	if err != nil {
		return nil
	}
	return l
}

// tells reports whether the release's stores have a field.
func (c *Config) tells(field wire.Field) bool {
	l := c.layout()
	return l != nil && slices.ContainsFunc(l.Stored, func(f wire.LayoutField) bool { return f.Field == field })
}

// since reports whether the release is 0.minor or a later one.
func (c *Config) since(minor int) bool {
	var a, b int
	if n, _ := fmt.Sscanf(strings.TrimPrefix(c.Version, "v"), "%d.%d", &a, &b); n < 2 {
		return true
	}
	return a > 0 || b >= minor
}

// validateWire returns the first thing that the release cannot tell.
func (c *Config) validateWire() error {
	switch {
	case len(c.LoRA) > 0 && c.radix() && !c.tells(wire.FieldLoRAName):
		return fmt.Errorf("--lora: %s %s tells no adapters: it must be sglang 0.5.22 or newer", c.Engine, c.Version)
	case c.Lookahead > 0 && !c.tells(wire.FieldLookahead):
		return fmt.Errorf("--lookahead: %s %s covers no tokens after a block: it must be vllm 0.33 or newer", c.Engine, c.Version)
	case c.Bigram && c.Engine != SGLang:
		return fmt.Errorf("--bigram: %s has no pages of pairs: it must be sglang", c.Engine)
	case c.LoadPub != "" && c.Engine != SGLang:
		return fmt.Errorf("--load-pub: only %s publishes its load", SGLang)
	case c.GRPC != "" && c.Engine == TokenSpeed:
		return fmt.Errorf("--grpc: %s's contract is not spoken here", TokenSpeed)
	case c.Digests && (c.Engine != VLLM || c.layout().Signed):
		return fmt.Errorf("--digests: %s %s writes integers alone: it must be vllm 0.10.2 or newer", c.Engine, c.Version)
	}
	return nil
}

// validateGroups returns the first fault of the groups of caches.
func (c *Config) validateGroups() error {
	switch {
	case c.Retention > 0 && c.Retention%c.BlockSize != 0:
		return fmt.Errorf("--retention %d: must be a multiple of the block of %d tokens, 0, or -1 for all", c.Retention, c.BlockSize)
	case len(c.Windows) == 0 && c.WindowOnly:
		return errors.New("--window-only: goes with --windows")
	case len(c.Windows) == 0:
		return nil
	case c.Engine != VLLM:
		return fmt.Errorf("--windows: only %s has groups of caches", VLLM)
	case len(c.Windows) > maxWindows:
		return fmt.Errorf("--windows: %d groups: must be at most %d", len(c.Windows), maxWindows)
	}
	for _, w := range c.Windows {
		if w < 2 || w > maxContext {
			return fmt.Errorf("--windows %d: must be 2 to %d tokens", w, maxContext)
		}
	}
	if !c.tells(wire.FieldGroup) {
		return fmt.Errorf("--windows: vllm %s tells no groups: --version must be 0.20 or newer", c.Version)
	}
	return nil
}

// validateTiers returns the first fault of the tiers below the device.
func (c *Config) validateTiers() error {
	forms, policies := []string{OffloadPlaceholder, OffloadDescribed, OffloadSimple}, []string{WriteThrough, WriteSelected, WriteBack}
	switch {
	case !slices.Contains(forms, c.Offload):
		return fmt.Errorf("--offload %q: must be one of %s", c.Offload, strings.Join(forms, ", "))
	case !slices.Contains(policies, c.HostPolicy):
		return fmt.Errorf("--host-policy %q: must be one of %s", c.HostPolicy, strings.Join(policies, ", "))
	case c.HostPolicy != WriteThrough && (c.Engine != SGLang || c.HostBlocks == 0):
		return fmt.Errorf("--host-policy %s: goes with sglang and --host-blocks", c.HostPolicy)
	case c.DiskBlocks == 0 && (c.DiskRemote || c.DiskOwner != ""):
		return errors.New("--disk-remote and --disk-owner: go with --disk-blocks")
	case c.HostBlocks > 0 && !c.tells(wire.FieldMedium):
		return fmt.Errorf("--host-blocks: %s %s tells no tiers: --version must be newer", c.Engine, c.Version)
	case c.DiskBlocks > 0 && (c.Engine != VLLM || !c.tells(wire.FieldMedium)):
		return fmt.Errorf("--disk-blocks: %s %s tells of no storage: it must be vllm 0.10.2 or newer", c.Engine, c.Version)
	case c.DiskRemote && !c.tells(wire.FieldLocality):
		return fmt.Errorf("--disk-remote: %s %s tells no locality: it must be vllm 0.26 or newer", c.Engine, c.Version)
	case c.DiskOwner != "" && !c.tells(wire.FieldOwnership):
		return fmt.Errorf("--disk-owner: %s %s tells no owners: it must be vllm 0.29 or newer", c.Engine, c.Version)
	case c.Chunk == 1:
		return nil
	case c.Engine != VLLM || c.Offload == OffloadPlaceholder || len(c.Windows) > 0 || c.HostBlocks+c.DiskBlocks == 0:
		return errors.New("--offload-chunk: goes with vllm, --host-blocks or --disk-blocks, and --offload described or simple; not with --windows")
	case c.HostBlocks > 0 && c.HostBlocks < c.Chunk, c.DiskBlocks > 0 && c.DiskBlocks < c.Chunk:
		return fmt.Errorf("--offload-chunk %d: must be at most the blocks of a tier", c.Chunk)
	}
	return nil
}

// needs returns how many blocks a request of n tokens holds at most.
func (c *Config) needs(n int) int {
	span := func(n int) int { return (n + c.BlockSize - 1) / c.BlockSize }
	all := span(n)
	if c.WindowOnly {
		all = 0
	}
	for _, w := range c.Windows {
		all += min(span(n), span(w-1+c.Budget)+1)
	}
	return all
}

// cache returns an empty cache of the engine. SGLang's begins with a clear.
func (c *Config) cache() *Cache {
	out := newCache(c.Blocks, c.BlockSize, c.chain(), c.radix())
	out.retain, out.inFlight = c.Retention, c.Budget
	for _, w := range c.Windows {
		out.windows = append(out.windows, windowGroup{w})
	}
	out.windowOnly, out.lower = c.WindowOnly, c.tiers()
	if c.radix() {
		out.copyOn = map[string]int{WriteThrough: onAsk, WriteSelected: onSecondAsk, WriteBack: onLoss}[c.HostPolicy]
	}
	out.quiet = c.Quiet && len(out.windows)+len(out.lower) == 0
	if c.radix() {
		out.reset()
	}
	return out
}

// limits returns what bounds a pass.
func (c *Config) limits() limits {
	return limits{budget: c.Budget, running: c.MaxRunning, byChunk: c.AdmitByChunk, lateName: c.radix()}
}

// overhead returns by how much a request comes later to the engine than to its
// front.
func (c *Config) overhead() time.Duration {
	if c.Timing == nil {
		return 0
	}
	return time.Duration(float64(c.Timing.Overhead) / c.Speed)
}

// tiers returns the empty tiers below the device, the nearest first.
func (c *Config) tiers() (all []*lowerTier) {
	if c.HostBlocks > 0 {
		at := site{tier: TierHost, medium: "CPU"}
		if c.radix() {
			at.medium = "CPU_PINNED"
		}
		if c.Offload == OffloadSimple {
			at.locality = kv.LocalityLocal
		}
		all = append(all, newLowerTier(at, c.HostBlocks, c.Chunk))
	}
	if c.DiskBlocks > 0 {
		at := site{TierDisk, "STORAGE", kv.LocalityLocal, c.DiskOwner}
		if c.DiskRemote {
			at.tier, at.locality = TierRemote, kv.LocalityRemote
		}
		all = append(all, newLowerTier(at, c.DiskBlocks, c.Chunk))
	}
	return all
}
