// SPDX-License-Identifier: Apache-2.0

package corpus

import (
	"bytes"
	_ "embed"
	"fmt"
)

// BuiltIn is the name of the trace within this program, in place of a file's.
const BuiltIn = "conversation"

// builtInFile is the trace's published name.
const builtInFile = "conversation_trace.jsonl"

//go:embed traces/conversation_trace.jsonl.gz
var builtIn []byte

// BuiltInTrace returns the conversation trace that Mooncake published, and its name.
func BuiltInTrace() ([]Row, string, error) {
	rows, err := readTrace(bytes.NewReader(builtIn))
	if err != nil {
		return nil, "", fmt.Errorf("%s:%w", builtInFile, err)
	}
	return rows, builtInFile, nil
}
