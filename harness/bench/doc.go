// SPDX-License-Identifier: Apache-2.0

// Package bench measures what an index host costs: CPU time from a frame to the
// index, the time of a lookup, memory for each membership.
//
// # Method
//
// CPU time is that of the one measuring thread, so that other load on the machine
// shows as little as it can; lookups are timed one by one by the monotonic clock.
// Every figure is taken several times with a fresh index and told as the median
// with the least and the greatest. Inputs come from a seed.
package bench
