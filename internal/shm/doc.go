// SPDX-License-Identifier: Apache-2.0

// Package shm carries lookups between processes of one machine through memory that
// both have mapped.
package shm
