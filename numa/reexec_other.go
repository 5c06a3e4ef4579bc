// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package numa

// ReexecOn puts this whole process on one node, on Linux only.
func ReexecOn(t *Topology, id int) error {
	if n, ok := t.Node(id); !ok || len(n.CPUs) == 0 {
		return t.noPlace(id)
	}
	if t.Flat {
		return nil
	}
	return errLinuxOnly
}
