// SPDX-License-Identifier: Apache-2.0

// Package dirlock keeps a directory for one process.
package dirlock
