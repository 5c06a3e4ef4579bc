// SPDX-License-Identifier: Apache-2.0

// Package index is the index that a gateway asks who holds how much of a prompt: a
// host within the process, which follows the workers' event streams itself, or hosts
// elsewhere, over shared memory or gRPC.
//
// # Who is who
//
// A match names an instance and a rank. The instance is a worker's Spec.Instance, the
// id under which an embedded index registers it and under which somebody else must
// have registered it at a remote one; [fleet.Pool.Holder] finds the holder. The model
// of a question is a name of Spec.Models. A remote host must know the model by that
// name; an embedded one registers a worker under its first name and finds it by the
// others too.
//
// # Never slower than without it
//
// A lookup at remote hosts has [Options.Timeout]. What fails is counted by its reason
// and the caller goes on without the index. After a few failures in a row, or a
// failure in five, lookups are skipped: they return [ErrSkipped] at once, for a pause
// that grows from 100 ms to 5 s. A question of the index's own, asked aside, then
// tells whether it answers again, so that no request pays for finding out.
//
// # Loads and levels
//
// What engines and relays say of their load comes with their event streams. An
// embedded index hands it on, a remote one tells it over a call of its own; either
// way it becomes a [fleet.Reading], as old as it was when it was read, and a sign of
// life. With it comes how many blocks each holder has: its level.
package index
