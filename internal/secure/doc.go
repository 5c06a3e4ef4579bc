// SPDX-License-Identifier: Apache-2.0

// Package secure says who may ask a server: its certificate, the authorities whose
// clients it takes, and bearer tokens, each with a role. All of it lies in files
// that are read again when they change, so that nothing needs a restart.
//
// No token stands in any error, log line or value that leaves this package.
package secure
