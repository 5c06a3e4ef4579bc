// SPDX-License-Identifier: Apache-2.0

package feed

import (
	"errors"
	"fmt"
	"time"

	zmq "github.com/pebbe/zmq4"
)

// rejoinDelay is how soon a name that was not found, or an address that could
// not be bound, is tried again.
const rejoinDelay = time.Second

// keepAddress joins the tap to its endpoint and, while there is no connection,
// looks up its name anew, finds out why, and joins again. libzmq itself retries an
// address, but not after a peer that broke the protocol: that ends its session.
func (t *zmqTap) keepAddress() {
	defer t.wg.Done()
	unbound := false
	for probe := false; ; probe = true {
		delay := t.z.opts.ProbePeriod
		if !probe {
			delay = t.z.opts.ProbeDelay
		}
		addr, err := t.live.resolve(t.ctx)
		if err == nil {
			err = t.join(&addr, probe)
		}
		switch {
		case err != nil && t.live.bind:
			// Nobody can reach us until this is mended, by somebody who must know.
			unbound, delay = true, min(delay, rejoinDelay)
			t.unboundFor(err)
			err = nil
		case unbound:
			unbound, err = false, errNobody
		case err != nil:
			delay = min(delay, rejoinDelay)
		case probe && !t.live.bind && !t.isConnected():
			err = addr.probe(t.ctx)
		}
		if err != nil {
			t.unconnected(err)
		}
		if !t.unconnectedFor(delay) {
			return
		}
	}
}

// unconnectedFor returns true once there was no connection for as long as delay,
// or for ProbeDelay after one was lost, and false when the tap is closed.
func (t *zmqTap) unconnectedFor(delay time.Duration) bool {
	end := time.Now().Add(delay)
	timer := time.NewTimer(delay)
	defer timer.Stop()
	for {
		select {
		case <-t.ctx.Done():
			return false
		case <-t.lost:
			// Only ever sooner: a peer that comes and goes must not put it off.
			if sooner := time.Now().Add(t.z.opts.ProbeDelay); end.Before(time.Now()) || sooner.Before(end) {
				end = sooner
				timer.Reset(t.z.opts.ProbeDelay)
			}
		case <-timer.C:
			if !t.isConnected() {
				return true
			}
		}
	}
}

func (t *zmqTap) isConnected() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.peers > 0
}

// unconnected tells the stream why there is no connection, if there is none.
func (t *zmqTap) unconnected(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.peers > 0 || t.closed {
		return
	}
	now := time.Now()
	t.s.Disconnected(err.Error(), now)
	t.next(now)
}

// errNobody is why a bound endpoint has no connection.
var errNobody = errors.New("no engine has connected yet")

// unboundFor tells the stream that its endpoint cannot be bound.
func (t *zmqTap) unboundFor(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return
	}
	now := time.Now()
	t.s.Unbound(err.Error(), now)
	t.next(now)
}

// join connects or binds the SUB socket to addr, in place of an older address.
// again joins anew even where the address is the same, if nothing is connected.
func (t *zmqTap) join(addr *address, again bool) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	again = again && !t.live.bind && t.peers == 0
	if t.closed || t.joined == addr.text && !again {
		return nil
	}
	if t.joined != "" {
		if events, err := t.sub.GetEvents(); err != nil || events&zmq.POLLIN != 0 {
			// Leaving drops what was received and not read yet.
			return err
		}
		// An error says that libzmq has given the address up already.
		_ = t.sub.Disconnect(t.joined)
		t.joined = ""
	}
	if addr.ipv6 {
		if err := t.sub.SetIpv6(true); err != nil {
			return err
		}
	}
	how, verb := (*zmq.Socket).Connect, "connecting to"
	if t.live.bind {
		how, verb = (*zmq.Socket).Bind, "binding"
	}
	if err := how(t.sub, addr.text); err != nil {
		return fmt.Errorf("%s %s: %w", verb, addr.text, err)
	}
	t.joined = addr.text
	return nil
}
