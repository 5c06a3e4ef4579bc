// SPDX-License-Identifier: Apache-2.0

// Package gateway is the gateway program: an OpenAI-compatible proxy before a fleet of
// engines. It joins the parts that lie below it, each in a package of its own, and
// serves them over HTTP.
//
// A request's way: the front reads it, the gate admits it, the router finds its tokens,
// asks the index who holds them, decides and takes a lease; the front sends it to the
// worker and passes the answer through; what became of it is told to all who asked to
// know.
package gateway
