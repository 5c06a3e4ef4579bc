// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"kindex/gateway/fleet"
	"kindex/indexclient"
	"kindex/internal/logsink"
	"kindex/internal/settings"
)

// Config is all that a gateway can be told. [DefaultConfig] has the defaults; flags and
// the configuration file have the same names (package settings). A threshold of 0 is
// off, and stays so through a file.
type Config struct {
	ListenConfig
	RouteConfig
	IndexConfig
	HealthConfig
	TraceConfig

	Workers []fleet.Spec

	DrainDelay   time.Duration // not ready, still serving, before the drain begins
	DrainTimeout time.Duration // the drain itself

	LogLevel  slog.Level
	LogFormat string // one of logsink.Formats
	LogQueue  int    // lines
	AccessLog string // "": none; else a file, or "-": standard error

	file string // that it was read from; "": none
}

// ListenConfig says where a gateway is reached, by whom, and what a client may send.
type ListenConfig struct {
	Listen      string // host:port of HTTP
	AdminListen string // host:port; "": workers and metrics stand on Listen, profiles nowhere
	GRPCListen  string // host:port; "": none
	OpenAdmin   bool   // serve what changes workers beyond loopback, unauthenticated

	TLSCert, TLSKey string // files; "": no TLS
	TLSClientCA     string // file; "": any client
	APIKeyFile      string // file; "": no key is asked for

	MaxBodyBytes      int64 // of a request
	MaxHeaderBytes    int64 // of a request
	MaxConnections    int
	ReadTimeout       time.Duration // a whole request
	IdleTimeout       time.Duration // between requests of a connection
	WriteStallTimeout time.Duration // a client that takes nothing of its answer
}

// RouteConfig says how a worker is chosen and a request carried there.
type RouteConfig struct {
	Policy         string
	Retries        int           // after the first try, before a byte reached the client
	ConnectTimeout time.Duration // to a worker
	AnswerTimeout  time.Duration // for the first byte of a worker's answer; 0: none
	StallTimeout   time.Duration // between two pieces of it; 0: none

	TokenizeBudget time.Duration // a request waits no longer for its tokens; 0: no text is tokenised
	TokenizeCache  int64         // bytes
	Tokenizer      string        // "": workers' own; else a local one

	MaxInflight  int // requests at once; 0: no bound
	Queue        int // that wait for a place
	QueueTimeout time.Duration

	PredictLife time.Duration // of a predicted entry; 0: nothing is predicted
}

// IndexConfig says which index answers who holds a prompt.
type IndexConfig struct {
	KVIndex      string // one of kvIndexes
	Index        string // where a remote one is: unix:PATH, or HOST:PORT[,HOST:PORT...]
	IndexTimeout time.Duration
	ReadyWait    time.Duration // for the index to be exact, after the first worker's join
	IndexMemory  int64         // bound of an embedded one, bytes; 0: the index's own default
	IndexTLSCA   string        // file; "": a remote index is spoken to without TLS
	IndexToken   string        // file with the bearer token of a remote index; ""
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	return Config{
		ListenConfig: ListenConfig{
			Listen:            "127.0.0.1:8080",
			MaxBodyBytes:      32 << 20,
			MaxHeaderBytes:    32 << 10,
			MaxConnections:    65_536,
			ReadTimeout:       30 * time.Second,
			IdleTimeout:       2 * time.Minute,
			WriteStallTimeout: 30 * time.Second,
		},
		RouteConfig: RouteConfig{
			Policy:         policies[0],
			Retries:        3,
			ConnectTimeout: 2 * time.Second,
			AnswerTimeout:  10 * time.Minute,
			StallTimeout:   time.Minute,
			TokenizeBudget: 100 * time.Millisecond,
			TokenizeCache:  32 << 20,
			MaxInflight:    16_384,
			Queue:          4_096,
			QueueTimeout:   30 * time.Second,
			PredictLife:    2 * time.Second,
		},
		IndexConfig: IndexConfig{
			KVIndex:      kvIndexes[0],
			IndexTimeout: 5 * time.Millisecond,
			ReadyWait:    2 * time.Second,
		},
		HealthConfig: defaultHealth(),
		TraceConfig:  TraceConfig{OTLPRatio: 0.01},

		DrainTimeout: 30 * time.Second,

		LogFormat: logsink.Formats[0],
		LogQueue:  4_096,
	}
}

// policies are the ways to choose a worker, the default first.
var policies = []string{"cache_aware", "least_load", "round_robin", "random", "power_of_two", "consistent_hashing"}

// noIndex has every request placed by load alone.
const noIndex = "none"

// kvIndexes are the indexes, the default first. The last is chain's old name.
var kvIndexes = []string{"chain", "positional", "remote", noIndex, "run"}

// Validate returns all faults of c, each naming its option; nil where there is none.
func (c *Config) Validate() []error {
	faults := settings.Faults(c.options())
	faults = append(faults, c.secureFaults()...)
	faults = append(faults, c.workerFaults()...)
	switch {
	case c.KVIndex == "remote" && c.Index == "":
		faults = append(faults, errors.New("kv-index: remote needs index: unix:PATH or HOST:PORT"))
	case c.KVIndex != "remote" && c.Index != "":
		faults = append(faults, fmt.Errorf("index: it is asked only with kv-index remote, not %s", c.KVIndex))
	case c.IndexToken != "" && c.KVIndex != "remote":
		faults = append(faults, fmt.Errorf("index-token-file: it is shown only with kv-index remote, not %s", c.KVIndex))
	}
	return append(faults, c.traceFaults()...)
}

