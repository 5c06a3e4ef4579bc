// SPDX-License-Identifier: Apache-2.0

package settings

import (
	"fmt"
	"log/slog"
	"math"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Option is one setting: how it is called, read and shown. Set checks what it is
// given and changes nothing where it refuses.
type Option struct {
	Name, Usage string
	Value       func() string
	Set         func(string) error
}

// IsBool reports whether o may stand without a value, for true.
func (o *Option) IsBool() bool { return o.Value() == "true" || o.Value() == "false" }

// Faults sets each option to what it is already: what a program set by itself
// passes the same checks.
func Faults(options []Option) []error {
	var faults []error
	for _, o := range options {
		if err := o.Set(o.Value()); err != nil {
			faults = append(faults, fmt.Errorf("%s: %w", o.Name, err))
		}
	}
	return faults
}

// Parsed is set to what parse makes of a text; p's String is what it shows.
func Parsed[T fmt.Stringer](name, usage string, p *T, parse func(string) (T, error)) Option {
	return Option{name, usage, func() string { return (*p).String() }, func(s string) error {
		v, err := parse(s)
		if err == nil {
			*p = v
		}
		return err
	}}
}

// Text takes what check, which may be nil, does not refuse.
func Text(name, usage string, p *string, check func(string) error) Option {
	return Option{name, usage, func() string { return *p }, func(s string) error {
		if check != nil {
			if err := check(s); err != nil {
				return err
			}
		}
		*p = s
		return nil
	}}
}

// Toggle takes true and false.
func Toggle(name, usage string, p *bool) Option {
	return Option{name, usage, func() string { return strconv.FormatBool(*p) }, func(s string) error {
		if s != "true" && s != "false" {
			return fmt.Errorf("%q must be true or false", s)
		}
		*p = s == "true"
		return nil
	}}
}

// OneOf returns why s is none of the texts; "" is left to the caller.
func OneOf(s string, of []string) error {
	if s == "" || slices.Contains(of, s) {
		return nil
	}
	return fmt.Errorf("%.100q: must be one of %s", s, strings.Join(of, ", "))
}

// Choice takes one of some texts.
func Choice(name, usage string, p *string, of []string) Option {
	return Text(name, usage, p, func(s string) error {
		if s == "" {
			return fmt.Errorf("must be one of %s", strings.Join(of, ", "))
		}
		return OneOf(s, of)
	})
}

// Count takes an integer from lo to hi.
func Count(name, usage string, p *int, lo, hi int) Option {
	return Option{name, usage, func() string { return strconv.Itoa(*p) }, func(s string) error {
		n, err := strconv.Atoi(s)
		if err != nil || n < lo || n > hi {
			return fmt.Errorf("%q must be an integer from %d to %d", s, lo, hi)
		}
		*p = n
		return nil
	}}
}

// Size takes bytes from lo to hi: plain numbers, and KiB, MiB, GiB, TiB.
func Size(name, usage string, p *int64, lo, hi int64) Option {
	return Option{name, usage, func() string { return FormatSize(*p) }, func(s string) error {
		n, ok := ParseSize(s)
		if !ok || n < lo || n > hi {
			return fmt.Errorf("%q must be %s to %s, with or without KiB, MiB, GiB", s, FormatSize(lo), FormatSize(hi))
		}
		*p = n
		return nil
	}}
}

// Span takes a duration from lo to hi.
func Span(name, usage string, p *time.Duration, lo, hi time.Duration) Option {
	return Option{name, usage, func() string { return p.String() }, func(s string) error {
		d, err := time.ParseDuration(s)
		if err != nil || d < lo || d > hi {
			return fmt.Errorf("%q must be a duration from %s to %s, such as 1.5s", s, lo, hi)
		}
		*p = d
		return nil
	}}
}

// Number takes a decimal number from lo to hi.
func Number(name, usage string, p *float64, lo, hi float64) Option {
	return Option{name, usage, func() string { return formatNumber(*p) }, func(s string) error {
		v, err := parseNumber(s, lo, hi)
		if err == nil {
			*p = v
		}
		return err
	}}
}

// Seconds takes a duration from lo to hi as a decimal number of seconds; what is below
// a nanosecond is rounded.
func Seconds(name, usage string, p *time.Duration, lo, hi time.Duration) Option {
	return Option{name, usage, func() string { return formatNumber(p.Seconds()) }, func(s string) error {
		v, err := parseNumber(s, lo.Seconds(), hi.Seconds())
		if err == nil {
			*p = time.Duration(math.Round(v * float64(time.Second)))
		}
		return err
	}}
}

func formatNumber(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }

func parseNumber(s string, lo, hi float64) (float64, error) {
	v, err := strconv.ParseFloat(s, 64)
	if err != nil || !(v >= lo && v <= hi) {
		return 0, fmt.Errorf("%q must be a number from %s to %s", s, formatNumber(lo), formatNumber(hi))
	}
	return v, nil
}

// MaybeAddress takes host:port, and nothing.
func MaybeAddress(name, usage string, p *string) Option {
	return Text(name, usage, p, func(s string) error {
		if s == "" {
			return nil
		}
		return CheckAddress(s)
	})
}

// Address takes host:port.
func Address(name, usage string, p *string) Option {
	return Text(name, usage, p, CheckAddress)
}

// CheckAddress returns why s is no host:port to listen on.
func CheckAddress(s string) error {
	_, port, err := net.SplitHostPort(s)
	if err != nil {
		return fmt.Errorf("%q must be host:port", s)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 && port != "0" {
		return fmt.Errorf("%q: the port must be 0 to 65535", s)
	}
	return nil
}

// LogLevel takes debug, info, warn and error.
func LogLevel(name string, p *slog.Level) Option {
	levels := [...]slog.Level{slog.LevelDebug, slog.LevelInfo, slog.LevelWarn, slog.LevelError}
	return Option{name, "debug, info, warn, error", func() string { return strings.ToLower(p.String()) }, func(s string) error {
		for _, l := range levels {
			if strings.EqualFold(s, l.String()) {
				*p = l
				return nil
			}
		}
		return fmt.Errorf("%q must be one of debug, info, warn, error", s)
	}}
}

var sizeUnits = [...]string{"", "KiB", "MiB", "GiB", "TiB"}

// ParseSize reads what [FormatSize] writes, and any whole number of a unit.
func ParseSize(s string) (int64, bool) {
	for i := len(sizeUnits) - 1; i >= 0; i-- {
		digits, ok := strings.CutSuffix(s, sizeUnits[i])
		if !ok {
			continue
		}
		n, err := strconv.ParseUint(strings.TrimSpace(digits), 10, 63)
		if err != nil || n > math.MaxInt64>>(10*i) {
			return 0, false
		}
		return int64(n) << (10 * i), true
	}
	return 0, false
}

// FormatSize writes n bytes in the greatest unit that leaves a whole number.
func FormatSize(n int64) string {
	unit := 0
	for unit < len(sizeUnits)-1 && n != 0 && n%1024 == 0 {
		n /= 1024
		unit++
	}
	return strconv.FormatInt(n, 10) + sizeUnits[unit]
}
