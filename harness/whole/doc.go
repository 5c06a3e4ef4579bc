// SPDX-License-Identifier: Apache-2.0

// Package whole starts all of a deployment on loopback and shows it live: mock engines,
// a relay beside each, an index host that the relays feed, a gateway that asks it over
// shared memory, and a trace of requests replayed against that, without end.
//
//	package openloop   the requests, and the oracle: what an ideal router would reuse
//	gateway            a worker for each request
//	mock engines       answers, and events of what they cache
//	relay, index host  the events, back to the gateway's lookups
//
// Before a real fleet it starts the gateway alone, with the index in it, and sends
// nothing: the table is of the fleet's own requests.
//
// Every program is a child that ends with this one; ports that are taken are replaced by
// free ones.
package whole
