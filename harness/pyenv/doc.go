// SPDX-License-Identifier: Apache-2.0

// Package pyenv makes Python environments with one pinned peer each, once, in the
// harness's cache. Where a package index cannot be reached, that is an error in one line.
package pyenv