// options lists every setting of c but the workers, in the order they are shown.
func (c *Config) options() []settings.Option {
	return slices.Concat(
		c.listenOptions(),
		c.secureOptions(),
		c.routeOptions(),
		c.indexOptions(),
		c.HealthConfig.options(),
		c.TraceConfig.options(),
		[]settings.Option{
			settings.Span("drain-delay", "at shutdown: not ready but still serving, before the drain", &c.DrainDelay, 0, time.Hour),
			settings.Span("drain-timeout", "at shutdown: how long requests may take to end", &c.DrainTimeout, time.Millisecond, 24*time.Hour),
			settings.LogLevel("log-level", &c.LogLevel),
			settings.Choice("log-format", strings.Join(logsink.Formats, " or "), &c.LogFormat, logsink.Formats),
			settings.Count("log-queue", "log lines that may wait for a slow sink; more are dropped and counted", &c.LogQueue, 1, 1<<20),
			settings.Text("access-log", "file that gets a JSON line for each request answered, or -: standard error; none: no such lines", &c.AccessLog, nil),
		},
	)
}

func (c *Config) listenOptions() []settings.Option {
	return []settings.Option{
		settings.Address("listen", "HTTP address, host:port; port 0 takes a free one", &c.Listen),
		settings.MaybeAddress("admin-listen", "host:port of workers, metrics and profiles, which listen then refuses; none: workers and metrics stand on listen", &c.AdminListen),
		settings.MaybeAddress("grpc-listen", "host:port of the engines' own gRPC services; none: they are not served", &c.GRPCListen),
		settings.Size("max-body-bytes", "HTTP request body; a longer one is answered 413", &c.MaxBodyBytes, 1<<10, 1<<31-1),
		settings.Size("max-header-bytes", "HTTP request line and headers; longer ones are answered 431", &c.MaxHeaderBytes, 4<<10, 1<<20),
		settings.Count("max-connections", "HTTP connections of clients at once", &c.MaxConnections, 1, 1<<20),
		settings.Span("read-timeout", "a whole HTTP request", &c.ReadTimeout, 10*time.Millisecond, time.Hour),
		settings.Span("idle-timeout", "between two requests of one HTTP connection", &c.IdleTimeout, 10*time.Millisecond, 24*time.Hour),
		settings.Span("write-stall-timeout", "a client that takes nothing of its answer", &c.WriteStallTimeout, 10*time.Millisecond, time.Hour),
	}
}

func (c *Config) routeOptions() []settings.Option {
	return []settings.Option{
		settings.Choice("policy", "how a worker is chosen: "+strings.Join(policies, ", "), &c.Policy, policies),
		settings.Count("retries", "tries on other workers after the first, while no byte has reached the client", &c.Retries, 0, 100),
		settings.Span("connect-timeout", "to a worker", &c.ConnectTimeout, time.Millisecond, time.Hour),
		settings.Span("answer-timeout", "for the first byte of a worker's answer, before the worker is given up; 0: for ever", &c.AnswerTimeout, 0, 24*time.Hour),
		settings.Span("stall-timeout", "between two pieces of a worker's answer, before it is ended with an error; 0: for ever", &c.StallTimeout, 0, 24*time.Hour),
		settings.Span("tokenize-budget", "how long a request may wait for its tokens before it is routed by load alone; 0: text is not tokenised", &c.TokenizeBudget, 0, time.Minute),
		settings.Size("tokenize-cache", "memory of the tokens of earlier prompts", &c.TokenizeCache, 0, 1<<40),
		settings.Text("tokenizer", "tokenizer.json, or its folder, for prompts of text; none: workers' own /tokenize is asked", &c.Tokenizer, nil),
		settings.Count("max-inflight", "requests that are carried at once; 0: no bound", &c.MaxInflight, 0, 1<<24),
		settings.Count("queue", "requests that may wait for a place among them; more are answered 503", &c.Queue, 0, 1<<24),
		settings.Span("queue-timeout", "how long one may wait", &c.QueueTimeout, 0, time.Hour),
		settings.Span("predict-life", "how long a worker is taken to hold what was just sent there, unless its events say so; 0: not at all", &c.PredictLife, 0, time.Minute),
	}
}

func checkIndexTarget(s string) error {
	if s == "" {
		return nil
	}
	return indexclient.CheckTarget(s)
}

func (c *Config) indexOptions() []settings.Option {
	return []settings.Option{
		settings.Choice("kv-index", "index that answers who holds a prompt: chain or positional in this process, remote by index, none; run is chain's old name", &c.KVIndex, kvIndexes),
		settings.Text("index", "where the remote one is: unix:PATH for shared memory, or HOST:PORT[,HOST:PORT...] for gRPC", &c.Index, checkIndexTarget),
		settings.Span("index-timeout", "how long a request waits for it before it is routed by load alone", &c.IndexTimeout, 10*time.Microsecond, time.Minute),
		settings.Span("ready-wait", "after the start: how long /readyz waits for the index to have heard all workers' events; 0: not at all", &c.ReadyWait, 0, time.Hour),
		settings.Size("index-memory", "bound of the memory of an index in this process; 0: its own default", &c.IndexMemory, 0, 1<<46),
		settings.Text("index-ca", "PEM file of the authorities that a remote index's certificate comes from; turns TLS on towards it", &c.IndexTLSCA, nil),
		settings.Text("index-token-file", "file of the bearer token for a remote index", &c.IndexToken, nil),
	}
}
