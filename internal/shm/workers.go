// SPDX-License-Identifier: Apache-2.0

package shm

// WorkersQuestion is what is asked through the socket about workers, as JSON. Each
// part of the answer is an update as package lookup has them, as JSON; of loads it is a
// message of kindex.v1's WatchLoads.
type WorkersQuestion struct {
	Watch                bool // and all their changes from now on
	Loads                bool // in place of the workers how their ranks stand, and all changes
	Model, Group, Tenant string
}
