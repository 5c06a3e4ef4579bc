// SPDX-License-Identifier: Apache-2.0

package trial

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"
)

// ChildEnv is set for a child; nothing but a test's binary looks at it.
const ChildEnv = "KINDEX_TRIAL"

// maxOutput bounds what a child may print.
const maxOutput = 64 << 20

// Ran says how a child went.
type Ran struct {
	Output  []byte  // its standard output
	CPU     float64 // seconds, all of it
	Wall    float64 // seconds
	Foreign float64 // mean CPUs that others kept busy meanwhile
}

// Self starts this program anew with args and waits for it.
//
// Errors: ctx's; the child's last line of standard error, where it fails.
func Self(ctx context.Context, stderr io.Writer, args ...string) (Ran, error) {
	exe, err := os.Executable()
	if err != nil {
		return Ran{}, err
	}
	return Command(ctx, stderr, exe, args...)
}

// SelfInto is [Self] for a child that prints one JSON object, read into out.
func SelfInto(ctx context.Context, stderr io.Writer, out any, args ...string) (Ran, error) {
	ran, err := Self(ctx, stderr, args...)
	if err == nil {
		if err = json.Unmarshal(ran.Output, out); err != nil {
			err = fmt.Errorf("the trial's output: %w", err)
		}
	}
	return ran, err
}

// Command is [Self] for any program.
func Command(ctx context.Context, stderr io.Writer, exe string, args ...string) (Ran, error) {
	cmd := exec.CommandContext(ctx, exe, args...)
	cmd.Env = append(os.Environ(), ChildEnv+"=1")
	cmd.WaitDelay = 2 * time.Second
	out := limited{left: maxOutput}
	last := tail{to: stderr}
	cmd.Stdout, cmd.Stderr = &out, &last
	before, began := CPUs(), time.Now()
	err := cmd.Run()
	ran := Ran{Output: out.Bytes(), Wall: time.Since(began).Seconds()}
	if st := cmd.ProcessState; st != nil {
		ran.CPU = (st.UserTime() + st.SystemTime()).Seconds()
		ran.Foreign = before.Foreign(CPUs(), ran.CPU)
	}
	if ctx.Err() != nil {
		return ran, ctx.Err()
	}
	if err != nil {
		if line := last.line(); line != "" {
			err = fmt.Errorf("%s (%w)", line, err)
		}
		return ran, err
	}
	return ran, nil
}

// limited keeps a bounded output.
type limited struct {
	bytes.Buffer
	left int
}

func (l *limited) Write(b []byte) (int, error) {
	if l.left -= len(b); l.left < 0 {
		return 0, errors.New("output too long")
	}
	return l.Buffer.Write(b)
}

// tail passes on a child's standard error and remembers its end.
type tail struct {
	to  io.Writer
	end []byte
}

func (t *tail) Write(b []byte) (int, error) {
	t.end = append(t.end, b...)
	t.end = t.end[max(0, len(t.end)-4096):]
	if t.to != nil {
		return t.to.Write(b)
	}
	return len(b), nil
}

// line returns the last line that says something.
func (t *tail) line() string {
	lines := strings.Split(strings.TrimSpace(string(t.end)), "\n")
	return strings.TrimSpace(lines[len(lines)-1])
}
