// SPDX-License-Identifier: Apache-2.0

package indexsrv

import (
	"fmt"
	"log/slog"
	"math"
	"net"
	"strconv"
	"strings"
	"time"

	"kindex/asm"
	"kindex/numa"
	"kindex/shard"
)

// Config is all that an index host can be told. [DefaultConfig] has the
// defaults; flags and the configuration file have the same names (config_table.go).
type Config struct {
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
	ArenaBytes      int64 // memory of the index, all shards together; 0: the index's own default for each

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
	LogFormat string // one of logFormats
	LogQueue  int    // lines

	MetricsMaxStreams int // streams with series of their own

	SysRoot string // tree that the nodes are read from, no flag; "": this machine
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	return Config{
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

		ReplayTries:   3,
		RetryDelay:    200 * time.Millisecond,
		ResyncDelay:   30 * time.Second,
		ConnectPeriod: 30 * time.Second,

		ReadTimeout:       30 * time.Second,
		IdleTimeout:       2 * time.Minute,
		WriteStallTimeout: 30 * time.Second,
		CleanupTimeout:    10 * time.Second,
		DrainTimeout:      10 * time.Second,

		LogFormat: logFormats[0],
		LogQueue:  4_096,

		MetricsMaxStreams: 2_048,
	}
}

func (c *Config) feedLimits() FeedLimits {
	return FeedLimits{
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
	arena := uint64(c.ArenaBytes)
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
	var faults []error
	for _, o := range c.options() {
		if err := o.set(o.value()); err != nil {
			faults = append(faults, fmt.Errorf("%s: %w", o.name, err))
		}
	}
	faults = append(faults, c.workerFaults()...)
	if len(faults) > 0 {
		return faults
	}
	if _, err := c.plan(); err != nil {
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

// option is one setting: how it is called, read and shown. set checks what it
// is given, so that a fault is found where it was made.
type option struct {
	name, usage string
	value       func() string
	set         func(string) error
}

// isBool reports whether o may stand without a value, for true.
func (o *option) isBool() bool { return o.value() == "true" || o.value() == "false" }

// options lists every setting of c but the workers, in the order they are shown.
func (c *Config) options() []option {
	const maxBytes = 1 << 46 // 64 TiB
	return []option{
		{"listen", "HTTP address, host:port; port 0 takes a free one", func() string { return c.Listen }, func(s string) error {
			if _, port, err := net.SplitHostPort(s); err != nil {
				return fmt.Errorf("%q must be host:port", s)
			} else if n, err := strconv.ParseUint(port, 10, 16); err != nil {
				return fmt.Errorf("%q: the port must be 0 to 65535", s)
			} else if n == 0 && port != "0" {
				return fmt.Errorf("%q: the port must be 0 to 65535", s)
			}
			c.Listen = s
			return nil
		}},
		choice("kv-index", "index that answers lookups: "+strings.Join(shard.Kinds, ", "), &c.KVIndex, shard.Kinds),
		{"cpu-features", "instructions that the index's kernels may use at most: auto, avx512, avx2 or generic", func() string { return c.CPUFeatures }, func(s string) error {
			if err := asm.CheckLevel(s); err != nil {
				return err
			}
			c.CPUFeatures = s
			return nil
		}},
		c.nodeOption(),
		count("shards-per-node", "shards on each memory node, each with a writer of its own; every lookup asks all", &c.ShardsPerNode, 1, maxShardsPerNode),
		count("lanes-per-node", "lanes (threads that decode and apply) on each memory node; 0: by its CPUs", &c.LanesPerNode, 0, maxLanesPerNode),
		{
			name: "pin", usage: "lock and pin lanes to their node's CPUs: auto (several nodes, CPUs to spare), on, off",
			value: func() string { return c.Pin.String() },
			set:   func(s string) error { return setParsed(&c.Pin, s, numa.ParsePinMode) },
		},
		toggle("interleave", "shards' memory over all nodes instead of on their own", &c.Interleave),
		count("max-streams", fmt.Sprintf("(worker, rank) streams at once, %d for each shard at most", shard.MaxHolders), &c.MaxStreams, 1, shard.MaxHolders*shard.MaxShards),
		size("max-body-bytes", "HTTP request body", &c.MaxBodyBytes, 1<<10, 1<<30),
		count("max-connections", "HTTP connections at once", &c.MaxConnections, 1, 1<<20),
		count("max-orphan-blocks", "blocks of one stream that may wait for a parent", &c.MaxOrphanBlocks, 1, 1<<31-1),
		size("max-orphan-bytes", "memory of one stream's waiting blocks", &c.MaxOrphanBytes, 1<<10, maxBytes),
		count("max-held-batches", "live batches of one stream that may wait behind a gap", &c.MaxHeldBatches, 1, 1<<24),
		size("max-held-bytes", "memory of one stream's waiting batches", &c.MaxHeldBytes, 1<<10, maxBytes),
		size("max-frame-bytes", "ZMQ frame; a longer one ends the connection", &c.MaxFrameBytes, 1<<10, 1<<31-1),
		size("arena-bytes", "memory of the index, all shards together; 0: the index's default for each", &c.ArenaBytes, 0, maxBytes),
		count("replay-tries", "fruitless replay requests before a gap is given up", &c.ReplayTries, 1, 1_000),
		span("retry-delay", "before the second replay request, doubling", &c.RetryDelay, time.Millisecond, time.Hour),
		span("resync-delay", "between tries to get back what was given up", &c.ResyncDelay, 10*time.Millisecond, 24*time.Hour),
		span("connect-period", "without a connection before a stream is failed (it is retried all the same)", &c.ConnectPeriod, 10*time.Millisecond, 24*time.Hour),
		span("read-timeout", "a whole HTTP request", &c.ReadTimeout, 10*time.Millisecond, time.Hour),
		span("idle-timeout", "between two requests of one HTTP connection", &c.IdleTimeout, 10*time.Millisecond, 24*time.Hour),
		span("write-stall-timeout", "a client that takes nothing of its answer", &c.WriteStallTimeout, 10*time.Millisecond, time.Hour),
		span("cleanup-timeout", "how long /unregister, and a /register after it, waits for the old stream's end", &c.CleanupTimeout, 10*time.Millisecond, time.Hour),
		span("drain-delay", "at shutdown: not ready but still serving, before the drain", &c.DrainDelay, 0, time.Hour),
		span("drain-timeout", "at shutdown: how long requests and streams may take to end", &c.DrainTimeout, time.Millisecond, time.Hour),
		{"log-level", "debug, info, warn, error", func() string { return strings.ToLower(c.LogLevel.String()) }, func(s string) error {
			for _, l := range [...]slog.Level{slog.LevelDebug, slog.LevelInfo, slog.LevelWarn, slog.LevelError} {
				if strings.EqualFold(s, l.String()) {
					c.LogLevel = l
					return nil
				}
			}
			return fmt.Errorf("%q must be one of debug, info, warn, error", s)
		}},
		choice("log-format", strings.Join(logFormats, " or "), &c.LogFormat, logFormats),
		count("log-queue", "log lines that may wait for a slow sink; more are dropped and counted", &c.LogQueue, 1, 1<<20),
		count("metrics-max-streams", "streams with metric series of their own; those registered after share one set", &c.MetricsMaxStreams, 0, shard.MaxHolders),
	}
}

// nodeOption takes the number of a memory node, or all.
func (c *Config) nodeOption() option {
	return option{
		name: "node", usage: "the only memory node to work on (one process for each node, clients unite their answers), or all",
		value: func() string {
			if c.Node == allNodes {
				return "all"
			}
			return strconv.Itoa(c.Node)
		},
		set: func(s string) error {
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

// setParsed sets p to what parse makes of s.
func setParsed[T any](p *T, s string, parse func(string) (T, error)) error {
	v, err := parse(s)
	if err == nil {
		*p = v
	}
	return err
}

func toggle(name, usage string, p *bool) option {
	return option{
		name: name, usage: usage,
		value: func() string { return strconv.FormatBool(*p) },
		set: func(s string) error {
			if s != "true" && s != "false" {
				return fmt.Errorf("%q must be true or false", s)
			}
			*p = s == "true"
			return nil
		},
	}
}

func choice(name, usage string, p *string, of []string) option {
	return option{name, usage, func() string { return *p }, func(s string) error {
		if s == "" {
			return fmt.Errorf("must be one of %s", strings.Join(of, ", "))
		}
		if err := checkOneOf(s, of); err != nil {
			return err
		}
		*p = s
		return nil
	}}
}

func count(name, usage string, p *int, lo, hi int) option {
	return option{name, usage, func() string { return strconv.Itoa(*p) }, func(s string) error {
		n, err := strconv.Atoi(s)
		if err != nil || n < lo || n > hi {
			return fmt.Errorf("%q must be an integer from %d to %d", s, lo, hi)
		}
		*p = n
		return nil
	}}
}

// size takes plain numbers and KiB, MiB, GiB, TiB.
func size(name, usage string, p *int64, lo, hi int64) option {
	return option{name, usage, func() string { return formatSize(*p) }, func(s string) error {
		n, ok := parseSize(s)
		if !ok || n < lo || n > hi {
			return fmt.Errorf("%q must be %s to %s, with or without KiB, MiB, GiB", s, formatSize(lo), formatSize(hi))
		}
		*p = n
		return nil
	}}
}

func span(name, usage string, p *time.Duration, lo, hi time.Duration) option {
	return option{name, usage, func() string { return p.String() }, func(s string) error {
		d, err := time.ParseDuration(s)
		if err != nil || d < lo || d > hi {
			return fmt.Errorf("%q must be a duration from %s to %s, such as 1.5s", s, lo, hi)
		}
		*p = d
		return nil
	}}
}

var sizeUnits = [...]string{"", "KiB", "MiB", "GiB", "TiB"}

func parseSize(s string) (int64, bool) {
	for i := len(sizeUnits) - 1; i >= 0; i-- {
		digits, ok := strings.CutSuffix(s, sizeUnits[i])
		if !ok {
			continue
		}
		n, err := strconv.ParseUint(strings.TrimSpace(digits), 10, 63)
		if err != nil || n > math.MaxInt64>>(10*i) {
			return 0, false
		}
		return int64(n) << (10 * i), true
	}
	return 0, false
}

func formatSize(n int64) string {
	unit := 0
	for unit < len(sizeUnits)-1 && n != 0 && n%1024 == 0 {
		n /= 1024
		unit++
	}
	return strconv.FormatInt(n, 10) + sizeUnits[unit]
}
