// SPDX-License-Identifier: Apache-2.0

package feed

import (
	"net/netip"
	"strings"
)

// Use is an address and what it is used for.
type Use struct {
	What string
	// Endpoint is as [CheckEndpoint] takes it; a listener's, and that of another
	// protocol, is written tcp://host:port, too.
	Endpoint string
}

// Overlaps calls found with each two uses, by their places in uses, that visibly
// are one address. What is no endpoint, or has no port of its own, overlaps with
// nothing. No name is looked up: cost is that of the uses.
func Overlaps(uses []Use, found func(first, second int)) {
	ports := map[int][]int{}
	paths := map[string]int{}
	ends := make([]endpoint, len(uses))
	for i := range uses {
		e, err := parseEndpoint(uses[i].Endpoint)
		if err != nil {
			continue
		}
		ends[i] = e
		if e.scheme == "ipc" {
			if j, ok := paths[e.text]; ok {
				found(j, i)
				continue
			}
			paths[e.text] = i
			continue
		}
		for _, j := range ports[e.port] {
			if sameHost(ends[j].host, e.host) {
				found(j, i)
			}
		}
		ports[e.port] = append(ports[e.port], i)
	}
}

// sameHost reports whether two hosts, in the forms of endpoints and listeners,
// visibly are, or contain, one address of this machine or of another.
func sameHost(a, b string) bool {
	a, b = strings.ToLower(a), strings.ToLower(b)
	if a == b || wildcard(a) && local(b) || wildcard(b) && local(a) {
		return true
	}
	if a == "localhost" || b == "localhost" {
		return standardLoopback(a) && standardLoopback(b)
	}
	x, errX := netip.ParseAddr(a)
	y, errY := netip.ParseAddr(b)
	return errX == nil && errY == nil && x.Unmap() == y.Unmap()
}

func wildcard(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "*" || err == nil && ip.Unmap().IsUnspecified()
}

func local(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || wildcard(host) || err == nil && ip.Unmap().IsLoopback()
}

// standardLoopback reports whether host is what the name localhost stands for.
func standardLoopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return host == "localhost"
	}
	ip = ip.Unmap()
	return ip == netip.IPv6Loopback() || ip == netip.AddrFrom4([4]byte{127, 0, 0, 1})
}
