// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// maxPath is the longest path of a Unix socket, in bytes.
const maxPath = 107

// CheckPath returns what is wrong with the path of a socket.
func CheckPath(path string) error {
	if path == "" || path[0] == '@' || len(path) > maxPath || strings.IndexByte(path, 0) >= 0 {
		return fmt.Errorf("%q must be the path of a Unix socket, of 1 to %d bytes, none of them 0", path, maxPath)
	}
	return nil
}

// listen takes the socket at path. A socket that a dead server left there is taken
// over; a living one's, or any other file, is not.
//
// Everybody may connect: whom the server talks to is told by the credentials that
// the kernel gives, so that a refusal can be counted and logged. Who must not even
// connect is kept out by the folder's mode.
func listen(path string) (*net.UnixListener, error) {
	if err := CheckPath(path); err != nil {
		return nil, err
	}
	defer lockFolder(filepath.Dir(path))()
	addr := &net.UnixAddr{Name: path, Net: "unix"}
	ln, err := net.ListenUnix("unix", addr)
	if errors.Is(err, unix.EADDRINUSE) {
		if err := clearStale(addr); err != nil {
			return nil, err
		}
		ln, err = net.ListenUnix("unix", addr)
	}
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o666); err != nil {
		return nil, errors.Join(err, ln.Close())
	}
	return ln, nil
}

// lockPatience is how long a server waits for others that take a socket in the same
// folder. Chosen, not measured.
const lockPatience = time.Second

// lockFolder keeps other servers from taking a socket in dir until what it returns is
// called: one that finds a dead one's socket must not remove what another has put in
// its place, nor what is bound and not listened on yet. Whoever can read dir can hold
// that lock, so it is not waited for without end, and done without where there is none.
func lockFolder(dir string) (unlock func()) {
	f, err := os.Open(dir)
	if err != nil {
		return func() {}
	}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(lockPatience); time.Now().Before(end); <-tick.C {
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			break
		}
	}
	return func() { _ = f.Close() } // the lock goes with it
}

// clearStale removes a socket that nobody listens on.
func clearStale(addr *net.UnixAddr) error {
	st, err := os.Lstat(addr.Name)
	if err != nil {
		return err
	}
	if st.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("%s is there and is no socket", addr.Name)
	}
	c, err := net.DialTimeout("unix", addr.Name, time.Second)
	if err == nil {
		return errors.Join(fmt.Errorf("%s: another server listens there", addr.Name), c.Close())
	}
	if !errors.Is(err, unix.ECONNREFUSED) {
		return fmt.Errorf("%s: it is there, and whether somebody listens is not to be found out: %w", addr.Name, err)
	}
	return os.Remove(addr.Name)
}

// Cred is who is at the other end of a socket, as the kernel says.
type Cred struct {
	PID      int32
	UID, GID uint32
	Groups   []uint32 // supplementary; where the kernel tells
}

// String writes c for a log.
func (c Cred) String() string { return fmt.Sprintf("uid %d, gid %d, pid %d", c.UID, c.GID, c.PID) }

// credOf asks the kernel about the other end of c.
func credOf(c *net.UnixConn) (cred Cred, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return cred, err
	}
	var got *unix.Ucred
	var gotErr error
	err = raw.Control(func(fd uintptr) {
		got, gotErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		cred.Groups = peerGroups(int(fd))
	})
	if err = errors.Join(err, os.NewSyscallError("SO_PEERCRED", gotErr)); err != nil {
		return cred, err
	}
	cred.PID, cred.UID, cred.GID = got.Pid, got.Uid, got.Gid
	return cred, nil
}

// sendFile writes b and hands f over with its first byte.
func sendFile(c *net.UnixConn, b []byte, f *os.File) error {
	n, oob, err := c.WriteMsgUnix(b, syscall.UnixRights(int(f.Fd())), nil)
	if err != nil {
		return err
	}
	if n != len(b) || oob == 0 {
		return fmt.Errorf("shm: %d of %d bytes sent", n, len(b))
	}
	return nil
}

// receiveFile reads into b, and the file that came along, if one did.
func receiveFile(c *net.UnixConn, b []byte) (n int, f *os.File, err error) {
	oob := make([]byte, unix.CmsgSpace(4*8))
	n, oobn, _, _, err := c.ReadMsgUnix(b, oob)
	if err != nil {
		return 0, nil, err
	}
	messages, err := syscall.ParseSocketControlMessage(oob[:oobn])
	if err != nil {
		return n, nil, os.NewSyscallError("control message", err)
	}
	for i := range messages {
		fds, err := syscall.ParseUnixRights(&messages[i])
		if err != nil {
			continue // another kind of message
		}
		for _, fd := range fds {
			if f != nil { // one was announced
				_ = unix.Close(fd)
				continue
			}
			unix.CloseOnExec(fd)
			f = os.NewFile(uintptr(fd), "memfd")
		}
	}
	return n, f, nil
}

// isScarce reports whether a system call failed for want of descriptors or memory.
func isScarce(err error) bool {
	return errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.ENOBUFS) || errors.Is(err, unix.ENOMEM) ||
		errors.Is(err, unix.ECONNABORTED)
}

// isGone reports whether the other end of a socket is not there any more.
func isGone(err error) bool {
	return errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET)
}
