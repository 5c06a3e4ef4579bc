// SPDX-License-Identifier: Apache-2.0

package trial

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// MaxDiscarded bounds the repeats of a trial on a busy machine.
const MaxDiscarded = 20

// ErrBusy is a machine on which a trial was discarded too often.
func ErrBusy(times int, maxForeign float64) error {
	return fmt.Errorf("discarded %d times for more than %.2g foreign CPUs: free the machine or raise --max-foreign", times, maxForeign)
}

// ticks is the unit of /proc/stat, hundredths of a second on every Linux of ours.
const ticks = 100

// CPUSample is what all CPUs, and this process, had done at one moment.
type CPUSample struct {
	at   time.Time
	busy float64 // seconds of all CPUs; of this machine's host, too, what it took away
	own  float64 // of them this process's
	ok   bool
}

// CPUs reads a sample. Where there is no /proc/stat, foreign load is told as 0.
func CPUs() CPUSample {
	s := CPUSample{at: time.Now()}
	if b, err := os.ReadFile("/proc/stat"); err == nil {
		line, _, _ := strings.Cut(string(b), "\n")
		s.busy, s.ok = busy(line)
	}
	if b, err := os.ReadFile("/proc/self/stat"); err == nil {
		s.own = own(string(b))
	}
	return s
}

// busy sums user, nice, system, irq, softirq and steal of /proc/stat's first line.
func busy(line string) (float64, bool) {
	f := strings.Fields(line)
	if len(f) < 9 || f[0] != "cpu" {
		return 0, false
	}
	sum := 0.0
	for _, i := range [...]int{1, 2, 3, 6, 7, 8} {
		n, err := strconv.ParseUint(f[i], 10, 64)
		if err != nil {
			return 0, false
		}
		sum += float64(n)
	}
	return sum / ticks, true
}

// own reads a process's user and system time out of its stat file.
func own(stat string) float64 {
	// The second field is a name in parentheses that may hold anything.
	_, rest, ok := strings.Cut(stat[max(0, strings.LastIndexByte(stat, ')')):], ") ")
	f := strings.Fields(rest)
	if !ok || len(f) < 13 {
		return 0
	}
	u, _ := strconv.ParseUint(f[11], 10, 64)
	s, _ := strconv.ParseUint(f[12], 10, 64)
	return float64(u+s) / ticks
}

// Foreign returns the mean CPUs that were busy from s to later with neither this
// process nor children that used children seconds.
func (s CPUSample) Foreign(later CPUSample, children float64) float64 {
	wall := later.at.Sub(s.at).Seconds()
	if !s.ok || !later.ok || wall <= 0 {
		return 0
	}
	return max(0, (later.busy-s.busy-(later.own-s.own)-children)/wall)
}
