// SPDX-License-Identifier: Apache-2.0

// Package enroll finds out what stands behind the URL of a worker: whether it speaks
// HTTP or gRPC, which engine it is, which models and adapters it serves, how many
// data-parallel ranks and how large blocks it has, where its cache's events come from.
//
// An engine that boots is asked again and again, with a growing pause; why it is not
// there yet is to be seen at its registration. One that serves is asked again from time
// to time and when it comes back after an absence: who turned out to be another engine
// joins anew, so that nothing that was known of the old one is held against it.
//
// What a registration says is never overruled by what its engine says.
package enroll
