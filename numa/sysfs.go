// SPDX-License-Identifier: Apache-2.0

package numa

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

const (
	nodeDir   = "sys/devices/system/node"
	cpuOnline = "sys/devices/system/cpu/online"
	status    = "proc/self/status"
	zoneinfo  = "proc/zoneinfo"
	// maxID bounds numbers, maxNodes those of nodes: what a kernel can be built for
	// (8,192 CPUs, 1,024 nodes). A larger one in a file is garbage.
	maxID    = 8191
	maxNodes = 1024
	// maxFile bounds what is read of one file.
	maxFile = 1 << 20
)

// set is a set of CPU or node numbers. nil means all.
type set []int

func (s set) has(n int) bool {
	if s == nil {
		return true
	}
	_, ok := slices.BinarySearch(s, n)
	return ok
}

// within reports whether all of s are among ns, ascending.
func (s set) within(ns []int) bool {
	for _, n := range s {
		if !set(ns).has(n) {
			return false
		}
	}
	return len(s) > 0
}

// String writes s as the kernel does: 0-3,8.
func (s set) String() string {
	if s == nil {
		return "all allowed"
	}
	return "allowed: " + formatList(s)
}

// formatList writes ascending numbers as the kernel does; "none" for none.
func formatList(ns []int) string {
	if len(ns) == 0 {
		return "none"
	}
	var b strings.Builder
	for i := 0; i < len(ns); {
		j := i
		for j+1 < len(ns) && ns[j+1] == ns[j]+1 {
			j++
		}
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(ns[i]))
		if j > i {
			b.WriteByte('-')
			b.WriteString(strconv.Itoa(ns[j]))
		}
		i = j + 1
	}
	return b.String()
}

// sysTree reads the kernel's files below a root.
type sysTree struct {
	root string
	live bool // root is this machine's
}

func newSysTree(root string) sysTree {
	return sysTree{root: root, live: filepath.Clean(root) == "/"}
}

func (s sysTree) path(name string) string { return filepath.Join(s.root, name) }

// isAbsent reports that a file is not there, or hidden from this process.
func isAbsent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission)
}

// text reads a whole small file.
func (s sysTree) text(name string) (string, error) {
	f, err := os.Open(s.path(name))
	if err != nil {
		return "", fmt.Errorf("numa: %w", err)
	}
	defer func() { _ = f.Close() }() // only read
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return "", fmt.Errorf("numa: %w", err)
	}
	if len(b) > maxFile {
		return "", fmt.Errorf("numa: %s has over %d bytes", s.path(name), maxFile)
	}
	return string(b), nil
}

// list reads a file that holds numbers as in 0-3,8. An empty one holds none.
func (s sysTree) list(name string) (set, error) {
	text, err := s.text(name)
	if err != nil {
		return nil, err
	}
	l, err := ParseList(text)
	if err != nil {
		return nil, fmt.Errorf("numa: %s: %w", s.path(name), err)
	}
	return l, nil
}

