// SPDX-License-Identifier: Apache-2.0

package indexsrv

import (
	"crypto/tls"
	"errors"
	"fmt"
	"sync"
	"time"

	"kindex/internal/secure"
	"kindex/internal/settings"
	"kindex/relay/client"
)

// relayGroup is the one client that the ranks of a registration share: one
// connection, one stream.
//
// Concurrency: any goroutine.
type relayGroup struct {
	size int // ranks
	opts relayOptions

	mu     sync.Mutex
	ranks  map[uint32]*relayed
	left   int
	client *client.Client // nil until all ranks are there
}

func newRelayGroup(size int) *relayGroup {
	return &relayGroup{size: size, ranks: make(map[uint32]*relayed, size)}
}

// join adds r; with the last of the group's ranks the client begins to connect.
func (g *relayGroup) join(r *relayed, cfg *StreamConfig) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ranks[r.rank] = r
	if len(g.ranks) < g.size {
		return nil
	}
	cc := client.Config{
		Address:         cfg.Endpoint,
		BlockSize:       cfg.BlockSize,
		StatedNames:     cfg.Engine == "sglang",
		MaxMessageBytes: g.opts.maxMessage,
		SilenceTimeout:  g.opts.silence,
		TLS:             g.opts.tls,
		Token:           g.opts.token,
	}
	for n, r := range g.ranks {
		cc.Ranks = append(cc.Ranks, n)
		if r.start != nil {
			if cc.Start == nil {
				cc.Start = map[uint32]client.Cursor{}
			}
			cc.Start[n] = *r.start
		}
	}
	c, err := client.New(cc, func(n uint32) client.Handler { return g.ranks[n] })
	if err != nil {
		g.left++ // nobody closes a stream that was refused
		return err
	}
	g.client = c
	return nil
}

// leave ends the client with the last rank.
func (g *relayGroup) leave() {
	g.mu.Lock()
	g.left++
	c := g.client
	last := g.left == g.size
	g.mu.Unlock()
	if last && c != nil {
		c.Close()
	}
}

// seen returns what the client has seen of a rank.
func (g *relayGroup) seen(rank uint32) client.RankStatus {
	g.mu.Lock()
	c := g.client
	g.mu.Unlock()
	if c == nil {
		return client.RankStatus{}
	}
	return c.Rank(rank)
}

// hold calls fn with a rank's cursor while the client takes no message; false: there
// is no client yet.
func (g *relayGroup) hold(rank uint32, fn func(client.Cursor, bool)) bool {
	g.mu.Lock()
	c := g.client
	g.mu.Unlock()
	if c == nil {
		return false
	}
	c.Hold(rank, fn)
	return true
}

// relayRanks returns how many ranks the relay has; 0: it does not say.
func (g *relayGroup) relayRanks() int {
	g.mu.Lock()
	c := g.client
	g.mu.Unlock()
	if c == nil {
		return 0
	}
	return c.Status().RelayRanks
}

// unserved reports whether the server was found to serve no contract.
func (g *relayGroup) unserved() bool {
	g.mu.Lock()
	c := g.client
	g.mu.Unlock()
	return c != nil && c.Status().Unserved
}

// again has a rank asked for from the beginning.
func (g *relayGroup) again(rank uint32) {
	g.mu.Lock()
	c := g.client
	g.mu.Unlock()
	if c != nil {
		c.Again(rank)
	}
}

// relayOptions are what every relay is dialled with.
type relayOptions struct {
	tls        *tls.Config            // nil: in the clear
	token      func() (string, error) // nil: none
	maxMessage int                    // bytes
	silence    time.Duration
}

// relayOptions reads the files that c names. Every fault names its option.
func (c *Config) relayOptions() (relayOptions, error) {
	o := relayOptions{maxMessage: int(c.RelayMessageBytes), silence: c.RelaySilence}
	var faults []error
	bad := func(option string, err error) {
		if err != nil {
			faults = append(faults, fmt.Errorf("%s: %w", option, err))
		}
	}
	if (c.RelayCert == "") != (c.RelayKey == "") {
		bad("relay-cert", errors.New("relay-cert and relay-key go together"))
	}
	if c.RelayTLS || c.RelayCA != "" || c.RelayCert != "" {
		o.tls = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	if c.RelayCA != "" {
		pool, err := secure.ReadAuthorities(c.RelayCA)
		o.tls.RootCAs = pool
		bad("relay-ca", err)
	}
	if c.RelayCert != "" && c.RelayKey != "" {
		_, err := settings.ReadKeyPair(c.RelayCert, c.RelayKey)
		bad("relay-cert", err)
		// Read anew at each handshake, so that a renewed certificate is used.
		o.tls.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			cert, err := settings.ReadKeyPair(c.RelayCert, c.RelayKey)
			return &cert, err
		}
	}
	if c.RelayTokenFile != "" {
		o.token = func() (string, error) { return settings.ReadToken(c.RelayTokenFile) }
		_, err := o.token()
		bad("relay-token-file", err)
	}
	return o, errors.Join(faults...)
}
