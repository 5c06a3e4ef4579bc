// SPDX-License-Identifier: Apache-2.0

// Before: rank.go, which has a load. After: a relay's or a gateway's sockets.

package engine

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	zmq "github.com/pebbe/zmq4"

	"kindex/internal/kv"
	"kindex/relay/wire"
)

const (
	loadTopic = "load"
	// loadLimit is how many readings wait for a slow subscriber, SGLang's number.
	loadLimit = 8
	// loadGlance is how often a rank's load is looked at.
	loadGlance = 50 * time.Millisecond
	// loadPeriod is how far apart readings are that say nothing new.
	loadPeriod = time.Second
	// LoadAuto has the load published next to the events.
	LoadAuto = "auto"
)

// loadSocket publishes one rank's load as SGLang's --load-publish-endpoint does: each
// reading that says something new, else one a second; nobody can ask for it again.
//
// Concurrency: run's goroutine.
type loadSocket struct {
	at     string // endpoint
	rank   *rank
	socket *zmq.Socket
}

// loadEndpoint returns rank 0's load endpoint: next to the events', past the replays'.
func loadEndpoint(c *Config, pubs []*Publisher) (string, error) {
	if c.LoadPub != LoadAuto {
		return c.LoadPub, nil
	}
	host, port, err := hostAndPort(pubs[0].Live)
	if err != nil {
		return "", fmt.Errorf("--load-pub auto: %w", err)
	}
	port += c.Ranks
	if pubs[0].Replay != "" {
		if _, replay, err := hostAndPort(pubs[0].Replay); err == nil && port < replay+c.Ranks && replay < port+c.Ranks {
			port = replay + c.Ranks
		}
	}
	return "tcp://" + net.JoinHostPort(host, strconv.Itoa(port)), nil
}

func hostAndPort(endpoint string) (string, int, error) {
	host, port, err := net.SplitHostPort(strings.TrimPrefix(endpoint, "tcp://"))
	if err != nil {
		return "", 0, err
	}
	n, err := strconv.Atoi(port)
	return host, n, err
}

// openLoads binds the load sockets of all ranks, those of the others above rank 0's.
func openLoads(c *Config, pubs []*Publisher, ranks []*rank) (all []*loadSocket, err error) {
	if c.LoadPub == "" {
		return nil, nil
	}
	first, err := loadEndpoint(c, pubs)
	if err != nil {
		return nil, err
	}
	for range openTries {
		at := first
		for i, r := range ranks {
			var s *zmq.Socket
			var bound string
			if s, bound, err = bind(zmq.PUB, at, i, loadLimit); err != nil {
				break
			}
			all = append(all, &loadSocket{bound, r, s})
			if i == 0 {
				at = bound
			}
		}
		if err == nil {
			return all, nil
		}
		taken := strings.HasSuffix(first, ":0") && len(all) > 0
		for _, l := range all {
			_ = l.socket.Close()
		}
		if all = nil; !taken {
			break
		}
	}
	return nil, fmt.Errorf("--load-pub: %w", err)
}

// run publishes until ctx ends, and closes the socket.
func (l *loadSocket) run(ctx context.Context) {
	defer func() { _ = l.socket.Close() }()
	tick := time.NewTicker(loadGlance)
	defer tick.Stop()
	var last []byte
	var told time.Time
	for seq := uint64(0); ; {
		reading := l.rank.reading()
		payload := wire.AppendLoad(nil, &reading)
		if now := time.Now(); !slices.Equal(payload, last) || now.Sub(told) >= loadPeriod {
			if _, err := l.socket.SendMessage(wire.MakeMessage(loadTopic, seq, payload)); err == nil {
				last, told = payload, now
				seq++
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// reading returns the rank's load as SGLang's socket tells it.
func (r *rank) reading() kv.Load {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := &r.sched
	used, of := s.cache.used()
	out := kv.Load{
		Rank: int64(r.number), Running: int64(len(s.running)), Waiting: int64(len(s.waiting)), UsedTokens: int64(used * r.cfg.BlockSize),
		MaxTokens: int64(of * r.cfg.BlockSize), MaxRunning: int64(r.cfg.MaxRunning), PrefillUncachedTokens: int64(r.counts.prompt - r.counts.cached),
		PrefillBusyMicros: r.counts.busy.Microseconds(), WaitingUncachedTokens: int64(r.uncached()), Fields: loadFields,
	}
	out.TotalTokens = out.UsedTokens + out.WaitingUncachedTokens
	return out
}

// loadFields is how many figures SGLang's socket tells.
const loadFields = 10
