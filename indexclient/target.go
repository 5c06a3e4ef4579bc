// SPDX-License-Identifier: Apache-2.0

package indexclient

import (
	"context"
	"net"
	"strconv"
	"strings"

	"kindex/internal/lookup"
)

// maxHosts bounds a target. Chosen, not measured.
const maxHosts = 256

const unixPrefix = "unix:"

// CheckTarget returns what is wrong with a target of [Dial]: ErrInvalid.
func CheckTarget(target string) error {
	_, err := parseTarget(target)
	return err
}

// parseTarget returns the hosts of each part.
func parseTarget(target string) ([][]string, error) {
	var parts [][]string
	seen := map[string]bool{}
	for part := range strings.SplitSeq(target, ",") {
		var names []string
		for name := range strings.SplitSeq(part, "|") {
			name = strings.TrimSpace(name)
			if err := checkHost(name); err != nil {
				return nil, err
			}
			if seen[name] {
				return nil, lookup.Refuse(ErrInvalid, "target: %s is given twice", name)
			}
			seen[name] = true
			names = append(names, name)
		}
		parts = append(parts, names)
	}
	if len(seen) > maxHosts {
		return nil, lookup.Refuse(ErrInvalid, "target: must have at most %d hosts, and has %d", maxHosts, len(seen))
	}
	return parts, nil
}

// checkHost returns what is wrong with the name of one host.
func checkHost(name string) error {
	if path, ok := strings.CutPrefix(name, unixPrefix); ok {
		if !strings.HasPrefix(path, "/") {
			return lookup.Refuse(ErrInvalid, "target: %q must be unix:/path, an absolute one", name)
		}
		return nil
	}
	host, port, err := net.SplitHostPort(name)
	n, notNumber := strconv.ParseUint(port, 10, 16)
	if err != nil || host == "" || notNumber != nil || n == 0 || strings.ContainsAny(host, "/ ") {
		return lookup.Refuse(ErrInvalid, "target: %q must be host:port or unix:/path; a|b for replicas, a,b for parts", name)
	}
	return nil
}

// dialHost returns one host, whose Watch ends where a connection breaks.
func dialHost(ctx context.Context, name string, o *Options) (lookup.Index, error) {
	if path, ok := strings.CutPrefix(name, unixPrefix); ok {
		return dialShared(ctx, path, o)
	}
	return dialGRPC(name, o)
}
