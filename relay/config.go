// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"time"

	"kindex/internal/logsink"
	"kindex/internal/secure"
	"kindex/internal/settings"
	"kindex/relay/feed"
	"kindex/relay/hashcheck"
)

// Config is all that a relay can be told. [DefaultConfig] has the defaults; flags
// and the configuration file have the same names (package settings).
type Config struct {
	Engines []EngineSpec
	Listen  string // host:port of the first engine's gRPC server; engine i's port is i higher
	HTTP    string // host:port, or httpOff

	HashTokens     bool  // token ids stay on this host
	MinHashBlock   int   // tokens: under HashTokens ranks of smaller blocks serve no events
	HistoryBatches int   // of each rank
	HistoryBytes   int64 // of each rank

	TLSCert, TLSKey string // files; "": no TLS
	ClientCA        string // file; "": any client
	TokenFile       string // file; "": no token

	MaxSubscriptions int   // of one engine
	MaxStreams       int   // RPCs at once on one connection
	MaxConnections   int   // of one listener
	MaxMessageBytes  int64 // of one message that a client sends
	MaxHeldBatches   int   // live batches that wait behind a gap, each rank
	MaxHeldBytes     int64
	MaxFrameBytes    int64 // of one ZMQ frame

	ReplayTries   int
	RetryDelay    time.Duration // before the second replay request, doubling
	ResyncDelay   time.Duration // between tries to get back what was given up
	ConnectPeriod time.Duration // without a connection before a stream is failed
	LoadInterval  time.Duration // between readings of an engine's load

	LoadTokenFile string // file; "": engines' HTTP servers are asked without a token
	HashCheck     string // what engines' hashes are held against; see hashcheck.Parse

	DrainDelay   time.Duration // not ready, still serving, before the drain begins
	DrainTimeout time.Duration // the drain itself

	LogLevel  slog.Level
	LogFormat string // one of logsink.Formats
	LogQueue  int    // lines
}

