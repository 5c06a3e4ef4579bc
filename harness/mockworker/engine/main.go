// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// Ready is what a started engine says on standard output, in one line of JSON.
type Ready struct {
	K         string   `json:"k"` // ready
	Engine    string   `json:"engine"`
	Version   string   `json:"version"`
	BlockSize int      `json:"block_size"` // tokens
	Pub       []string `json:"pub"`        // endpoint by rank
	Replay    []string `json:"replay"`     // the same; empty: none
	Load      []string `json:"load,omitempty"`
	HTTP      string   `json:"http,omitempty"`
	GRPC      string   `json:"grpc,omitempty"`
	Admin     string   `json:"admin,omitempty"`
	Workers   []Ready  `json:"workers,omitempty"` // of a fleet: every one; what stands above is w0's
}

// Main runs an engine with args, its name left out, until ctx ends, and returns
// the exit code: 0 after a clean end, 1 when it cannot go on, 2 for bad usage.
func Main(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	var c Config
	var calibration, adapters, windows string
	workers := 1
	fs := flag.NewFlagSet("mockworker --engine", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.Usage = func() {}
	fs.StringVar(&c.Engine, "engine", "", "which engine to be: vllm, sglang or tokenspeed")
	fs.StringVar(&c.Version, "version", "", "release whose batches and replays it writes (default the newest known)")
	fs.StringVar(&c.Pub, "pub", "tcp://127.0.0.1:5557", "event endpoint of w0's rank 0; rank r is at port + r, worker i at port + i times the ranks; port 0 takes free ones")
	fs.StringVar(&c.Replay, "replay", "", "replay endpoint of rank 0, as --pub (default none; with --grpc a free port of this host)")
	fs.BoolVar(&c.Dials, "connect", false, "connect to --pub, where whoever reads it binds, as engines do with a host's name there")
	fs.StringVar(&c.LoadPub, "load-pub", "", "load endpoint of rank 0, as --pub, or auto: next to the events; sglang (default none)")
	fs.StringVar(&c.Topic, "topic", "", "topic of the events (default empty)")
	fs.IntVar(&c.Buffer, "buffer", 10_000, "batches a replay can go back")
	fs.IntVar(&workers, "fleet", 1, "engines in this process; each one's ports lie above those of the one before it")
	fs.StringVar(&c.HTTP, "http", "", "host:port of OpenAI's API; worker i is at port + i; port 0 takes free ones (default none)")
	fs.StringVar(&c.APIKey, "api-key", "", "key that HTTP clients must show where the engine asks for one (default none)")
	fs.StringVar(&c.GRPC, "grpc", "", "host:port of the engine's gRPC contract, as --http (default none)")
	fs.StringVar(&c.Admin, "admin", "", "host:port of the truth over HTTP, and of faults: /admin/... (default none)")
	fs.IntVar(&c.Ranks, "ranks", 1, "data-parallel ranks")
	fs.IntVar(&c.BlockSize, "block", 16, "tokens of a block")
	fs.IntVar(&c.Blocks, "blocks", 4_096, "physical blocks of a rank")
	fs.StringVar(&windows, "windows", "", "tokens of sliding windows, with commas between: a group of caches for each, beside the main one; vllm (default none)")
	fs.IntVar(&c.Retention, "retention", 0, "tokens between the tails of a prompt that window groups keep; 0: only what a next turn needs; -1: all")
	fs.BoolVar(&c.WindowOnly, "window-only", false, "there is no main group beside those of --windows")
	fs.IntVar(&c.Lookahead, "lookahead", 0, "tokens after a block that its hash covers too, as where vllm drafts; vllm 0.33 (default none)")
	fs.BoolVar(&c.Bigram, "bigram", false, "pages of pairs of tokens, as where sglang drafts")
	fs.IntVar(&c.HostBlocks, "host-blocks", 0, "blocks of a rank's second tier, to which blocks are copied (default none)")
	fs.StringVar(&c.HostPolicy, "host-policy", WriteThrough, "when sglang copies to it: write-through, write-through-selective or write-back")
	fs.StringVar(&c.Offload, "offload", OffloadPlaceholder, "how vllm tells of blocks below the device: by hash alone (placeholder), with their tokens (described), or so and as local (simple)")
	fs.IntVar(&c.Chunk, "offload-chunk", 1, "blocks that vllm moves between tiers at once")
	fs.IntVar(&c.DiskBlocks, "disk-blocks", 0, "blocks of a rank's third tier, storage; vllm (default none)")
	fs.BoolVar(&c.DiskRemote, "disk-remote", false, "the third tier is not this machine's: its locality is REMOTE")
	fs.StringVar(&c.DiskOwner, "disk-owner", "", "the third tier's name, told as its blocks' owner (default none)")
	fs.IntVar(&c.ImageTokens, "image-tokens", 64, "tokens that an image of a chat takes")
	fs.IntVar(&c.MaxRunning, "max-running", 256, "requests that a rank computes at once")
	fs.IntVar(&c.ContextLength, "context", 32_768, "tokens of a prompt and its answer")
	fs.IntVar(&c.Vocabulary, "vocabulary", 2_048, "tokens that an answer is drawn from")
	fs.IntVar(&c.MaxTokens, "max-tokens", 16, "tokens to generate where a request names no number")
	fs.StringVar(&c.Model, "model", "mock", "served name")
	fs.StringVar(&adapters, "lora", "", "served names of adapters, with commas between (default none)")
	fs.StringVar(&c.ModelPath, "model-path", "", "folder of the model's tokenizer and config, as told to gateways (default the name)")
	fs.IntVar(&c.Budget, "budget", 8_192, "tokens that one pass computes")
	fs.BoolVar(&c.AdmitByChunk, "admit-by-chunk", false, "let a waiting request in as soon as its first share of a pass fits the cache, not its whole prompt")
	fs.DurationVar(&c.PassTime, "pass", 0, "time of each pass; 0s: as fast as it goes (default what --calibration or the built-in fit says)")
	fs.StringVar(&calibration, "calibration", "", "JSON file that says how long passes take, and what cache the measured engine had (default a built-in fit)")
	fs.Float64Var(&c.Speed, "speed", 1, "how many times as fast as --calibration or the built-in fit")
	fs.Uint64Var(&c.Seed, "seed", 0, "seed of the answers' tokens")
	fs.StringVar(&c.Hash, "hash", "sha256_cbor", "algorithm of vLLM's block hashes: sha256, sha256_cbor, xxhash or xxhash_cbor")
	fs.BoolVar(&c.Digests, "digests", false, "write whole digests, as vLLM does with VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=0")
	fs.StringVar(&c.HashSeed, "hash-seed", "", "what roots vLLM's block hashes, as PYTHONHASHSEED does (default vLLM's own)")
	err := fs.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		_, _ = fmt.Fprint(stdout, "mockworker --engine is a small live engine: it answers requests over HTTP and gRPC, caches prefixes, and publishes their events over real ZMQ sockets.\n\nusage: mockworker --engine vllm|sglang|tokenspeed [flags]\n\n")
		fs.SetOutput(stdout)
		fs.PrintDefaults()
		return 0
	case err == nil && fs.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q: everything is a flag", fs.Arg(0))
	case err == nil:
		if adapters != "" {
			c.LoRA = strings.Split(adapters, ",")
		}
		if c.Windows, err = numbers(windows); err != nil {
			err = fmt.Errorf("--windows: %w", err)
		} else {
			err = c.check(fs, calibration)
		}
		if err == nil && (workers < 1 || workers > maxFleet) {
			err = fmt.Errorf("--fleet %d: must be 1 to %d workers", workers, maxFleet)
		}
	}
	if err != nil {
		_, _ = fmt.Fprintf(stderr, "mockworker: %v\n", err)
		return 2
	}
	if err := serve(ctx, c, workers, stdout); err != nil {
		_, _ = fmt.Fprintf(stderr, "mockworker: %v\n", err)
		return 1
	}
	return 0
}

