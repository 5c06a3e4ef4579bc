// SPDX-License-Identifier: Apache-2.0

package shm

// WorkersQuestion is what is asked through the socket about workers, as JSON. Each
// part of the answer is an update as package lookup has them, as JSON.
type WorkersQuestion struct {
	Watch                bool // and all their changes from now on
	Model, Group, Tenant string
}
