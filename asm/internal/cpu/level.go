// SPDX-License-Identifier: Apache-2.0

package cpu

import (
	"fmt"
	"strings"
)

// Auto names the best level that is had.
const Auto = "auto"

// Names of the levels.
const (
	NameAVX512  = "avx512"
	NameAVX2    = "avx2"
	NameGeneric = "generic"
)

// All returns every level's name, the best first.
func All() []string { return []string{NameAVX512, NameAVX2, NameGeneric} }

// Had returns the names of the levels that are had, the best first.
func Had() []string {
	var had []string
	for _, name := range All() {
		if Lacks(name) == "" {
			had = append(had, name)
		}
	}
	return had
}

// Level returns the level in use.
func Level() string {
	switch {
	case AVX512:
		return NameAVX512
	case AVX2:
		return NameAVX2
	}
	return NameGeneric
}

// Check returns what keeps name from being set, nil when nothing does: one line
// with the forms that are right here.
func Check(name string) error {
	switch name {
	case Auto, NameGeneric:
		return nil
	case NameAVX512, NameAVX2:
		if why := Lacks(name); why != "" {
			return fmt.Errorf("%s: %s: use %s", name, why, or(append([]string{Auto}, Had()...)))
		}
		return nil
	}
	return fmt.Errorf("%q: must be %s", name, or(append([]string{Auto}, All()...)))
}

// Set makes name the level, [Auto] the best that is had.
//
// Concurrency: nothing else of this module may be running: the level is read
// without synchronisation.
// Errors: as [Check]; the level is then unchanged.
func Set(name string) error {
	if err := Check(name); err != nil {
		return err
	}
	if name == Auto {
		name = Had()[0]
	}
	if name != Level() {
		set(name)
	}
	return nil
}

// or joins words with commas and a last "or".
func or(words []string) string {
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " or " + words[last]
}
