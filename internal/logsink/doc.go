// SPDX-License-Identifier: Apache-2.0

// Package logsink is the log of a server: lines never wait for whoever reads them.
package logsink
