// SPDX-License-Identifier: Apache-2.0

// Package load asks workers for their load where nobody pushes it.
//
// A worker whose holders all have a pushed reading younger than the interval is not
// asked. The others are, each at its own phase, so that many of them are no storm: over
// HTTP for whatever of /metrics, /v1/loads and /get_load answers, over gRPC for
// GetLoads. A few are asked at once at most; who fails is asked less and less often, and
// who is down not until he is back.
//
// An answer becomes a reading of each holder, as old as the question or as the answer
// says. What it does not say is negative: nobody takes it for 0. Who does not answer
// keeps the reading he had, whose age grows.
package load
