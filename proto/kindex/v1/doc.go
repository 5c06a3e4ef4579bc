// SPDX-License-Identifier: Apache-2.0

// Package kindexv1 is the index host's contract over gRPC, generated from the
// files beside it.
package kindexv1
