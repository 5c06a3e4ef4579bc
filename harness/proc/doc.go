// SPDX-License-Identifier: Apache-2.0

// Package proc starts the build's programs, and others, as children that end with their
// parent, and reads what they cost.
package proc
