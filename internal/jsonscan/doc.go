// SPDX-License-Identifier: Apache-2.0

// Package jsonscan reads JSON from front to back without building values, for bodies
// that are long and of which little is wanted.
package jsonscan
