// SPDX-License-Identifier: Apache-2.0

// Before: a drill that cuts a network. After: the kernel, by way of ip and tc.

package drill

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"time"
)

// namespace is a network of its own for the index host, with two cables to this one: one
// for its engines, through a switch that can be made to lose every packet, and one to ask
// it by. Carriers and neighbours stay known on both ends, nobody is refused, and nothing
// is lost where a sender's own kernel could tell (TCP counts no probe that its own queue
// dropped): both ends' timers alone decide what happens.
//
// A nil namespace is this program's own network.
type namespace struct {
	name    string    // of the index host's network
	between string    // of the switch's
	cables  [2]string // ends on this side: engines, control
	subnet  int
	pulled  bool
}

// commandTime bounds one call of ip.
const commandTime = 10 * time.Second

// networks counts those made by this process, so that no two have one name.
var networks atomic.Int32

// Names within the switch's network: itself, and its two ports.
const (
	bridgeName = "switch"
	enginePort = "port0"
	indexPort  = "port1"
)

// openNamespace makes one, or says why that cannot be done here.
func (e *Env) openNamespace(ctx context.Context) (*namespace, error) {
	id := int(networks.Add(1))
	pid := os.Getpid()
	n := &namespace{
		name:    fmt.Sprintf("kindex-drill-%d-%d", pid, id),
		between: fmt.Sprintf("kindex-switch-%d-%d", pid, id),
		subnet:  (pid*8 + id*2) % 256 &^ 1,
	}
	for i := range n.cables {
		n.cables[i] = fmt.Sprintf("kd%d-%d%c", pid%1_000_000, id, 'a'+i)
	}
	e.later(n.close)
	err := errors.Join(n.ip(ctx, "netns", "add", n.name), n.ip(ctx, "netns", "add", n.between))
	if err != nil {
		return nil, err
	}
	a, b := n.cables[0], n.cables[1]
	for _, args := range [][]string{
		{"-n", n.name, "link", "set", "lo", "up"},
		{"-n", n.between, "link", "add", bridgeName, "type", "bridge"},
		{"link", "add", a, "address", n.card(0, 1), "type", "veth", "peer", "name", enginePort, "netns", n.between},
		{"-n", n.name, "link", "add", "eth0", "address", n.card(0, 2), "type", "veth", "peer", "name", indexPort, "netns", n.between},
		{"link", "add", b, "address", n.card(1, 1), "type", "veth", "peer", "name", "eth1", "address", n.card(1, 2), "netns", n.name},
		{"-n", n.between, "link", "set", enginePort, "master", bridgeName},
		{"-n", n.between, "link", "set", indexPort, "master", bridgeName},
		{"-n", n.between, "link", "set", enginePort, "up"},
		{"-n", n.between, "link", "set", indexPort, "up"},
		{"-n", n.between, "link", "set", bridgeName, "up"},
	} {
		if err := n.ip(ctx, args...); err != nil {
			return nil, err
		}
	}
	for i := range n.cables {
		for end, at := range [][]string{{n.cables[i]}, {fmt.Sprintf("eth%d", i), "-n", n.name}} {
			dev, where := at[0], at[1:]
			other := 2 - end
			for _, args := range [][]string{
				{"addr", "add", n.address(i, end+1) + "/30", "dev", dev},
				{"link", "set", dev, "up"},
				{"neigh", "replace", n.address(i, other), "lladdr", n.card(i, other), "dev", dev, "nud", "permanent"},
			} {
				if err := n.ip(ctx, append(append([]string(nil), where...), args...)...); err != nil {
					return nil, err
				}
			}
		}
	}
	return n, nil
}

// card is the hardware address of one end of a cable.
func (n *namespace) card(cable, end int) string {
	return fmt.Sprintf("02:6b:64:%02x:%02x:%02x", n.subnet, cable, end)
}

// address is one end of a cable, of the block that is kept for benchmarks.
func (n *namespace) address(cable, end int) string {
	return fmt.Sprintf("198.18.%d.%d", n.subnet+cable, end)
}

// engineHost is where engines and relays listen for the index host.
func (n *namespace) engineHost() string {
	if n == nil {
		return "127.0.0.1"
	}
	return n.address(0, 1)
}

// controlHost is where the index host listens.
func (n *namespace) controlHost() string {
	if n == nil {
		return "127.0.0.1"
	}
	return n.address(1, 2)
}

// command wraps one to run within.
func (n *namespace) command(path string, args []string) (within string, withinArgs []string) {
	if n == nil {
		return path, args
	}
	return "ip", append([]string{"netns", "exec", n.name, path}, args...)
}

// cut has the switch lose every packet.
func (n *namespace) cut(ctx context.Context) error {
	n.pulled = true
	return n.ip(ctx, "-n", n.between, "link", "set", indexPort, "nomaster")
}

// heal lets them through again.
func (n *namespace) heal(ctx context.Context) error {
	if !n.pulled {
		return nil
	}
	n.pulled = false
	return n.ip(ctx, "-n", n.between, "link", "set", indexPort, "master", bridgeName)
}

// close takes the network away. It is done when the drill's context may have ended.
// What was not made is not there.
func (n *namespace) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), commandTime)
	defer cancel()
	for _, c := range n.cables {
		_ = n.ip(ctx, "link", "del", c)
	}
	_ = n.ip(ctx, "netns", "del", n.between)
	_ = n.ip(ctx, "netns", "del", n.name)
	return nil
}

func (n *namespace) ip(ctx context.Context, args ...string) error { return call(ctx, "ip", args...) }

// call runs a program to its end and returns what it complained of.
func call(ctx context.Context, name string, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, commandTime)
	defer cancel()
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput() //nolint:gosec // arguments of ours
	if err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}
