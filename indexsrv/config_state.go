// SPDX-License-Identifier: Apache-2.0

package indexsrv

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"kindex/internal/secure"
	"kindex/internal/settings"
)

// StateConfig says where a host keeps what it knows, and from which others it may
// copy it.
type StateConfig struct {
	StateDir      string        // "": nowhere
	StateInterval time.Duration // between two state files; 0: at the end only

	Peers         string        // addresses of other hosts, separated by commas
	PeerTokenFile string        // file: bearer token for them
	PeerCA        string        // file: whose certificates are theirs; "": the system's
	PeerTimeout   time.Duration // until a new host goes on without
}

// defaultState are StateConfig's defaults.
func defaultState() StateConfig {
	return StateConfig{StateInterval: time.Minute, PeerTimeout: 30 * time.Second}
}

func (c *Config) stateOptions() []settings.Option {
	return []settings.Option{
		settings.Text("state-dir", "directory where registrations and streams' contents are kept, so that a restarted host goes on where it stood; one host's alone; none: nothing is kept", &c.StateDir, nil),
		settings.Span("state-interval", "between two state files; 0: only at shutdown (registrations are written as they change)", &c.StateInterval, 0, 24*time.Hour),
		settings.Text("peers", "base addresses of other hosts, separated by commas, from one of which a host without a state copies registrations and contents", &c.Peers, func(s string) error {
			_, err := splitPeers(s)
			return err
		}),
		settings.Text("peer-token-file", "file of the bearer token for peers, read anew for each copy", &c.PeerTokenFile, nil),
		settings.Text("peer-ca", "file of the authorities that peers' certificates come from (PEM); none: the system's", &c.PeerCA, nil),
		settings.Span("peer-timeout", "how long a new host tries its peers before it begins with nothing; what comes by then is taken to its end", &c.PeerTimeout, time.Millisecond, time.Hour),
	}
}

// maxPeers bounds the peers that a host knows. Chosen.
const maxPeers = 256

// splitPeers returns the addresses in s.
func splitPeers(s string) (urls []string, err error) {
	for part := range strings.SplitSeq(s, ",") {
		if part = strings.TrimSpace(part); part == "" {
			continue
		}
		u, err := peerURL(part)
		if err != nil {
			return nil, err
		}
		urls = append(urls, u)
	}
	if len(urls) > maxPeers {
		return nil, fmt.Errorf("%d addresses: at most %d", len(urls), maxPeers)
	}
	return urls, nil
}

// peerURL returns a peer's address as it is kept: without a slash at its end.
func peerURL(s string) (string, error) {
	const form = "must be http://host:port or https://host:port"
	if len(s) > maxEndpoint {
		return "", fmt.Errorf("%s, of at most %d bytes", form, maxEndpoint)
	}
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return "", fmt.Errorf("%.200q: %s", s, form)
	}
	return strings.TrimRight(u.String(), "/"), nil
}

// stateFaults returns what is wrong with the files that c names.
func (c *StateConfig) stateFaults() (faults []error) {
	if c.PeerTokenFile != "" {
		if _, err := settings.ReadToken(c.PeerTokenFile); err != nil {
			faults = append(faults, fmt.Errorf("peer-token-file: %w", err))
		}
	}
	if c.PeerCA != "" {
		if _, err := secure.ReadAuthorities(c.PeerCA); err != nil {
			faults = append(faults, fmt.Errorf("peer-ca: %w", err))
		}
	}
	if c.StateDir != "" && strings.ContainsRune(c.StateDir, 0) {
		faults = append(faults, errors.New("state-dir: must be a path"))
	}
	return faults
}
