// SPDX-License-Identifier: Apache-2.0

// Before: one connection. After: own.go or peer.go, message by message.

package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"kindex/proto/peer/common"

	relayv1 "kindex/proto/kindex/relay/v1"
)

// errToken means that the token could not be had.
var errToken = errors.New("no bearer token")

// feed is one stream that was asked for.
type feed struct {
	stream grpc.ClientStream
	// next waits for the next message and returns what takes it.
	next func() (take func(time.Time) error, err error)
}

// methods that serve a stream under the peers' contracts.
var peerMethods = [numContracts]string{
	ContractVLLM:   "/" + contractNames[ContractVLLM] + "/SubscribeKvEvents",
	ContractSGLang: "/" + contractNames[ContractSGLang] + "/SubscribeKvEvents",
}

// subscribe asks for one stream and takes it until it ends; it returns why.
func (c *Client) subscribe(ctx context.Context, conn *grpc.ClientConn) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if c.cfg.Token != nil {
		token, err := c.cfg.Token()
		if err != nil {
			return fmt.Errorf("%w: %w", errToken, err)
		}
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	}
	c.locked(c.begin)
	f, err := c.open(ctx, conn)
	if err != nil {
		return err
	}
	return c.receive(ctx, cancel, conn, f)
}

// begin prepares for a stream.
func (c *Client) begin() {
	if c.contract == ContractUnknown {
		c.contract = ContractOwn
	}
	c.forgetAgain()
	c.st.Subscriptions++
	for _, r := range c.ranks {
		r.absent = ""
		r.begin(c.now())
	}
}

// open asks for a stream under the contract that is tried now.
func (c *Client) open(ctx context.Context, conn *grpc.ClientConn) (*feed, error) {
	f := &feed{}
	var method string
	var req proto.Message
	if c.contract == ContractOwn {
		resp, err := c.describe(ctx, conn)
		if err != nil {
			return nil, err
		}
		method = relayv1.RelayService_Subscribe_FullMethodName
		c.locked(func() {
			c.presence(resp)
			c.aim(resp)
			req = c.ownRequest()
		})
		f.next = func() (func(time.Time) error, error) {
			m := new(relayv1.SubscribeResponse)
			err := f.stream.RecvMsg(m)
			return func(now time.Time) error { return c.takeOwn(m, now) }, err
		}
	} else {
		method = peerMethods[c.contract]
		c.locked(func() { req = c.peerRequest() })
		f.next = func() (func(time.Time) error, error) {
			m := new(common.KvEventBatch)
			err := f.stream.RecvMsg(m)
			return func(now time.Time) error { return c.takePeer(m, now) }, err
		}
	}
	var err error
	if f.stream, err = conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, method); err != nil {
		return nil, err
	}
	// What is wrong with the stream is told by receiving.
	_ = f.stream.SendMsg(req)
	_ = f.stream.CloseSend()
	return f, nil
}

// received is one message, or why there is none.
type received struct {
	take func(time.Time) error
	err  error
}

// receive takes f's messages until it ends, and returns why. cancel ends the
// stream, whose context is ctx.
//
// A goroutine of its own receives, one message ahead at most, so that this one can
// watch the clock meanwhile.
func (c *Client) receive(ctx context.Context, cancel func(), conn *grpc.ClientConn, f *feed) error {
	in := make(chan received)
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		for {
			take, err := f.next()
			select {
			case in <- received{take, err}:
			case <-ctx.Done():
				return
			}
			if err != nil {
				return
			}
		}
	}()
	w := newWatch(c, conn)
	defer func() {
		cancel()
		<-gone
		w.wait()
	}()
	timer := time.NewTimer(w.next())
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case got := <-in:
			if got.err != nil {
				return got.err
			}
			var err error
			c.locked(func() { err = c.take(got.take) })
			if err != nil {
				return err
			}
			w.life = c.now() // handlers may have taken long
			if c.touched != nil && c.touched.catching {
				timer.Reset(w.next())
			}
		case alive := <-w.answers:
			w.answered(alive)
			timer.Reset(w.next())
		case resp := <-w.described:
			c.locked(func() { w.aimed(resp) })
			timer.Reset(w.next())
		case <-c.kick:
			return errAgain
		case <-timer.C:
			var err error
			since := c.now()
			c.locked(func() {
				w.life = w.life.Add(c.now().Sub(since)) // who was held cannot be heard
				err = w.look(ctx)
			})
			if err != nil {
				return err
			}
			timer.Reset(w.next())
		}
	}
}

// take takes one message.
func (c *Client) take(take func(time.Time) error) error {
	c.connected()
	c.touched = nil
	err := take(c.now())
	if r := c.touched; r != nil {
		if r.content {
			c.failures = 0
		}
		c.publish(r)
	}
	return err
}

// connected tells every handler that a stream stands, once for each.
func (c *Client) connected() {
	if c.st.Connected {
		return
	}
	c.st.Connected, c.st.Unserved, c.lastWhy, c.st.LastError = true, false, "", ""
	for _, n := range c.cfg.Ranks {
		if r := c.ranks[n]; r.absent != "" {
			r.h.Disconnected(r.absent)
		} else {
			r.connected(c.contract)
		}
	}
	c.publish(nil)
}
