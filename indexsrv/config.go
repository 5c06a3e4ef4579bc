// SPDX-License-Identifier: Apache-2.0

package indexsrv

import (
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"

	"kindex/asm"
	"kindex/internal/logsink"
	"kindex/internal/settings"
	"kindex/numa"
	"kindex/relay/feed"
	"kindex/shard"
)

// Config is all that an index host can be told. [DefaultConfig] has the
// defaults; flags and the configuration file have the same names (package settings).
type Config struct {
	SecureConfig
	GRPCConfig
	StateConfig

	Listen  string // host:port of the HTTP server
	KVIndex string // one of shard.Kinds

	Node          int          // the only memory node to work on; -1: all
	ShardsPerNode int          // each with a writer of its own
	LanesPerNode  int          // 0: by the node's CPUs
	Pin           numa.PinMode // of lanes' threads
	Interleave    bool         // shards' memory over all nodes, not on their own

	// CPUFeatures is what asm.SetLevel takes. [Run] applies it, once a process.
	CPUFeatures string
	Workers     []Registration

	MaxStreams      int   // (worker, rank) streams at once
	MaxBodyBytes    int64 // of an HTTP request
	MaxConnections  int   // HTTP connections at once
	MaxOrphanBlocks int   // blocks that wait for a parent, each stream
	MaxOrphanBytes  int64
	MaxHeldBatches  int // live batches that wait behind a gap, each stream
	MaxHeldBytes    int64
	MaxFrameBytes   int64 // of one ZMQ frame
	Memory          int64 // of the index, all shards together, bytes; 0: the index's own default for each

	RelayTLS          bool          // dial relays with TLS
	RelayCA           string        // file: whose servers are trusted; "": the system's
	RelayCert         string        // file: our certificate
	RelayKey          string        // file: and its key
	RelayTokenFile    string        // file: bearer token
	RelayMessageBytes int64         // of one message of a relay
	RelaySilence      time.Duration // without any sign of life before a relay's connection is dropped

	ReplayTries   int
	RetryDelay    time.Duration // before the second replay request, doubling
	ResyncDelay   time.Duration // between tries to get back what was given up
	ConnectPeriod time.Duration // without a connection before a stream is failed

	ReadTimeout       time.Duration // a whole HTTP request
	IdleTimeout       time.Duration // between requests of a connection
	WriteStallTimeout time.Duration // a client that takes nothing of its answer
	CleanupTimeout    time.Duration // how long unregistering, and who follows it, waits
	DrainDelay        time.Duration // not ready, still serving, before the drain begins
	DrainTimeout      time.Duration // the drain itself

	LogLevel  slog.Level
	LogFormat string // one of logsink.Formats
	LogQueue  int    // lines

	MetricsMaxStreams int // streams with series of their own

	Shm ShmConfig // lookups over shared memory

	SysRoot string // tree that the nodes are read from, no flag; "": this machine
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	return Config{
		StateConfig: defaultState(),

		Listen:  "127.0.0.1:8090",
		KVIndex: shard.Kinds[0],

		Node:          allNodes,
		ShardsPerNode: 1,

		CPUFeatures: asm.LevelAuto,

		MaxStreams:      shard.MaxHolders,
		MaxBodyBytes:    8 << 20,
		MaxConnections:  8_192,
		MaxOrphanBlocks: 65_536,
		MaxOrphanBytes:  64 << 20,
		MaxHeldBatches:  16_384,
		MaxHeldBytes:    64 << 20,
		MaxFrameBytes:   16 << 20,

		RelayMessageBytes: 32 << 20,
		RelaySilence:      3 * time.Second,

		ReplayTries:   3,
		RetryDelay:    200 * time.Millisecond,
		ResyncDelay:   30 * time.Second,
		ConnectPeriod: 30 * time.Second,

		ReadTimeout:       30 * time.Second,
		IdleTimeout:       2 * time.Minute,
		WriteStallTimeout: 30 * time.Second,
		CleanupTimeout:    10 * time.Second,
		DrainTimeout:      10 * time.Second,

		LogFormat: logsink.Formats[0],
		LogQueue:  4_096,

		MetricsMaxStreams: 2_048,

		Shm:        defaultShmConfig(),
		GRPCConfig: defaultGRPCConfig(),
	}
}

