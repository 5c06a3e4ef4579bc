// SPDX-License-Identifier: Apache-2.0

// Package relay turns the event sockets of inference engines into streams that
// lose nothing and can be resumed.
//
// An [Engine] has one [Rank] per data-parallel rank of the engine. A rank is the
// sink of one admission feed (package feed): it decodes each batch in the
// publisher's order, keeps the live content (package live), and puts the batch,
// encoded once for every contract, into its history. Any number of
// [Subscription]s read the histories, each at its own position. A subscription
// has no queue: one that falls behind what the history keeps gets the state
// instead, as a snapshot that ends exactly at a position of the history, or an
// error where its contract knows no snapshot in band. So the memory of a relay is
// bounded whatever its subscribers do.
//
// The lives of content are told apart by epochs. A restart of the publisher and
// a resynchronisation from its replay each begin an epoch; epochs only grow, over
// restarts of the relay, too, as long as the clock does not go back.
package relay
