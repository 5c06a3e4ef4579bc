// SPDX-License-Identifier: Apache-2.0

package indexsrv

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"kindex/internal/settings"
	"kindex/internal/shm"
)

// How the threads that answer over shared memory wait.
const (
	shmWaitAuto  = "auto"
	shmWaitSpin  = "spin"
	shmWaitSleep = "sleep"
)

// ShmConfig is what lookups over shared memory can be told.
type ShmConfig struct {
	Listen  string // path of the Unix socket; "": off
	Allow   string // who may use it, see shmAllow; "": the own user and root
	Clients int    // at once

	RequestBytes, ReplyBytes int64 // of a ring of one client and shard; powers of two

	Wait string        // auto, spin, sleep
	Spin time.Duration // how long a thread that spins does it without work
}

func defaultShmConfig() ShmConfig {
	return ShmConfig{
		Clients:      64,
		RequestBytes: 128 << 10, ReplyBytes: 128 << 10,
		Wait: shmWaitAuto, Spin: 50 * time.Microsecond,
	}
}

// options lists the settings of c.
func (c *ShmConfig) options() []settings.Option {
	return []settings.Option{
		{
			Name: "shm-listen", Usage: "path of the Unix socket for lookups over shared memory; empty: none",
			Value: func() string { return c.Listen },
			Set: func(s string) error {
				s = strings.TrimPrefix(s, "unix:")
				if s != "" {
					if err := shm.CheckPath(s); err != nil {
						return err
					}
				}
				c.Listen = s
				return nil
			},
		},
		settings.Text("shm-allow", "who may use that socket: uid:N and gid:N, comma-separated; empty: the own user and root", &c.Allow, func(s string) error {
			_, err := parseShmAllow(s)
			return err
		}),
		settings.Count("shm-clients", "clients of that socket at once", &c.Clients, 1, shm.MaxClients),
		ringOption("shm-request-bytes", "ring of requests, for each client and shard, a power of two", &c.RequestBytes),
		ringOption("shm-reply-bytes", "ring of replies, for each client and shard, a power of two", &c.ReplyBytes),
		settings.Choice("shm-wait", "how threads wait for requests: auto (spin, then sleep, where they are pinned and have cores to spare, else sleep at once), spin, sleep", &c.Wait, []string{shmWaitAuto, shmWaitSpin, shmWaitSleep}),
		settings.Span("shm-spin", "how long a thread that spins does so without work before it sleeps", &c.Spin, time.Microsecond, time.Second),
	}
}

// ringOption is a size that a ring can have.
func ringOption(name, usage string, p *int64) settings.Option {
	o := settings.Size(name, usage, p, shm.MinRing, shm.MaxRing)
	set := o.Set
	o.Set = func(s string) error {
		if n, ok := settings.ParseSize(s); ok && n&(n-1) != 0 {
			return fmt.Errorf("%q must be a power of two", s)
		}
		return set(s)
	}
	return o
}

// shmAllow says who may use the socket.
type shmAllow struct{ uids, gids []uint32 }

// parseShmAllow reads uid:N and gid:N.
func parseShmAllow(s string) (a shmAllow, err error) {
	if s == "" {
		return shmAllow{uids: []uint32{0, uint32(os.Geteuid())}}, nil
	}
	for one := range strings.SplitSeq(s, ",") {
		kind, number, ok := strings.Cut(strings.TrimSpace(one), ":")
		n, err := strconv.ParseUint(number, 10, 32)
		if !ok || err != nil || kind != "uid" && kind != "gid" {
			return a, fmt.Errorf("%q must be uid:N or gid:N, comma-separated", one)
		}
		if kind == "uid" {
			a.uids = append(a.uids, uint32(n))
		} else {
			a.gids = append(a.gids, uint32(n))
		}
	}
	return a, nil
}

// has reports whether who may.
func (a shmAllow) has(who shm.Cred) bool {
	return slices.Contains(a.uids, who.UID) || slices.Contains(a.gids, who.GID) ||
		slices.ContainsFunc(who.Groups, func(g uint32) bool { return slices.Contains(a.gids, g) })
}
