// SPDX-License-Identifier: Apache-2.0

package peers

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"

	"kindex/harness/trial"
)

//go:embed index-peers/Cargo.toml index-peers/Cargo.lock index-peers/rustfmt.toml index-peers/src/*.rs
var sources embed.FS

const program = "index-peers"

// ErrNoCargo is a machine that cannot build the peers.
var ErrNoCargo = errors.New("cargo is missing: the peers are Rust crates; install Rust 1.95 or later (and a C compiler), or name a built index-peers with --peers-bin")

// Version names the sources.
func Version() (string, error) {
	h := sha256.New()
	err := fs.WalkDir(sources, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := sources.ReadFile(name)
		if err != nil {
			return err
		}
		fmt.Fprintf(h, "%s %d\n", name, len(data))
		h.Write(data)
		return nil
	})
	return hex.EncodeToString(h.Sum(nil))[:12], err
}

// Build returns the path of index-peers, built into the cache folder if it is not
// there: a minute on two free cores, then nothing.
//
// Errors: [ErrNoCargo]; what cargo says last.
func Build(ctx context.Context, p *trial.Progress, stderr io.Writer) (string, error) {
	version, err := Version()
	if err != nil {
		return "", err
	}
	dir, err := trial.CacheDir(program)
	if err != nil {
		return "", err
	}
	exe := filepath.Join(dir, version, program)
	if _, err := os.Stat(exe); err == nil {
		return exe, nil
	}
	cargo, err := findCargo()
	if err != nil {
		return "", err
	}
	src := filepath.Join(dir, version, "src")
	if err := unpack(src); err != nil {
		return "", err
	}
	target := filepath.Join(dir, "target")
	p.Alwaysf("building %s with %s, once", program, cargo)
	if _, err := trial.Command(ctx, stderr, cargo, "build", "--release", "--locked", "--manifest-path", filepath.Join(src, "Cargo.toml"), "--target-dir", target); err != nil {
		return "", fmt.Errorf("building %s: %w", program, err)
	}
	built, err := os.ReadFile(filepath.Join(target, "release", program))
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(exe+".part", built, 0o755); err != nil { //nolint:gosec // a program
		return "", err
	}
	return exe, os.Rename(exe+".part", exe)
}

// findCargo looks on PATH and where rustup puts it.
func findCargo() (string, error) {
	if name, err := exec.LookPath("cargo"); err == nil {
		return name, nil
	}
	if home, err := os.UserHomeDir(); err == nil {
		if name, err := exec.LookPath(filepath.Join(home, ".cargo", "bin", "cargo")); err == nil {
			return name, nil
		}
	}
	return "", ErrNoCargo
}

// unpack writes the sources below dir.
func unpack(dir string) error {
	root, err := fs.Sub(sources, program)
	if err != nil {
		return err
	}
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	return os.CopyFS(dir, root)
}

// Indexers are the peers' names, as index-peers knows them.
var Indexers = []string{"crtc", "smg-chain", "smg-chain-sharded", "smg-positional", "dynamo-positional", "dynamo-radix"}

// Known reports whether name is one of Indexers.
func Known(name string) bool { return slices.Contains(Indexers, name) }
