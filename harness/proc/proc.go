// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// stopTime is how long a program may take to end when told to.
const stopTime = 10 * time.Second

// Process is one started program.
//
// Concurrency: Wait is one goroutine's; everything else is anybody's.
type Process struct {
	Name  string
	Stdin io.WriteCloser // of a program that talks; else nil
	Out   io.ReadCloser  // the same
	Log   Tail           // the end of its standard error
	cmd   *exec.Cmd
	done  chan struct{} // closed when it ended
	err   error         // how, once done is closed
}

// Tail keeps the end of what a program wrote.
type Tail struct {
	mu  sync.Mutex
	buf []byte
}

const tailBytes = 8 << 10

// Write implements [io.Writer].
func (t *Tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, p...)
	if extra := len(t.buf) - tailBytes; extra > 0 {
		t.buf = append(t.buf[:0], t.buf[extra:]...)
	}
	return len(p), nil
}

// String returns all that is kept.
func (t *Tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.buf)
}

// Last returns the last line.
func (t *Tail) Last() string {
	b := strings.TrimSpace(t.String())
	return b[strings.LastIndexByte(b, '\n')+1:]
}

// Start starts a program that is not talked to, with env beside this one's.
func Start(path string, env []string, args ...string) (*Process, error) {
	p := newProcess(path, env, args)
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go p.Wait()
	return p, nil
}

// Talk starts a program whose standard input and output are open to the caller, who
// calls Wait once all of the output is read. The program must end when its input does.
func Talk(path string, args ...string) (*Process, error) {
	p := newProcess(path, nil, args)
	var err error
	if p.Stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if p.Out, err = p.cmd.StdoutPipe(); err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	return p, nil
}

func newProcess(path string, env, args []string) *Process {
	p := &Process{Name: filepath.Base(path), cmd: exec.Command(path, args...), done: make(chan struct{})} //nolint:gosec // programs of ours and of peers
	p.cmd.Stderr = &p.Log
	if len(env) > 0 {
		p.cmd.Env = append(os.Environ(), env...)
	}
	// A group of its own, so that a terminal's Ctrl-C reaches this program alone, which
	// then ends the others in order; and an end with its parent, whatever ends that.
	p.cmd.SysProcAttr = newLike(p.cmd.SysProcAttr)
	p.cmd.SysProcAttr.Setpgid = true
	p.cmd.SysProcAttr.Pdeathsig = 9
	return p
}

func newLike[T any](*T) *T { return new(T) }

// Wait waits for the end.
func (p *Process) Wait() {
	p.err = p.cmd.Wait()
	close(p.done)
}

// PID returns the process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done is closed once the program has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Ended returns an error that says why the program ended, if it has.
func (p *Process) Ended() error {
	select {
	case <-p.done:
		return fmt.Errorf("%s ended: %w: %s", p.Name, orEnd(p.err), p.Log.Last())
	default:
		return nil
	}
}

func orEnd(err error) error {
	if err == nil {
		return errors.New("exit status 0")
	}
	return err
}

// Stop tells the program to end and waits, and kills it when that takes too long.
func (p *Process) Stop() error {
	if p.Ended() == nil {
		_ = p.cmd.Process.Signal(os.Interrupt)
	}
	ctx, cancel := context.WithTimeout(context.Background(), stopTime)
	defer cancel()
	select {
	case <-p.done:
	case <-ctx.Done():
		p.Kill()
		return fmt.Errorf("%s did not end within %v", p.Name, stopTime)
	}
	if p.err != nil {
		return fmt.Errorf("%s: %w: %s", p.Name, p.err, p.Log.Last())
	}
	return nil
}

// Kill ends the program at once, as kill -9 does, and waits.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// Freeze stops the program where it is (SIGSTOP): its sockets stay, and nobody is behind
// them.
func (p *Process) Freeze() error { return p.signal(19) }

// Thaw lets it go on (SIGCONT).
func (p *Process) Thaw() error { return p.signal(18) }

// signal sends a signal by its number on Linux.
func (p *Process) signal(number int) error {
	if err := p.cmd.Process.Signal(typed(p.cmd.SysProcAttr.Pdeathsig, number)); err != nil {
		return fmt.Errorf("%s: signal %d: %w", p.Name, number, err)
	}
	return nil
}

// typed returns v as a T, whose package need not be named.
func typed[T ~int](_ T, v int) T { return T(v) }

// Until calls ok every few milliseconds until it holds, within d.
func Until(ctx context.Context, d time.Duration, ok func() bool) error {
	end := time.Now().Add(d)
	t := time.NewTicker(5 * time.Millisecond)
	defer t.Stop()
	for !ok() {
		if time.Now().After(end) {
			return fmt.Errorf("not within %v", d)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-t.C:
		}
	}
	return nil
}

// Find returns the path of one of the build's programs: beside this one, or below the
// working directory's bin.
//
// Errors: in one line, how to get it.
func Find(name string) (string, error) {
	var tried []string
	if exe, err := os.Executable(); err == nil {
		tried = append(tried, filepath.Join(filepath.Dir(exe), name))
	}
	tried = append(tried, filepath.Join("bin", name))
	for _, path := range tried {
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s is not there: make build makes it", tried[0])
}