func (c *Config) feedLimits() feed.Limits {
	return feed.Limits{
		HeldBatches:   c.MaxHeldBatches,
		HeldBytes:     int(c.MaxHeldBytes),
		ReplayTries:   c.ReplayTries,
		RetryDelay:    c.RetryDelay,
		ResyncDelay:   c.ResyncDelay,
		ConnectPeriod: c.ConnectPeriod,
	}
}

// shardOptions returns the options of each of so many shards.
func (c *Config) shardOptions(shards int) shard.Options {
	arena := uint64(c.Memory)
	if arena > 0 {
		arena = max(arena/uint64(shards), 1) // 0 would be the default
	}
	return shard.Options{
		MaxOrphanBlocks: uint64(c.MaxOrphanBlocks),
		MaxOrphanBytes:  uint64(c.MaxOrphanBytes),
		ArenaBytes:      arena,
	}
}

// Validate returns all faults of c, each naming its option; nil where there is
// none. Whether this machine can carry it is asked where all else is right.
func (c *Config) Validate() []error {
	faults := settings.Faults(c.options())
	faults = append(faults, c.secureFaults()...)
	faults = append(faults, c.stateFaults()...)
	faults = append(faults, c.workerFaults()...)
	if len(faults) > 0 {
		return faults
	}
	if _, err := c.plan(); err != nil {
		return []error{err}
	}
	if _, err := c.relayOptions(); err != nil {
		return []error{err}
	}
	return nil
}

// workerFaults returns what is wrong with the workers, alone and together.
func (c *Config) workerFaults() []error {
	var faults []error
	seen := map[rankKey]bool{}
	sizes := map[modelName]int{}
	streams := 0
	for i := range c.Workers {
		r := &c.Workers[i]
		bad := r.Validate()
		for _, err := range bad {
			faults = append(faults, fmt.Errorf("worker %s: %w", r.Instance, err))
		}
		if len(bad) > 0 {
			continue
		}
		if size, ok := sizes[r.name()]; ok && size != r.BlockSize {
			faults = append(faults, fmt.Errorf("worker %s: block_size: must be %d, as for the model's other workers", r.Instance, size))
		}
		sizes[r.name()] = r.BlockSize
		for k := range max(r.Ranks, 1) {
			key := rankKey{r.name(), r.Instance.text, r.Rank + k}
			if seen[key] {
				faults = append(faults, fmt.Errorf("worker %s: dp_rank: %d is given twice", r.Instance, key.rank))
			}
			seen[key] = true
			streams++
		}
	}
	if streams > c.MaxStreams {
		faults = append(faults, fmt.Errorf("worker: %d streams are over max-streams, %d", streams, c.MaxStreams))
	}
	return faults
}

