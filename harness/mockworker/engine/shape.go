// SPDX-License-Identifier: Apache-2.0

// Before: admin.go, which tells it. After: whoever makes a [Model] of an engine that it
// only hears of.

package engine

import "time"

// Shape is what settles how one engine caches, its addresses and its answers aside: a
// [Model] of [Shape.Config] finds of the same requests at the same times what each of
// the engine's ranks would. The zero value of a field is the default of [Config].
type Shape struct {
	Engine        string        `json:"engine"`
	Version       string        `json:"version,omitempty"`
	Ranks         int           `json:"ranks"`
	BlockSize     int           `json:"block_size"`  // tokens
	Blocks        int           `json:"blocks"`      // of a rank
	HostBlocks    int           `json:"host_blocks"` // of a rank's second tier
	HostPolicy    string        `json:"host_policy,omitempty"`
	DiskBlocks    int           `json:"disk_blocks,omitempty"` // of its third
	Offload       string        `json:"offload,omitempty"`
	Chunk         int           `json:"offload_chunk,omitempty"`
	Windows       []int         `json:"windows,omitempty"`
	WindowOnly    bool          `json:"window_only,omitempty"`
	Lookahead     int           `json:"lookahead,omitempty"`
	Bigram        bool          `json:"bigram,omitempty"`
	Retention     int           `json:"retention"`
	MaxRunning    int           `json:"max_running"` // requests of a rank
	Budget        int           `json:"budget"`      // tokens of a pass
	ContextLength int           `json:"context"`
	AdmitByChunk  bool          `json:"admit_by_chunk"`
	PassTime      time.Duration `json:"pass_ns"`
	Timing        *Timing       `json:"timing,omitempty"`
	Speed         float64       `json:"speed"`
}

// Shape returns the engine's.
func (e *Engine) Shape() Shape {
	c := &e.cfg
	return Shape{
		Engine: c.Engine, Version: c.Version, Ranks: c.Ranks, BlockSize: c.BlockSize, Blocks: c.Blocks, HostBlocks: c.HostBlocks, Windows: c.Windows, Retention: c.Retention,
		HostPolicy: c.HostPolicy, DiskBlocks: c.DiskBlocks, Offload: c.Offload, Chunk: c.Chunk, WindowOnly: c.WindowOnly, Lookahead: c.Lookahead, Bigram: c.Bigram,
		MaxRunning: c.MaxRunning, Budget: c.Budget, ContextLength: c.ContextLength, AdmitByChunk: c.AdmitByChunk, PassTime: c.PassTime, Timing: c.Timing, Speed: c.Speed,
	}
}

// Config returns what a model of one rank is made of that makes no events. Its blocks
// have names by a faster hash than the engine's may have: what is found by them is the same.
func (s *Shape) Config() Config {
	return Config{
		Engine: s.Engine, Version: s.Version, BlockSize: s.BlockSize, Blocks: s.Blocks, HostBlocks: s.HostBlocks, Windows: s.Windows, Retention: s.Retention,
		HostPolicy: s.HostPolicy, DiskBlocks: s.DiskBlocks, Offload: s.Offload, Chunk: s.Chunk, WindowOnly: s.WindowOnly, Lookahead: s.Lookahead, Bigram: s.Bigram,
		MaxRunning: s.MaxRunning, Budget: s.Budget, ContextLength: s.ContextLength, AdmitByChunk: s.AdmitByChunk, PassTime: s.PassTime, Timing: s.Timing, Speed: s.Speed,
		Hash: modelHash, Quiet: true,
	}
}

// modelHash names the blocks of models that nobody hears.
const modelHash = "xxhash_cbor"