// numbers reads whole numbers with commas between; none: nil.
func numbers(text string) (out []int, err error) {
	if text == "" {
		return nil, nil
	}
	for word := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(word)
		if err != nil {
			return nil, fmt.Errorf("%q: must be whole numbers with commas between", text)
		}
		out = append(out, n)
	}
	return out, nil
}

// check validates c and fills in its timing. A zero that was written out is no
// default: it is refused.
func (c *Config) check(fs *flag.FlagSet, calibration string) error {
	var zero error
	zeros := []string{"seed", "hash-seed", "retention", "host-blocks", "windows", "disk-blocks", "lookahead"} // a 0 says what it says
	given := map[string]bool{}
	fs.Visit(func(f *flag.Flag) {
		given[f.Name] = true
		if f.Value.String() == "0" && !slices.Contains(zeros, f.Name) && zero == nil {
			zero = fmt.Errorf("--%s 0: must be at least %v", f.Name, map[bool]any{true: minSpeed, false: 1}[f.Name == "speed"])
		}
	})
	switch {
	case zero != nil:
		return zero
	case given["pass"] && (given["calibration"] || given["speed"]):
		return errors.New("--pass: goes with neither --calibration nor --speed: it is each pass's time")
	case given["calibration"]:
		t, err := ReadTiming(calibration)
		if err != nil {
			return fmt.Errorf("--calibration: %w", err)
		}
		c.Timing = t
		if t.BlockSize > 0 && !given["block"] {
			c.BlockSize = t.BlockSize
		}
		if t.Reference > 0 && !given["blocks"] {
			c.Blocks = max(t.Reference/c.BlockSize, 1)
		}
	case !given["pass"]:
		c.Timing = DefaultTiming()
	}
	d := *c
	d.setDefaults()
	return d.Validate()
}

// serve opens a fleet, says so, and waits for ctx's end.
func serve(ctx context.Context, c Config, n int, stdout io.Writer) error {
	f, err := OpenFleet(c, n)
	if err != nil {
		return err
	}
	defer f.Close()
	var all []Ready
	for _, w := range f.workers {
		all = append(all, w.ready())
	}
	ready := all[0]
	if n > 1 {
		ready.Workers = all
	}
	if c.Admin != "" {
		a, err := OpenAdmin(f, c.Admin)
		if err != nil {
			return err
		}
		defer a.Close()
		ready.Admin = a.Addr
	}
	if err := json.NewEncoder(stdout).Encode(ready); err != nil {
		return fmt.Errorf("standard output: %w", err)
	}
	<-ctx.Done()
	return nil
}

// ready returns where a worker is.
func (w *Worker) ready() Ready {
	c := &w.Engine.cfg
	out := Ready{K: "ready", Engine: c.Engine, Version: c.Version, BlockSize: c.BlockSize, Load: w.Engine.LoadEndpoints(), HTTP: w.HTTP(), GRPC: w.GRPC()}
	for _, p := range w.Engine.Publishers() {
		out.Pub = append(out.Pub, p.Live)
		if p.Replay != "" {
			out.Replay = append(out.Replay, p.Replay)
		}
	}
	return out
}
