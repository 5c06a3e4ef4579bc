// SPDX-License-Identifier: Apache-2.0

// Package archtest keeps the boundaries of this module: who may import whom,
// where unsafe code and system calls live, how long a file may grow. Each rule
// is a table entry with its reason; each exception is one too.
//
// A build that breaks a rule is mended in the code. The tables change only with
// the design they describe (ARCHITECTURE.md).
package archtest
