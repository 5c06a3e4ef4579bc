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
)

const (
	planFile   = "series.json"
	trialsFile = "trials.jsonl"
	maxTrials  = 256 << 20 // bytes of trialsFile
)

// store keeps a series' trials.
type store struct {
	f      *os.File
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
	name := filepath.Join(dir, planFile)
	switch have, err := os.ReadFile(name); {
	case errors.Is(err, os.ErrNotExist):
		if err := os.WriteFile(name, want, 0o644); err != nil { //nolint:gosec // to be read
			return nil, err
		}
	case err != nil:
		return nil, err
	case !bytes.Equal(have, want):
		return nil, fmt.Errorf("%s is of another series (other corpus, arms, modes, seed or settings): give the same or another --out", name)
	}
	f, err := os.OpenFile(filepath.Join(dir, trialsFile), os.O_RDWR|os.O_CREATE, 0o644) //nolint:gosec // to be read
	if err != nil {
		return nil, err
	}
	s := &store{f: f}
	if err := s.load(); err != nil {
		_ = f.Close()
		return nil, err
	}
	return s, nil
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
	if s.f == nil {
		return nil
	}
	err := s.f.Close()
	s.f = nil
	return err
}