// options lists every setting of c but the workers, in the order they are shown.
func (c *Config) options() []settings.Option {
	const maxBytes = 1 << 46 // 64 TiB
	return slices.Concat([]settings.Option{
		settings.Address("listen", "HTTP address, host:port; port 0 takes a free one", &c.Listen),
		settings.Choice("kv-index", "index that answers lookups: "+strings.Join(shard.Kinds, ", "), &c.KVIndex, shard.Kinds),
		settings.Text("cpu-features", "instructions that the index's kernels may use at most: auto, avx512, avx2 or generic", &c.CPUFeatures, asm.CheckLevel),
		c.nodeOption(),
		settings.Count("shards-per-node", "shards on each memory node, each with a writer of its own; every lookup asks all", &c.ShardsPerNode, 1, maxShardsPerNode),
		settings.Count("lanes-per-node", "lanes (threads that decode and apply) on each memory node; 0: by its CPUs", &c.LanesPerNode, 0, maxLanesPerNode),
		settings.Parsed("pin", "lock and pin lanes to their node's CPUs: auto (several nodes, CPUs to spare), on, off", &c.Pin, numa.ParsePinMode),
		settings.Toggle("interleave", "shards' memory over all nodes instead of on their own", &c.Interleave),
		settings.Count("max-streams", fmt.Sprintf("(worker, rank) streams at once, %d for each shard at most", shard.MaxHolders), &c.MaxStreams, 1, shard.MaxHolders*shard.MaxShards),
		settings.Size("max-body-bytes", "HTTP request body", &c.MaxBodyBytes, 1<<10, 1<<30),
		settings.Count("max-connections", "HTTP connections at once", &c.MaxConnections, 1, 1<<20),
		settings.Count("max-orphan-blocks", "blocks of one stream that may wait for a parent", &c.MaxOrphanBlocks, 1, 1<<31-1),
		settings.Size("max-orphan-bytes", "memory of one stream's waiting blocks", &c.MaxOrphanBytes, 1<<10, maxBytes),
		settings.Count("max-held-batches", "live batches of one stream that may wait behind a gap", &c.MaxHeldBatches, 1, 1<<24),
		settings.Size("max-held-bytes", "memory of one stream's waiting batches", &c.MaxHeldBytes, 1<<10, maxBytes),
		settings.Size("max-frame-bytes", "ZMQ frame; a longer one ends the connection", &c.MaxFrameBytes, 1<<10, 1<<31-1),
		settings.Size("memory", "bound of the index's memory, all shards together: near it new blocks of the worker with most are refused, then of the next; 0: the index's default for each shard", &c.Memory, 0, maxBytes),
		settings.Toggle("relay-tls", "dial relays with TLS; relay-ca and relay-cert imply it", &c.RelayTLS),
		settings.Text("relay-ca", "file of the authorities that relays' certificates come from (PEM); none: the system's", &c.RelayCA, nil),
		settings.Text("relay-cert", "file of the certificate that relays are shown (PEM)", &c.RelayCert, nil),
		settings.Text("relay-key", "file of its key (PEM)", &c.RelayKey, nil),
		settings.Text("relay-token-file", "file of the bearer token for relays, read anew for each subscription", &c.RelayTokenFile, nil),
		settings.Size("max-relay-message-bytes", "message of a relay; a longer one ends the stream", &c.RelayMessageBytes, 1<<20, 1<<31-1),
		settings.Span("relay-silence", "without any sign of life before the connection to a relay is made anew", &c.RelaySilence, 100*time.Millisecond, time.Hour),
		settings.Count("replay-tries", "fruitless replay requests before a gap is given up", &c.ReplayTries, 1, 1_000),
		settings.Span("retry-delay", "before the second replay request, doubling", &c.RetryDelay, time.Millisecond, time.Hour),
		settings.Span("resync-delay", "between tries to get back what was given up", &c.ResyncDelay, 10*time.Millisecond, 24*time.Hour),
		settings.Span("connect-period", "without a connection before a stream is failed (it is retried all the same)", &c.ConnectPeriod, 10*time.Millisecond, 24*time.Hour),
		settings.Span("read-timeout", "a whole HTTP request", &c.ReadTimeout, 10*time.Millisecond, time.Hour),
		settings.Span("idle-timeout", "between two requests of one HTTP connection", &c.IdleTimeout, 10*time.Millisecond, 24*time.Hour),
		settings.Span("write-stall-timeout", "a client that takes nothing of its answer", &c.WriteStallTimeout, 10*time.Millisecond, time.Hour),
		settings.Span("cleanup-timeout", "how long /unregister, and a /register after it, waits for the old stream's end", &c.CleanupTimeout, 10*time.Millisecond, time.Hour),
		settings.Span("drain-delay", "at shutdown: not ready but still serving, before the drain", &c.DrainDelay, 0, time.Hour),
		settings.Span("drain-timeout", "at shutdown: how long requests and streams may take to end", &c.DrainTimeout, time.Millisecond, time.Hour),
		settings.LogLevel("log-level", &c.LogLevel),
		settings.Choice("log-format", strings.Join(logsink.Formats, " or "), &c.LogFormat, logsink.Formats),
		settings.Count("log-queue", "log lines that may wait for a slow sink; more are dropped and counted", &c.LogQueue, 1, 1<<20),
		settings.Count("metrics-max-streams", "streams with metric series of their own; those registered after share one set", &c.MetricsMaxStreams, 0, shard.MaxHolders),
	},
		c.secureOptions(),
		c.stateOptions(),
		c.Shm.options(),
		c.grpcOptions(),
	)
}

// nodeOption takes the number of a memory node, or all.
func (c *Config) nodeOption() settings.Option {
	return settings.Option{
		Name: "node", Usage: "the only memory node to work on (one process for each node, clients unite their answers), or all",
		Value: func() string {
			if c.Node == allNodes {
				return "all"
			}
			return strconv.Itoa(c.Node)
		},
		Set: func(s string) error {
			n, err := strconv.Atoi(s)
			switch {
			case s == "all":
				n = allNodes
			case err != nil || n < 0:
				return fmt.Errorf("%q must be all or a node's number", s)
			}
			c.Node = n
			return nil
		},
	}
}
