// SPDX-License-Identifier: Apache-2.0

// Package decide measures how long the gateway takes to decide: who holds a prompt's
// blocks, by the gateway's own index, and which holder the policy names.
//
// The content is what the engines of a trace hold when it has been replayed (rule SIM1),
// announced over ZMQ; the questions are the trace's own prompts. One goroutine, locked to
// its thread, decides at a fixed rate, open loop; what is timed runs from the question's
// hashes to the named holder. A sample during which the thread lost its CPU says how busy
// the machine was, not how long a decision takes: it is dropped, and the share of those
// is told.
package decide
