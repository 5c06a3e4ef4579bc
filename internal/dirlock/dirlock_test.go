// SPDX-License-Identifier: Apache-2.0

package dirlock

import (
	"errors"
	"path/filepath"
	"testing"
)

func TestTake(t *testing.T) {
	dir := t.TempDir()
	first, err := Take(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Take(dir); !errors.Is(err, ErrTaken) {
		t.Errorf("taken twice: got %v, want ErrTaken", err)
	}
	if err := first.Give(); err != nil {
		t.Fatal(err)
	}
	again, err := Take(dir)
	if err != nil {
		t.Fatalf("once it was given back: %v", err)
	}
	if err := again.Give(); err != nil {
		t.Error(err)
	}
	if _, err := Take(filepath.Join(dir, "nowhere")); err == nil || errors.Is(err, ErrTaken) {
		t.Errorf("no directory: got %v", err)
	}
}
