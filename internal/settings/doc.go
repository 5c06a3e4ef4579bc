// SPDX-License-Identifier: Apache-2.0

// Package settings reads what a program is told: flags, and a YAML file whose keys
// are the flags' names. A setting checks what it is given, so that a fault is found
// and named where it was made; all faults are told at once, each in one line.
package settings
