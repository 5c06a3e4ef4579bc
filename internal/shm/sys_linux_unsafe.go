// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"kindex/internal/kv"
)

// memory is a mapped memfd.
type memory struct{ bytes []byte }

const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

// newMemory returns fresh memory, all zero, whose size nobody can change, and a file
// that stands for it. place, which may be nil, is called with each part before it is
// touched.
func newMemory(l Layout, place func(shard int, part []byte) error) (m *memory, f *os.File, err error) {
	fd, err := unix.MemfdCreate("kindex-lookups", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, nil, os.NewSyscallError("memfd_create", err)
	}
	f = os.NewFile(uintptr(fd), "memfd")
	defer func() {
		if err != nil {
			err = errors.Join(err, m.close(), f.Close())
		}
	}()
	if err := unix.Ftruncate(fd, int64(l.Size())); err != nil {
		return nil, nil, os.NewSyscallError("ftruncate", err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		return nil, nil, os.NewSyscallError("sealing", err)
	}
	if m, err = mapMemory(fd, l.Size()); err != nil {
		return nil, nil, err
	}
	for i := range l.Shards {
		if place == nil {
			break
		}
		at := l.shard(i)
		if err := place(i, m.bytes[at:at+l.stride():at+l.stride()]); err != nil {
			return nil, nil, err
		}
	}
	return m, f, nil
}

// openMemory maps memory that was handed in as f, which stays the caller's. It
// refuses what its maker could shrink: a page that is gone is a signal.
func openMemory(f *os.File, l Layout) (*memory, error) {
	fd := int(f.Fd()) // a memfd: there is no poller to take it from
	got, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil {
		return nil, os.NewSyscallError("reading seals", err)
	}
	if got&seals != seals {
		return nil, fmt.Errorf("shm: the server's memory is not sealed (%#x)", got)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, os.NewSyscallError("fstat", err)
	}
	if st.Size != int64(l.Size()) {
		return nil, fmt.Errorf("shm: the server's memory has %d bytes, %d were announced", st.Size, l.Size())
	}
	return mapMemory(fd, l.Size())
}

func mapMemory(fd, size int) (*memory, error) {
	b, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	return &memory{b}, nil
}

// close unmaps. Nobody may touch the memory any more.
func (m *memory) close() error {
	if m == nil || m.bytes == nil {
		return nil
	}
	b := m.bytes
	m.bytes = nil
	return os.NewSyscallError("munmap", unix.Munmap(b))
}

// word64 returns the word at off, a multiple of 8.
func (m *memory) word64(off int) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(&m.bytes[off : off+8][0]))
}

// word32 returns the word at off, a multiple of 4.
func (m *memory) word32(off int) *atomic.Uint32 {
	return (*atomic.Uint32)(unsafe.Pointer(&m.bytes[off : off+4][0]))
}

// wordOf returns the word of b at off, a multiple of 4, of memory that is aligned.
func wordOf(b []byte, off int) *atomic.Uint32 {
	return (*atomic.Uint32)(unsafe.Pointer(&b[off : off+4][0]))
}

// pointerTo returns where b has off.
func pointerTo(b []byte, off int) unsafe.Pointer { return unsafe.Pointer(&b[off]) }

// plainStore stores v, which others see no later than the next atomic store.
func plainStore(w *atomic.Uint32, v uint32) { *(*uint32)(unsafe.Pointer(w)) = v }

// littleEndian is true where memory has the layout's byte order.
var littleEndian = func() bool {
	x := uint32(1)
	return *(*byte)(unsafe.Pointer(&x)) == 1
}()

// hashBytes, holderBytes and matchBytes are slices as the bytes that they are.
func hashBytes(s []kv.ContentHash) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), len(s)*hashSize)
}

func holderBytes(s []uint32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), len(s)*holderSize)
}

func matchBytes(s []kv.Match) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), len(s)*matchSize)
}

var _ = [1]struct{}{}[unsafe.Sizeof(kv.Match{})-matchSize]

// The shared forms: two processes look at the same memory.
const (
	futexWait = 0
	futexWake = 1
)

