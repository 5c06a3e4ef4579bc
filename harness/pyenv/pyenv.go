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

// SMG is the released peer whose relay and gateway are measured beside ours.
var SMG = Environment{Name: "smg-1.13.0", Packages: []string{"smg==1.13.0"}}

// Environment is what goes into one folder of the cache.
type Environment struct {
	Name     string // of the folder
	Packages []string
}

// install makes $1, unless it is complete, and never two at a time. The packages follow.
const install = `set -eu
env=$1; shift
[ -e "$env/complete" ] && exit 0
python=$(command -v python3.11 || command -v python3) || { echo "no python3 on PATH" >&2; exit 1; }
find "$env" -mindepth 1 -delete
"$python" -m venv "$env"
"$env/bin/python" -m pip install -q "$@"
: >"$env/complete"`

// Python returns the environment's interpreter, and makes it first if need be.
func (e Environment) Python(ctx context.Context) (string, error) {
	dir, err := trial.CacheDir(e.Name)
	if err != nil {
		return "", fmt.Errorf("%s: %w", e.Name, err)
	}
	args := append([]string{dir + ".lock", "sh", "-c", install, "sh", dir}, e.Packages...)
	cmd := exec.CommandContext(ctx, "flock", args...) //nolint:gosec // pinned packages of ours
	if out, err := cmd.CombinedOutput(); err != nil {
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		return "", fmt.Errorf("%s cannot be installed here: %s (%w)", e.Name, lines[len(lines)-1], err)
	}
	return filepath.Join(dir, "bin", "python"), nil
}
