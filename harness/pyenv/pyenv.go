// SPDX-License-Identifier: Apache-2.0

package pyenv

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"

	"kindex/harness/trial"
)

// SMG is the released peer whose relay and gateway are measured beside ours. Its wheel
// names kernels and engines as requirements that neither needs. The tests of
// harness/interop make the same environment in the same folder.
var SMG = Environment{
	Name: "smg-1.13.0", Package: "smg==1.13.0",
	Needs: []string{"setproctitle==1.3.8", "grpcio==1.85.3", "grpcio-health-checking==1.85.1", "pyyaml==6.0.4"},
}

// Dynamo is the field's own indexer. It needs what its wheel says: named again, the
// package brings that along. The tests of harness/interop make the same environment in
// the same folder.
var Dynamo = Environment{
	Name: "dynamo-1.6.1", Package: "ai-dynamo-runtime==1.6.1", Needs: []string{"ai-dynamo-runtime==1.6.1"},
}

// Environment is what goes into one folder of the cache.
type Environment struct {
	Name    string // of the folder
	Package string // taken without what it requires
	Needs   []string
}

// install makes $1, unless it is complete, and never two at a time. The package and its
// needs follow.
const install = `set -eu
env=$1; shift
[ -e "$env/complete" ] && exit 0
python=$(command -v python3.11 || command -v python3) || { echo "no python3 on PATH" >&2; exit 1; }
find "$env" -mindepth 1 -delete
"$python" -m venv "$env"
"$env/bin/python" -m pip install -q --no-deps "$1"; shift
"$env/bin/python" -m pip install -q "$@"
: >"$env/complete"`

// Python returns the environment's interpreter, and makes it first if need be.
func (e Environment) Python(ctx context.Context) (string, error) {
	dir, err := trial.CacheDir(e.Name)
	if err != nil {
		return "", fmt.Errorf("%s: %w", e.Name, err)
	}
	args := append([]string{dir + ".lock", "sh", "-c", install, "sh", dir, e.Package}, e.Needs...)
	cmd := exec.CommandContext(ctx, "flock", args...) //nolint:gosec // pinned packages of ours
	if out, err := cmd.CombinedOutput(); err != nil {
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		return "", fmt.Errorf("%s cannot be installed here: %s (%w)", e.Name, lines[len(lines)-1], err)
	}
	return filepath.Join(dir, "bin", "python"), nil
}