// wake wakes whoever sleeps on w, in any process. It does not block.
func wake(w *atomic.Uint32) {
	_, _, _ = unix.RawSyscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(w)), futexWake, 1, 0, 0, 0)
}

// sleep waits while w is val, for at most d. It may return early. The thread is held,
// the processor of the runtime is not.
func sleep(w *atomic.Uint32, val uint32, d time.Duration) {
	ts := unix.NsecToTimespec(int64(d))
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(w)), futexWait, uintptr(val), uintptr(unsafe.Pointer(&ts)), 0, 0)
}

// futexWaitV is the kernel's struct futex_waitv.
type futexWaitV struct {
	val   uint64
	addr  uint64
	flags uint32
	_     uint32
}

const (
	futexSize32 = 2
	// maxWords is how many words the kernel takes at once.
	maxWords = 128
)

// sleeper waits on several words at once.
type sleeper struct {
	words []futexWaitV
	// blind: the kernel cannot do it.
	blind bool
	nap   time.Duration
}

// canSleep asks the kernel whether it knows how to wait for several words.
func canSleep() error {
	_, _, errno := unix.Syscall6(unix.SYS_FUTEX_WAITV, 0, 0, 0, 0, 0, 0)
	if errno == unix.EINVAL { // nothing to wait for
		return nil
	}
	return fmt.Errorf("this kernel lets nobody wait for several words at once (futex_waitv: %w; Linux 5.16 has it)", errno)
}

func (s *sleeper) reset() { s.words = s.words[:0] }

// add makes sleep return when w, which must outlive it, is no longer val.
func (s *sleeper) add(w *atomic.Uint32, val uint32) {
	s.words = append(s.words, futexWaitV{val: uint64(val), addr: uint64(uintptr(unsafe.Pointer(w))), flags: futexSize32})
}

// napLeast and napMost bound how long a thread that cannot be woken sleeps.
const (
	napLeast = 50 * time.Microsecond
	napMost  = time.Millisecond
)

// sleep waits until somebody wakes it on one of the words, one of them is another
// already, or d has passed. It may return early. The thread is held, the processor of
// the runtime is not.
func (s *sleeper) sleep(d time.Duration) {
	if s.blind {
		s.nap = min(max(2*s.nap, napLeast), napMost, d)
		ts := unix.NsecToTimespec(int64(s.nap))
		_ = unix.Nanosleep(&ts, nil)
		return
	}
	ts := unix.NsecToTimespec(int64(now() + uint64(d)))
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX_WAITV, uintptr(unsafe.Pointer(&s.words[0])), uintptr(len(s.words)), 0,
		uintptr(unsafe.Pointer(&ts)), unix.CLOCK_MONOTONIC, 0)
}

// busy tells a thread that cannot be woken that it had work.
func (s *sleeper) busy() { s.nap = 0 }

// clock is a moment by both clocks.
var clock = func() (c struct {
	at   time.Time
	mono uint64
},
) {
	best := time.Duration(1<<63 - 1)
	for range 8 { // the least of the detours between the two
		var ts unix.Timespec
		before := time.Now()
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
			continue
		}
		if took := time.Since(before); took < best {
			best, c.at, c.mono = took, before, uint64(ts.Nano())
		}
	}
	return c
}()

// now returns the system's monotonic clock in nanoseconds, which all processes of a
// machine share.
func now() uint64 { return clock.mono + uint64(time.Since(clock.at)) }

// peerGroups returns the supplementary groups of who is at the other end of a socket;
// none where the kernel does not tell.
func peerGroups(fd int) []uint32 {
	groups := make([]uint32, 64)
	for {
		size := uint32(4 * len(groups))
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_PEERGROUPS,
			uintptr(unsafe.Pointer(&groups[0])), uintptr(unsafe.Pointer(&size)), 0)
		n := int(size / 4)
		if errno == unix.ERANGE && n > len(groups) && n <= 1<<16 {
			groups = make([]uint32, n)
			continue
		}
		if errno != 0 || n > len(groups) {
			return nil
		}
		return groups[:n]
	}
}
