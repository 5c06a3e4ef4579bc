// SPDX-License-Identifier: Apache-2.0

// Before: operators. After: serveHTTP, as at the data address.

package indexsrv

import (
	"context"
	"errors"
	"net"

	"github.com/valyala/fasthttp"
)

// admin is the server of the admin address: all that the data address serves, and
// what that one refuses while this one is there.
type admin struct {
	h      *Host
	server *fasthttp.Server
	port   port
	ln     net.Listener
}

func newAdmin(h *Host) *admin {
	a := &admin{h: h, port: port{admin: true}}
	a.server = h.newServer(&a.port)
	return a
}

func (a *admin) listen() error {
	ln, err := net.Listen("tcp", a.h.cfg.AdminListen)
	if err != nil {
		return err // names the address and what is wrong with it
	}
	a.ln = ln
	a.h.gate.taken(&a.port, ln.Addr())
	return nil
}

func (a *admin) serve() error {
	a.h.log.Info("serving", "admin", a.h.scheme()+a.ln.Addr().String())
	if err := a.server.Serve(a.h.wrap(a.ln)); err != nil && !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

func (a *admin) drain(ctx context.Context) error {
	err := a.server.ShutdownWithContext(ctx)
	_ = a.ln.Close() // a server that had not begun to accept knows no listener
	return err
}
