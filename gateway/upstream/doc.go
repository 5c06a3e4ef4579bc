// SPDX-License-Identifier: Apache-2.0

// Package upstream speaks HTTP/1.1 to workers.
//
// It keeps connections of its own, a pool for each registration of a worker, for
// three things that a general client does not do: a request is aborted at once by
// closing its connection, also before the first byte of the answer; an idle connection
// that the worker has closed meanwhile is told from a worker that is gone; and what
// arrives is handed on as it comes. The messages' heads are fasthttp's to parse.
//
// # Faults
//
// Every error of [Client.Do] and [Response.Read] but [io.EOF] is an [*Error], whose
// kind says what may be done about it. A request is sent a second time by this
// package in one case only: it went out on a connection that had been idle, which
// ended before any byte of an answer and too soon for the worker to have worked on it.
package upstream
