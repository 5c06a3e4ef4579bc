// SPDX-License-Identifier: Apache-2.0

// Package policy names the holder that is given a request: values in, a holder out.
// It knows no network, and no clock but the time in the question.
//
// The default, cache_aware, weighs what a holder has of the prompt against what it has
// to do. What it reads of a holder becomes seconds, in parts that the record shows:
//
//	expected = cost * (ahead + pressure + own)
//	ahead    = requests*RequestTokens/throughput + tokens to prefill/PrefillRate
//	pressure = KVWeight * k/(1-k), k the share of the KV pool that cannot be evicted
//	own      = (prompt - cached)/PrefillRate, and the time to fetch what lies on the host
//
// PrefillRate is measured, see [fleet.Holder.PrefillRate]; the option holds until then.
//
// A request goes to the deepest holders of its prefix, unless they are under pressure:
// then a prefix is computed once more elsewhere. Where the overlap is thin it goes to
// the least expected time of the fleet, in which the overlap has its part.
//
// # Concurrency
//
// Decisions take no lock and read no state of other decisions: what was decided and is
// not in a reading yet is seen by the leases that it took, so a decision's lease is to
// be taken right after it. All methods may be called by any goroutine.
//
// # Cost
//
// Of at most [Options.Whole] holders all are read. Above that some draws stand for the
// fleet, and beside them only the deepest holders are read: 1,024 workers cost what 32
// do. Nothing is allocated.
package policy
