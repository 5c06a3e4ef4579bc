// SPDX-License-Identifier: Apache-2.0

// Package indexclient asks an index who holds how much of a prompt: one interface,
// [Client], over an index in this process, over shared memory and over gRPC, of one
// host or of several.
//
//	c, err := indexclient.Dial(ctx, "index-a:8092|index-b:8092", indexclient.Options{})
//	...
//	var a indexclient.Answer // used again for every call
//	err = c.Lookup(ctx, &indexclient.Query{Model: "m", Tokens: prompt}, &a)
//
// # Targets
//
//	host:port    gRPC
//	unix:/path   shared memory, through the host's socket on this machine
//	a|b          replicas: each follows the same workers; one is asked, and the next
//	             where it fails
//	a,b          parts: workers are split over them; all are asked, and their answers
//	             united
//	a|b,c|d      parts of replicas
//
// # Errors
//
// Every error of a host is a [*HostError]: it says which one it was, and what kind
// of error. errors.Is finds the kind ([ErrInvalid] and so on) through it. A fault of
// the request itself is told by the first host that sees it and not asked again.
package indexclient
