// SPDX-License-Identifier: Apache-2.0

package series

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

const (
	planFile   = "series.json"
	trialsFile = "trials.jsonl"
	lockFile   = "lock"
	maxTrials  = 256 << 20 // bytes of trialsFile
)

// store keeps a series' trials.
type store struct {
	f      *os.File
	lock   string // file that keeps others out
	trials []Trial
}

// openStore makes dir a series of p, or goes on with the one that is there.
func openStore(dir string, p *Plan) (*store, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	want, err := json.MarshalIndent(p, "", "  ")
	if err != nil {
		return nil, err
	}
	want = append(want, '\n')
	lock, err := lockDir(dir)
	if err != nil {
		return nil, err
	}
	s := &store{lock: lock}
	if err := s.open(dir, want); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// lockDir keeps other series out of dir until the file that it returns is removed. What
// a killed one left is taken over.
func lockDir(dir string) (string, error) {
	name := filepath.Join(dir, lockFile)
	for range 2 {
		f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644) //nolint:gosec // to be read
		if err == nil {
			_, err = fmt.Fprintf(f, "%d\n", os.Getpid())
			return name, errors.Join(err, f.Close())
		}
		if !errors.Is(err, os.ErrExist) {
			return "", err
		}
		holder, err := os.ReadFile(name)
		if err != nil {
			continue // gone meanwhile
		}
		pid := strings.TrimSpace(string(holder))
		if _, err := os.Stat(filepath.Join("/proc", pid)); pid == "" || err == nil {
			return "", fmt.Errorf("%s is in use by process %s: wait for it or give another --out", dir, pid)
		}
		if err := os.Remove(name); err != nil {
			return "", err
		}
	}
	return "", fmt.Errorf("%s: taken by somebody else", name)
}

// open opens or begins the series in dir, whose plan is want.
func (s *store) open(dir string, want []byte) error {
	name := filepath.Join(dir, planFile)
	switch have, err := os.ReadFile(name); {
	case errors.Is(err, os.ErrNotExist):
		if err := os.WriteFile(name, want, 0o644); err != nil { //nolint:gosec // to be read
			return err
		}
	case err != nil:
		return err
	case !bytes.Equal(have, want):
		return fmt.Errorf("%s is of another series (other corpus, arms, modes, seed or settings): give the same or another --out", name)
	}
	f, err := os.OpenFile(filepath.Join(dir, trialsFile), os.O_RDWR|os.O_CREATE, 0o644) //nolint:gosec // to be read
	if err != nil {
		return err
	}
	s.f = f
	return s.load()
}

// load reads the trials. A last line that was cut when the program died is taken off.
func (s *store) load() error {
	data, err := io.ReadAll(io.LimitReader(s.f, maxTrials+1))
	if err != nil {
		return err
	}
	if len(data) > maxTrials {
		return fmt.Errorf("%s has over %d bytes: begin another series with --out", s.f.Name(), maxTrials)
	}
	whole := bytes.LastIndexByte(data, '\n') + 1
	for n, line := range bytes.Split(data[:whole], []byte("\n")) {
		if len(line) == 0 {
			continue
		}
		var t Trial
		if err := json.Unmarshal(line, &t); err != nil {
			return fmt.Errorf("%s:%d: %w", s.f.Name(), n+1, err)
		}
		s.trials = append(s.trials, t)
	}
	if err := s.f.Truncate(int64(whole)); err != nil {
		return err
	}
	_, err = s.f.Seek(int64(whole), io.SeekStart)
	return err
}

// add appends one trial.
func (s *store) add(t Trial) error {
	line, err := json.Marshal(t)
	if err != nil {
		return err
	}
	if _, err := s.f.Write(append(line, '\n')); err != nil {
		return err
	}
	s.trials = append(s.trials, t)
	return nil
}

// close ends the file; once.
func (s *store) close() error {
	var errs []error
	if s.f != nil {
		errs = append(errs, s.f.Close())
	}
	if s.lock != "" {
		errs = append(errs, os.Remove(s.lock))
	}
	s.f, s.lock = nil, ""
	return errors.Join(errs...)
}