// httpOff is the HTTP address of a relay without an HTTP server.
const httpOff = "off"

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	limits := feed.Limits{}.Thorough().WithDefaults()
	return Config{
		Listen: "127.0.0.1:9400",
		HTTP:   "127.0.0.1:9399",

		MinHashBlock:   DefaultMinHashBlock,
		HistoryBatches: DefaultHistoryBatches,
		HistoryBytes:   DefaultHistoryBytes,

		MaxSubscriptions: 4_096,
		MaxStreams:       4_096,
		MaxConnections:   8_192,
		MaxMessageBytes:  64 << 20,
		MaxHeldBatches:   limits.HeldBatches,
		MaxHeldBytes:     int64(limits.HeldBytes),
		MaxFrameBytes:    16 << 20,

		ReplayTries:   limits.ReplayTries,
		RetryDelay:    limits.RetryDelay,
		ResyncDelay:   limits.ResyncDelay,
		ConnectPeriod: limits.ConnectPeriod,
		LoadInterval:  250 * time.Millisecond,

		HashCheck: "off",

		DrainTimeout: 10 * time.Second,

		LogFormat: logsink.Formats[0],
		LogQueue:  4_096,
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

// options lists every setting of c but the engines, in the order they are shown.
func (c *Config) options() []settings.Option {
	const maxBytes = 1 << 46 // 64 TiB
	return []settings.Option{
		settings.Address("listen", "gRPC address of the first engine, host:port; the next engine's port is one higher; port 0 takes free ones", &c.Listen),
		settings.Text("http", "HTTP address for /livez, /readyz, /metrics and /status, host:port, or off", &c.HTTP, func(s string) error {
			if s == httpOff {
				return nil
			}
			return settings.CheckAddress(s)
		}),
		settings.Toggle("hash-tokens", "token ids stay on this host: subscribers get content hashes, SubscribeKvEvents is refused; hashes have no key, so that whoever has them can try whether a text that they know or guess was in a prompt", &c.HashTokens),
		settings.Count("hash-tokens-min-block", "with hash-tokens, ranks whose blocks are of fewer tokens serve no events: so short a block is found from its hash with a table of the vocabulary; lower means that prompts can be read from the hashes", &c.MinHashBlock, 1, maxBlock),
		settings.Count("history-batches", "batches of each rank that subscribers can resume from", &c.HistoryBatches, 1, 1<<28),
		settings.Size("history-bytes", "memory of each rank's history; the newest batch is kept however large it is", &c.HistoryBytes, 1<<10, maxBytes),
		settings.Text("tls-cert", "PEM file with the certificate of this relay; turns TLS 1.3 on; read again when it changes", &c.TLSCert, nil),
		settings.Text("tls-key", "PEM file with its key", &c.TLSKey, nil),
		settings.Text("client-ca", "PEM file with the authorities of the clients that are taken; others are refused", &c.ClientCA, nil),
		settings.Text("token-file", "file with bearer tokens of 8 bytes or more, one a line (or ROLE TOKEN NAME, as an index host has them), of which clients must have one; read again when it changes", &c.TokenFile, nil),
		settings.Count("max-subscriptions", "subscriptions to one engine at once", &c.MaxSubscriptions, 1, 1<<20),
		settings.Count("max-streams", "RPCs at once on one gRPC connection", &c.MaxStreams, 1, 1<<20),
		settings.Count("max-connections", "connections at once to one address", &c.MaxConnections, 1, 1<<20),
		settings.Size("max-message-bytes", "gRPC message that a client sends, passed through to an engine or not", &c.MaxMessageBytes, 64<<10, 1<<31-1),
		settings.Count("max-held-batches", "live batches of one rank that may wait behind a gap", &c.MaxHeldBatches, 1, 1<<24),
		settings.Size("max-held-bytes", "memory of one rank's waiting batches", &c.MaxHeldBytes, 1<<10, maxBytes),
		settings.Size("max-frame-bytes", "ZMQ frame; a longer one ends the connection", &c.MaxFrameBytes, 1<<10, 1<<31-1),
		settings.Count("replay-tries", "fruitless replay requests before a gap is given up", &c.ReplayTries, 1, 1_000),
		settings.Span("retry-delay", "before the second replay request, doubling", &c.RetryDelay, time.Millisecond, time.Hour),
		settings.Span("resync-delay", "between tries to get back what was given up", &c.ResyncDelay, 10*time.Millisecond, 24*time.Hour),
		settings.Span("connect-period", "without a connection before a rank's stream is failed (it is retried all the same)", &c.ConnectPeriod, 10*time.Millisecond, 24*time.Hour),
		settings.Span("load-interval", "between two readings of an engine's load", &c.LoadInterval, 10*time.Millisecond, time.Hour),
		settings.Text("load-token-file", "file with the bearer token that engines' HTTP servers ask for; read at the start", &c.LoadTokenFile, nil),
		settings.Text("hash-check", "hold engines' block hashes against their tokens: auto, off, or what they are made by: sha256, sha256_cbor, xxhash, xxhash_cbor, each with or without :SEED (the engine's PYTHONHASHSEED), or sglang", &c.HashCheck, hashcheck.CheckForm),
		settings.Span("drain-delay", "at shutdown: not ready but still serving, before the drain", &c.DrainDelay, 0, time.Hour),
		settings.Span("drain-timeout", "at shutdown: how long RPCs that are passed through may take to end", &c.DrainTimeout, time.Millisecond, time.Hour),
		settings.LogLevel("log-level", &c.LogLevel),
		settings.Choice("log-format", "text or json", &c.LogFormat, logsink.Formats),
		settings.Count("log-queue", "log lines that may wait for a slow sink; more are dropped and counted", &c.LogQueue, 1, 1<<20),
	}
}

// Validate returns all faults of c, each naming its option; nil where there is
// none. Files that it names must be there.
func (c *Config) Validate() []error {
	faults := settings.Faults(c.options())
	if len(c.Engines) == 0 {
		faults = append(faults, errors.New("engine: none is given: it must be --engine "+engineForm))
	}
	for i := range c.Engines {
		if err := c.Engines[i].validate(); err != nil {
			faults = append(faults, fmt.Errorf("engine %s: %w", c.nameOf(i), err))
		}
	}
	if len(faults) > 0 {
		return faults
	}
	for i := range c.Engines {
		if _, err := hashcheck.Parse(c.HashCheck, c.Engines[i].Kind); err != nil {
			faults = append(faults, fmt.Errorf("engine %s: hash-check: %w", c.nameOf(i), err))
		}
		if b := c.Engines[i].Block; c.HashTokens && b != 0 && b < c.MinHashBlock {
			faults = append(faults, fmt.Errorf("engine %s: block: %s", c.nameOf(i), shortBlocks(b, c.MinHashBlock)))
		}
	}
	faults = append(faults, c.nameFaults()...)
	faults = append(faults, c.addressFaults()...)
	faults = append(faults, c.overlapFaults()...)
	return append(faults, c.fileFaults()...)
}

// nameOf returns the name of engine i: its own, or one by its kind and place.
func (c *Config) nameOf(i int) string {
	if name := c.Engines[i].Name; name != "" {
		return name
	}
	return c.Engines[i].Kind + "-" + strconv.Itoa(i)
}

func (c *Config) nameFaults() []error {
	var faults []error
	seen := map[string]bool{}
	for i := range c.Engines {
		name := c.nameOf(i)
		if seen[name] {
			faults = append(faults, fmt.Errorf("engine %s: name: it is given to two engines", name))
		}
		seen[name] = true
	}
	return faults
}

// listenOf returns the address of engine i.
func (c *Config) listenOf(i int) (string, error) {
	if own := c.Engines[i].Listen; own != "" {
		return own, nil
	}
	host, port, err := net.SplitHostPort(c.Listen)
	if err != nil {
		return "", err
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		return "", err
	}
	if n != 0 {
		n += i
	}
	if n > 65535 {
		return "", fmt.Errorf("listen: it would be port %d, past 65535", n)
	}
	return net.JoinHostPort(host, strconv.Itoa(n)), nil
}

// addressFaults returns which addresses cannot be taken because another listener
// of c has them.
func (c *Config) addressFaults() []error {
	var faults []error
	taken := map[string]string{}
	take := func(who, address string) {
		if _, port, err := net.SplitHostPort(address); err != nil || port == "0" {
			return
		}
		if other, ok := taken[address]; ok {
			faults = append(faults, fmt.Errorf("%s would listen on %s, where %s listens: give one of them another address", who, address, other))
			return
		}
		taken[address] = who
	}
	if c.HTTP != httpOff {
		take("http", c.HTTP)
	}
	for i := range c.Engines {
		address, err := c.listenOf(i)
		if err != nil {
			faults = append(faults, fmt.Errorf("engine %s: %w", c.nameOf(i), err))
			continue
		}
		take("engine "+c.nameOf(i), address)
	}
	return faults
}

// fileFaults returns what is wrong with the files that c names.
func (c *Config) fileFaults() []error {
	faults := c.tlsFiles().Faults("client-ca")
	if c.TokenFile != "" {
		if err := tokenForm.Fault(c.TokenFile); err != nil {
			faults = append(faults, fmt.Errorf("token-file: %w", err))
		}
	}
	if _, err := c.loadToken(); err != nil {
		faults = append(faults, fmt.Errorf("load-token-file: %w", err))
	}
	return faults
}

// loadToken reads the token for engines' HTTP servers; "" where none is needed.
func (c *Config) loadToken() (string, error) {
	if c.LoadTokenFile == "" {
		return "", nil
	}
	return settings.ReadToken(c.LoadTokenFile)
}

func (c *Config) tlsFiles() secure.TLSFiles {
	return secure.TLSFiles{Cert: c.TLSCert, Key: c.TLSKey, ClientCA: c.ClientCA}
}

// tokenForm is what token-file may hold: a relay has only readers, so that a token
// needs no role.
var tokenForm = secure.TokenForm{Server: "relay", Bare: secure.RoleRead}