// ParseList reads CPU or node numbers as the kernel writes them, such as 0-3,8.
// Empty text is none of them. The result ascends, each number once.
//
// Errors: one line with the text and the right form; numbers over 8,191.
func ParseList(text string) ([]int, error) {
	out := []int{}
	text = strings.TrimSpace(text)
	if text == "" {
		return out, nil
	}
	for part := range strings.SplitSeq(text, ",") {
		from, to, ranged := strings.Cut(part, "-")
		if !ranged {
			to = from
		}
		lo, errLo := strconv.ParseUint(from, 10, 16)
		hi, errHi := strconv.ParseUint(to, 10, 16)
		if errLo != nil || errHi != nil || lo > hi || hi > maxID {
			return nil, fmt.Errorf("%s is no list of numbers such as 0-3,8 (0 to %d)", quoted(text), maxID)
		}
		for n := int(lo); n <= int(hi); n++ {
			out = append(out, n)
		}
		if len(out) > 2*(maxID+1) {
			return nil, fmt.Errorf("%s names numbers many times over", quoted(text))
		}
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

// quoted shows text of a file in a message: short, on one line.
func quoted(text string) string {
	const most = 60
	if len(text) > most {
		text = text[:most] + "..."
	}
	return strconv.Quote(text)
}

// numbers reads a file of numbers with blanks between.
func (s sysTree) numbers(name string) ([]int, error) {
	text, err := s.text(name)
	if err != nil {
		return nil, err
	}
	var out []int
	for f := range strings.FieldsSeq(text) {
		n, err := strconv.ParseUint(f, 10, 16)
		if err != nil {
			return nil, fmt.Errorf("numa: %s: %s is not a number", s.path(name), quoted(f))
		}
		out = append(out, int(n))
	}
	return out, nil
}

// meminfo reads MemTotal and MemFree, in bytes, from a node's or the machine's
// file: the first says "Node 0 MemFree: 12 kB", the other "MemFree: 12 kB".
func (s sysTree) meminfo(name string) (total, free uint64, err error) {
	text, err := s.text(name)
	if err != nil {
		return 0, 0, err
	}
	for _, want := range []struct {
		label string
		to    *uint64
	}{{"MemTotal:", &total}, {"MemFree:", &free}} {
		_, rest, ok := strings.Cut(text, want.label)
		fields := strings.Fields(rest)
		if !ok || len(fields) < 2 || fields[1] != "kB" {
			return 0, 0, fmt.Errorf("numa: %s has no line %q with a number of kB", s.path(name), want.label)
		}
		kib, err := strconv.ParseUint(fields[0], 10, 53)
		if err != nil {
			return 0, 0, fmt.Errorf("numa: %s: %s %s is not a number of kB", s.path(name), want.label, quoted(fields[0]))
		}
		*want.to = kib << 10
	}
	return total, free, nil
}

// watermarks returns how many bytes node id's zones want free before the kernel is
// at ease: below, whoever wants memory reclaims some first, and far below there is
// none to be had.
func (s sysTree) watermarks(id int) (uint64, error) {
	text, err := s.text(zoneinfo)
	if err != nil {
		return 0, err
	}
	node, here, pages := "Node "+strconv.Itoa(id)+",", false, uint64(0)
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "Node ") {
			here = strings.HasPrefix(line, node)
		}
		f := strings.Fields(line)
		if !here || len(f) != 2 || f[0] != "high" {
			continue
		}
		n, err := strconv.ParseUint(f[1], 10, 40)
		if err != nil {
			return 0, fmt.Errorf("numa: %s: %s is not a number of pages", s.path(zoneinfo), quoted(f[1]))
		}
		pages += n
	}
	return pages * uint64(os.Getpagesize()), nil
}

// onlineCPUs returns the CPUs online that are allowed.
func (s sysTree) onlineCPUs(allowed set) ([]int, error) {
	online, err := s.list(cpuOnline)
	if isAbsent(err) {
		// No such file: what is allowed is online, since the kernel says so.
		return slices.Clone(allowed), nil
	}
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(online, func(cpu int) bool { return !allowed.has(cpu) }), nil
}

// node reads node id, what is allowed of it.
func (s sysTree) node(id int, cpus, mems set) (Node, error) {
	n := Node{ID: id}
	dir := fmt.Sprintf("%s/node%d", nodeDir, id)
	list, err := s.list(dir + "/cpulist")
	if err != nil {
		return n, err
	}
	online, err := s.onlineCPUs(cpus)
	if err != nil {
		return n, err
	}
	for _, cpu := range list {
		// online is nil only where nobody says which are.
		if cpus.has(cpu) && set(online).has(cpu) {
			n.CPUs = append(n.CPUs, cpu)
		}
	}
	total, free, err := s.meminfo(dir + "/meminfo")
	if err != nil && !isAbsent(err) {
		return n, err
	}
	has, err := s.hasMemory(id, total)
	if err != nil {
		return n, err
	}
	if has && mems.has(id) {
		n.Memory, n.Total, n.Free = true, total, free
	}
	return n, nil
}

// hasMemory says whether node id has memory of its own, total bytes by its
// meminfo. Memory that can only be moved away (has_memory without
// has_normal_memory) serves processes as well as any.
func (s sysTree) hasMemory(id int, total uint64) (bool, error) {
	for _, name := range []string{nodeDir + "/has_memory", nodeDir + "/has_normal_memory"} {
		l, err := s.list(name)
		if err == nil {
			return l.has(id), nil
		}
		if !isAbsent(err) {
			return false, err
		}
	}
	return total > 0, nil
}

// allowed returns the CPUs and nodes that this process may use.
func (s sysTree) allowed() (cpus, mems set, err error) {
	if s.live {
		return processAllowed()
	}
	text, err := s.text(status)
	if isAbsent(err) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	for _, want := range []struct {
		label string
		to    *set
	}{{"Cpus_allowed_list:", &cpus}, {"Mems_allowed_list:", &mems}} {
		_, rest, ok := strings.Cut(text, want.label)
		if !ok {
			continue
		}
		line, _, _ := strings.Cut(rest, "\n")
		l, err := ParseList(line)
		if err != nil {
			return nil, nil, fmt.Errorf("numa: %s: %s %w", s.path(status), want.label, err)
		}
		*want.to = l
	}
	return cpus, mems, nil
}
