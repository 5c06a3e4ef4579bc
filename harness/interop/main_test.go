// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kindex/internal/longtest"
)

// insideEnv marks the copy of the test binary that runs in the namespace.
const insideEnv = "KINDEX_INTEROP_NAMESPACE"

func TestMain(m *testing.M) {
	if os.Getenv(insideEnv) != "" {
		if err := loopbackUp(); err != nil {
			fmt.Fprintln(os.Stderr, "loopback of the new namespace:", err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

// loopbackUp turns on lo, which a new namespace has but leaves down.
func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	req, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	req.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, req)
}

// inNamespace runs prepare, which may reach registries, and then the calling
// test once more in a process whose network is a loopback of its own. It returns
// true in that process only; in the outer one the test is over when it returns.
func inNamespace(t *testing.T, timeout time.Duration, prepare func()) bool {
	t.Helper()
	longtest.Skip(t)
	if os.Getenv(insideEnv) != "" {
		return true
	}
	prepare()

	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout="+timeout.String())
	cmd.Env = append(os.Environ(), insideEnv+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	if uid := os.Geteuid(); uid != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: uid, Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getegid(), Size: 1}}
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = cmd.Stdout
	switch err := cmd.Start(); {
	case errors.Is(err, syscall.EPERM), errors.Is(err, syscall.ENOSYS), errors.Is(err, syscall.ENOSPC):
		t.Skipf("no network namespace can be made here: %v", err)
	case err != nil:
		t.Fatal(err)
	}
	skipped, said := "", ""
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		if strings.HasPrefix(line, "=== ") || line == "PASS" {
			continue
		}
		if strings.HasPrefix(line, "--- SKIP: "+t.Name()+" ") {
			skipped = strings.TrimSpace(said) // the reason stands before the result
			continue
		}
		said = line
		fmt.Println("    |", strings.TrimPrefix(line, "    "))
	}
	if err := cmd.Wait(); err != nil {
		t.Fatalf("in the namespace: %v (its output is above)", err)
	}
	if skipped != "" {
		t.Skip(skipped)
	}
	return false
}
