// SPDX-License-Identifier: Apache-2.0

//go:build linux && !race

package numa

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// childVar tells the test program to be a child of one of these tests.
const childVar = "KINDEX_NUMA_TEST_CHILD"

func TestMain(m *testing.M) {
	role, arg, _ := strings.Cut(os.Getenv(childVar), " ")
	switch role {
	case "":
		os.Exit(m.Run())
	case "reexec":
		childReexec(arg)
	case "forbidden":
		childForbidden(arg)
	}
}

// child runs the test program in a role and returns what it says.
func child(t *testing.T, role string) string {
	t.Helper()
	c := exec.Command("/proc/self/exe")
	c.Env = append(os.Environ(), childVar+"="+role)
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", role, err, out)
	}
	return string(out)
}

// childReexec starts anew on the one CPU given and says what it then may use.
func childReexec(arg string) {
	cpu, err := strconv.Atoi(arg)
	if err != nil {
		panic(err)
	}
	top := &Topology{Nodes: []Node{{CPUs: []int{cpu}, Memory: true}}}
	if err := ReexecOn(top, 0); err != nil {
		panic(err)
	}
	var mode int32
	_, _, errno := unix.Syscall6(unix.SYS_GET_MEMPOLICY, uintptr(unsafe.Pointer(&mode)), 0, 0, 0, 0, 0)
	fmt.Printf("%d CPUs, policy %d (%d), masks", runtime.NumCPU(), mode, errno)
	files, _ := os.ReadDir("/proc/self/task")
	for _, f := range files {
		text, err := os.ReadFile("/proc/self/task/" + f.Name() + "/status")
		if err != nil {
			continue
		}
		_, rest, _ := strings.Cut(string(text), "Cpus_allowed_list:")
		line, _, _ := strings.Cut(rest, "\n")
		fmt.Print(" ", strings.TrimSpace(line))
	}
	fmt.Println()
}

// TestReexecOn starts a child anew on each CPU in turn, as if it were a node: all
// its threads have the mask, and the runtime knows one CPU.
func TestReexecOn(t *testing.T) {
	all, err := affinity()
	if err != nil {
		t.Fatal(err)
	}
	for _, cpu := range all {
		out := child(t, fmt.Sprintf("reexec %d", cpu))
		head, masks, ok := strings.Cut(strings.TrimSpace(out), ", masks ")
		want := "1 CPUs, policy 1 (0)" // MPOL_PREFERRED
		if len(all) == 1 {
			want = "1 CPUs, policy 0 (0)" // it was there already
		}
		if memsAllowed() == nil {
			want = "1 CPUs, policy 0 (" // forbidden here
		}
		if !ok || !strings.HasPrefix(head, want) {
			t.Errorf("CPU %d: got %q, want %q", cpu, out, want)
		}
		threads := strings.Fields(masks)
		for _, m := range threads {
			if m != strconv.Itoa(cpu) {
				t.Errorf("CPU %d: a thread may run on %s", cpu, m)
			}
		}
		if len(threads) < 2 {
			t.Errorf("CPU %d: threads %v, want several", cpu, threads)
		}
	}
}

// TestReexecOnRefused names the nodes that can be had.
func TestReexecOnRefused(t *testing.T) {
	top, err := Discover(plantTree(t, "cpuless", nil))
	if err != nil {
		t.Fatal(err)
	}
	for id, want := range map[int]string{
		2: "node 2 has no CPU for this process (its memory is nearest to node 1): must be one of 0-1",
		9: "node 9 is not there for this process: must be one of 0-1",
	} {
		if err := ReexecOn(top, id); err == nil || err.Error() != want {
			t.Errorf("node %d: got %v, want %s", id, err, want)
		}
	}
}

// childForbidden forbids itself the calls of placement, as containers do, by
// errno arg, and starts anew so that all threads are under the ban.
func childForbidden(arg string) {
	errno, again := strings.CutSuffix(arg, " again")
	number, err := strconv.Atoi(errno)
	if err != nil {
		panic(err)
	}
	if !again {
		runtime.LockOSThread()
		forbid(uint32(number))
		if err := os.Setenv(childVar, "forbidden "+errno+" again"); err != nil {
			panic(err)
		}
		panic(unix.Exec("/proc/self/exe", os.Args, os.Environ()))
	}
	top, err := Discover("/")
	if err != nil {
		panic(err)
	}
	id := top.MemoryNodes()[0]
	r, err := Reserve(1<<30, OnNode(id))
	if err != nil {
		panic(err)
	}
	if err := r.Commit(4 * HugePage); err != nil {
		panic(err)
	}
	touch(r)
	b, err := NewBlock(HugePage/8, Interleave(id))
	if err != nil {
		panic(err)
	}
	b.Words()[0] = 1
	for _, m := range []interface {
		PagesByNode(samples int) ([]NodePages, error)
		Placed() Placed
	}{r, b} {
		p := m.Placed()
		_, err := m.PagesByNode(4)
		fmt.Printf("%s, checked %d: %s; pages: %v\n", p.Policy, p.Checked, p.Why, err)
	}
}

// forbid makes the calls of placement fail with errno on this thread and what it
// starts.
func forbid(errno uint32) {
	const (
		loadNumber = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		jumpEqual  = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		ret        = unix.BPF_RET | unix.BPF_K
		allow      = 0x7fff0000
		fail       = 0x00050000
	)
	calls := []uint32{unix.SYS_MBIND, unix.SYS_MOVE_PAGES, unix.SYS_GET_MEMPOLICY, unix.SYS_SET_MEMPOLICY}
	code := []unix.SockFilter{{Code: loadNumber}}
	for i, nr := range calls {
		code = append(code, unix.SockFilter{Code: jumpEqual, Jt: uint8(len(calls) - i), K: nr})
	}
	code = append(code, unix.SockFilter{Code: ret, K: allow}, unix.SockFilter{Code: ret, K: fail | errno})
	program := unix.SockFprog{Len: uint16(len(code)), Filter: &code[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		panic(err)
	}
	if err := unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&program)), 0, 0); err != nil {
		fmt.Println("skip: no seccomp:", err)
		os.Exit(0)
	}
}

// TestForbidden runs under the ban: memory is there all the same, near who
// touches it first, and says so in a line.
func TestForbidden(t *testing.T) {
	for errno, name := range map[unix.Errno]string{unix.EPERM: "operation not permitted", unix.ENOSYS: "function not implemented"} {
		out := child(t, fmt.Sprintf("forbidden %d", errno))
		if strings.HasPrefix(out, "skip: ") {
			t.Skip(out)
		}
		lines := strings.Split(strings.TrimSpace(out), "\n")
		if len(lines) != 2 {
			t.Fatalf("%s: got %q, want two lines", name, out)
		}
		for _, line := range lines {
			if !strings.HasPrefix(line, "first-touch, checked 0: mbind to nodes ") || strings.Count(line, name) != 2 {
				t.Errorf("%s: got %q", name, line)
			}
		}
	}
}
