// SPDX-License-Identifier: Apache-2.0

// Package common is what the peer's engine contracts share, generated from
// common.proto.
package common
