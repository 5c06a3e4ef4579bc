// SPDX-License-Identifier: Apache-2.0

// Package memory measures what an index takes for each membership and for each distinct
// block: chains of blocks, each held whole by so many of the workers.
//
// # Workload
//
// Chain lengths are exponential about a mean, blocks and names come from the seed and
// the chain's number, holders are drawn for each chain. With private names every worker
// names blocks by a hash seed of its own, as engines do that were not given a common
// one. Nothing of the workload is kept, so that all memory that grew is the index's.
//
// First the index is filled to the memberships asked for. Then, turn by turn, the
// oldest chain is removed by all its holders, from its end as engines evict, and a new
// one stored: memory in use as well as what has become free and is not given back.
//
// # What is counted
//
//	accounts  the index's own, by purpose, what is free included
//	placed    memory outside the Go heap that this process may use (package numa)
//	go heap   growth of the live heap
//	resident  growth of what the kernel counts for this process
//
// bytes_per_membership and bytes_per_distinct_block are of what is resident, Go heap and
// all, or of the index's accounts where those say more; the greater of both moments.
// Resident memory is also what the program itself had not touched before, up to a
// megabyte, so that small indexes look bigger than they are. Placed memory may be more:
// of a region that is usable not all has been touched.
package memory
