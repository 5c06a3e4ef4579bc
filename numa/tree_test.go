// SPDX-License-Identifier: Apache-2.0

package numa

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// gone, as a file's text in an edit, takes the file away.
const gone = "\x00"

// readTree returns the files of a captured tree: a text with lines such as
// "-- sys/devices/system/node/online --" before each file's content.
func readTree(t testing.TB, name string) map[string]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name+".txt"))
	if err != nil {
		t.Fatal(err)
	}
	files, at := map[string]string{}, ""
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "-- "); ok {
			if file, ok := strings.CutSuffix(strings.TrimSpace(rest), " --"); ok {
				at = file
				files[at] = ""
				continue
			}
		}
		if at != "" {
			files[at] += line
		}
	}
	if len(files) == 0 {
		t.Fatalf("testdata/%s.txt holds no files", name)
	}
	return files
}

// plantTree writes the captured tree, with edits on top, below a new root.
func plantTree(t testing.TB, name string, edits map[string]string) string {
	t.Helper()
	root := t.TempDir()
	files := map[string]string{}
	if name != "" {
		files = readTree(t, name)
	}
	maps.Copy(files, edits)
	for file, text := range files {
		if text == gone {
			continue
		}
		path := filepath.Join(root, file)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}
