// SPDX-License-Identifier: Apache-2.0

package live

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"
)

// stopTime is how long a program may take to end when told to.
const stopTime = 10 * time.Second

// process is one started program.
type process struct {
	name  string
	cmd   *exec.Cmd
	stdin io.WriteCloser
	out   io.ReadCloser
	log   tail
	done  chan struct{} // closed when it ended
	err   error         // how, once done is closed
}

// tail keeps the end of what a program wrote to standard error.
type tail struct {
	mu  sync.Mutex
	buf []byte
}

const tailBytes = 8 << 10

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, p...)
	if extra := len(t.buf) - tailBytes; extra > 0 {
		t.buf = append(t.buf[:0], t.buf[extra:]...)
	}
	return len(p), nil
}

// last returns the last line.
func (t *tail) last() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	b := bytes.TrimSpace(t.buf)
	return string(b[bytes.LastIndexByte(b, '\n')+1:])
}

// start starts a program of the build. talk opens its standard input and output;
// the program must then end when its input does.
func start(bin, name string, talk bool, args ...string) (*process, error) {
	p := &process{name: name, cmd: exec.Command(filepath.Join(bin, name), args...), done: make(chan struct{})} //nolint:gosec // our own program
	p.cmd.Stderr = &p.log
	ownGroup(p.cmd)
	var err error
	if talk {
		if p.stdin, err = p.cmd.StdinPipe(); err != nil {
			return nil, err
		}
		if p.out, err = p.cmd.StdoutPipe(); err != nil {
			return nil, err
		}
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	if !talk {
		go p.wait()
	}
	return p, nil
}

// ownGroup puts the program into a process group of its own, so that a terminal's
// Ctrl-C reaches this program alone, which then ends the others in order.
func ownGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = newLike(cmd.SysProcAttr)
	cmd.SysProcAttr.Setpgid = true
}

func newLike[T any](*T) *T { return new(T) }

// wait waits for the end. Where the program's output is read, the reader calls
// it once it has read all.
func (p *process) wait() {
	p.err = p.cmd.Wait()
	close(p.done)
}

// ended returns an error that says why the program ended, if it has.
func (p *process) ended() error {
	select {
	case <-p.done:
		return fmt.Errorf("%s ended: %w: %s", p.name, orEnd(p.err), p.log.last())
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

// stop tells the program to end and waits, and kills it when that takes too long.
func (p *process) stop() error {
	if p.ended() == nil {
		_ = p.cmd.Process.Signal(os.Interrupt)
	}
	ctx, cancel := context.WithTimeout(context.Background(), stopTime)
	defer cancel()
	select {
	case <-p.done:
	case <-ctx.Done():
		_ = p.cmd.Process.Kill()
		<-p.done
		return fmt.Errorf("%s did not end within %v", p.name, stopTime)
	}
	if p.err != nil {
		return fmt.Errorf("%s: %w: %s", p.name, p.err, p.log.last())
	}
	return nil
}
