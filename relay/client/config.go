// SPDX-License-Identifier: Apache-2.0

package client

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"
)

// Contract is a service that serves a stream.
type Contract uint8

// The contracts, in the order in which they are tried.
const (
	ContractUnknown Contract = iota // none was found yet
	ContractOwn                     // kindex.relay.v1.RelayService
	ContractVLLM                    // vllm.grpc.engine.VllmEngine
	ContractSGLang                  // sglang.grpc.scheduler.SglangScheduler
	numContracts
)

var contractNames = [numContracts]string{
	ContractUnknown: "unknown",
	ContractOwn:     "kindex.relay.v1.RelayService",
	ContractVLLM:    "vllm.grpc.engine.VllmEngine",
	ContractSGLang:  "sglang.grpc.scheduler.SglangScheduler",
}

// String returns the full name of the service.
func (c Contract) String() string { return contractNames[c] }

// Config is what a client needs to know. The zero value of a field means its
// default.
type Config struct {
	// Address is host:port.
	Address string
	// Engine names one of several engines behind that address; "": the only one.
	// The peers' contracts know no names.
	Engine string
	// Ranks are the wanted ones, not empty and no number twice.
	Ranks []uint32

	// Contract is tried first; ContractUnknown: all are, in their order.
	Contract Contract
	// BlockSize is the size, in tokens, of the blocks that are wanted. Others are
	// left out and the rank is not exact. 0: whatever comes.
	BlockSize int
	// StatedNames: every event names its whole namespace, as SGLang's do. Only the
	// peers' contract needs to be told.
	StatedNames bool

	// Start is where ranks go on whose handlers hold a content already; the others
	// begin empty.
	Start map[uint32]Cursor

	// TLS dials with it; nil: in the clear.
	TLS *tls.Config
	// Token returns the bearer token, asked for each subscription; nil: none. It is
	// refused without TLS unless the address is a loopback one.
	Token func() (string, error)

	// MaxMessageBytes bounds one message; default 32 MiB.
	MaxMessageBytes int
	// MaxSnapshotBlocks bounds the physical copies of one rank's snapshot, which
	// costs about 60 bytes each while its digest is taken; default 16,777,216.
	MaxSnapshotBlocks int

	DialPeriod     time.Duration // between the beginnings of attempts; default 200 ms
	DialTimeout    time.Duration // of one attempt; default 2 s
	SilenceTimeout time.Duration // without any sign of life before a connection is dropped; default 3 s
	RetryMin       time.Duration // before subscribing again, doubling; default 100 ms
	RetryMax       time.Duration // at most, where the server refused; default 5 s
}

// Limits of a configuration, chosen wide of every deployment seen.
const (
	maxRanks    = 1_024
	maxRank     = 65_535
	maxAttempts = 10 // connection attempts at once
)

// CheckAddress returns what is wrong with the address of a stream, in the words of
// who has to mend it.
func CheckAddress(s string) error {
	host, port, err := net.SplitHostPort(s)
	if err != nil || host == "" {
		return fmt.Errorf("%.200q must be host:port of a gRPC event stream, such as 10.0.0.7:9400", s)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return fmt.Errorf("%.200q: the port must be 1 to 65535", s)
	}
	for _, r := range host {
		if r <= ' ' || r == '/' || r == '*' || r == 0x7f {
			return fmt.Errorf("%.200q: the host must be a name or an address", s)
		}
	}
	return nil
}

func orElse[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}

func (c *Config) setDefaults() {
	orElse(&c.MaxMessageBytes, 32<<20)
	orElse(&c.MaxSnapshotBlocks, 1<<24)
	orElse(&c.DialPeriod, 200*time.Millisecond)
	orElse(&c.DialTimeout, 2*time.Second)
	orElse(&c.SilenceTimeout, 3*time.Second)
	orElse(&c.RetryMin, 100*time.Millisecond)
	orElse(&c.RetryMax, 5*time.Second)
}

// validate returns the first thing that is wrong with c.
func (c *Config) validate() error {
	if err := CheckAddress(c.Address); err != nil {
		return err
	}
	if len(c.Ranks) == 0 || len(c.Ranks) > maxRanks {
		return fmt.Errorf("%d ranks: there must be 1 to %d", len(c.Ranks), maxRanks)
	}
	seen := make(map[uint32]bool, len(c.Ranks))
	for _, r := range c.Ranks {
		if r > maxRank || seen[r] {
			return fmt.Errorf("rank %d: it must be 0 to %d, and no rank twice", r, maxRank)
		}
		seen[r] = true
	}
	switch {
	case c.Contract >= numContracts:
		return fmt.Errorf("contract %d: there is none", c.Contract)
	case c.BlockSize < 0:
		return fmt.Errorf("block size %d: it must be positive, or 0 for any", c.BlockSize)
	case c.Token != nil && c.TLS == nil && !loopback(c.Address):
		return errors.New("a bearer token needs TLS unless the address is a loopback one: give a CA")
	}
	return nil
}

// loopback reports whether address names this machine, so that what is sent there
// does not leave it.
func loopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
