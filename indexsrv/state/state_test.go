// SPDX-License-Identifier: Apache-2.0

package state

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/zeebo/xxh3"

	"kindex/internal/kv"
	"kindex/relay/feed"
	"kindex/shard"
)

// sample is one state in memory.
type sample struct {
	head    Head
	regs    []Registration
	peers   []string
	streams []*Stream
}

func (s *sample) Head(h Head) error                     { s.head = h; return nil }
func (s *sample) Registrations(rs []Registration) error { s.regs = rs; return nil }
func (s *sample) Peers(urls []string) error             { s.peers = urls; return nil }
func (s *sample) Stream(st *Stream) error               { s.streams = append(s.streams, st); return nil }

func (s *sample) encode(t testing.TB) []byte {
	t.Helper()
	var b bytes.Buffer
	w := NewWriter(&b, s.head)
	w.Registrations(s.regs)
	w.Peers(s.peers)
	for _, st := range s.streams {
		if err := w.Stream(st); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if w.Bytes() != uint64(b.Len()) {
		t.Fatalf("%d bytes written, %d counted", b.Len(), w.Bytes())
	}
	return b.Bytes()
}

// makeSample draws a state whose streams have about so many positions each.
func makeSample(seed uint64, streams, positions int) *sample {
	r := rand.New(rand.NewPCG(seed, 9)) //nolint:gosec // seeded on purpose
	s := &sample{head: Head{Written: time.Unix(0, 1_800_000_000_000_000_000+int64(seed)), Host: r.Uint64()}}
	if streams > 0 {
		s.peers = []string{"http://127.0.0.1:1", "https://elsewhere:2"}
	}
	for i := range streams {
		s.regs = append(s.regs, Registration{
			Instance: fmt.Sprint(i), Number: i%2 == 0, Endpoint: "tcp://127.0.0.1:5557", Model: "m", BlockSize: 16,
			Rank: i % 3, Ranks: 1, Source: "zmq", Live: []int{i % 3, i%3 + 1},
		})
		st := &Stream{Registration: i, Rank: i % 3, Position: feed.Position{
			Epoch: 1 + r.Uint64N(3), HasSeq: true, LastSeq: r.Uint64(), LastSum: r.Uint64(), Faults: feed.Fault(r.IntN(64)), Why: strings.Repeat("x", i),
		}}
		if i%2 == 1 {
			st.Memory, st.Relay = []byte{1, 2, 3}, []byte{4}
		}
		fill(&st.Content, r, positions)
		s.streams = append(s.streams, st)
	}
	return s
}

func fill(c *shard.Content, r *rand.Rand, positions int) {
	for n := range positions {
		parent, ns := n-1, kv.Namespace(0)
		switch {
		case n == 0 || r.IntN(400) == 0:
			parent, ns = -1, kv.Namespace(1337+r.IntN(2))
		case r.IntN(200) == 0:
			parent = r.IntN(n)
		}
		if parent >= 0 {
			ns = namespaceOf(c, parent)
		}
		copies := []shard.Copy{{Engine: kv.EngineHash(r.Uint64()), Count: 1}}
		switch r.IntN(100) {
		case 0:
			copies = nil
		case 1:
			copies[0].Count = 3
		case 2:
			copies = append(copies, shard.Copy{Engine: copies[0].Engine, Tier: kv.TierHost, Count: 1}, shard.Copy{Engine: 7, Tier: kv.TierDisk, Group: 4, Count: 9})
		case 3, 4:
			copies[0].Tier = kv.TierHost
		}
		c.Add(parent, ns, kv.ContentHash(r.Uint64()), copies...)
	}
	for range positions / 100 {
		o := shard.Orphan{Bare: r.IntN(2) == 0, Store: shard.Store{
			Namespace: 1337, Parent: 5, HasParent: true, Engines: []kv.EngineHash{1, 2}, Contents: []kv.ContentHash{3, 4}, Stated: r.IntN(2) == 0,
		}}
		if r.IntN(2) == 0 {
			o.Out = []bool{true, false}
		}
		if r.IntN(4) == 0 {
			o = shard.Orphan{Store: shard.Store{Tier: kv.TierHost, Engines: []kv.EngineHash{2}}}
		}
		c.Orphans = append(c.Orphans, o)
	}
}

func TestRoundTrip(t *testing.T) {
	for _, s := range []*sample{makeSample(1, 0, 0), makeSample(2, 1, 0), makeSample(3, 3, 10), makeSample(4, 2, 60_000)} {
		b := s.encode(t)
		for _, r := range []io.Reader{bytes.NewReader(b), iotest.OneByteReader(bytes.NewReader(b)), iotest.DataErrReader(bytes.NewReader(b))} {
			var got sample
			if err := Read(r, &got); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(s, &got, cmp.AllowUnexported(sample{}), cmpopts.EquateEmpty()); diff != "" {
				t.Fatalf("read back (-written +read):\n%.2000s", diff)
			}
			if len(s.streams) > 2 {
				break
			}
		}
		if n := len(s.streams); n > 0 && len(s.streams[0].Content.Hashes) > 10_000 {
			per := float64(len(b)) / float64(n*len(s.streams[0].Content.Hashes))
			t.Logf("%.1f bytes a position", per)
			if per > 20 {
				t.Errorf("%.1f bytes a position: 16 are its hashes", per)
			}
		}
	}
}

// want fails unless b is refused, for a reason in one line, with nothing of its end
// told.
func wantRefused(t *testing.T, b []byte, what string) {
	t.Helper()
	err := Read(bytes.NewReader(b), &Checked{})
	if !errors.Is(err, ErrRefused) || strings.Contains(err.Error(), "\n") {
		t.Fatalf("%s: got %v, want a refusal in one line", what, err)
	}
}

// TestCut: a state that ends early is refused, wherever it was cut.
func TestCut(t *testing.T) {
	large := makeSample(5, 3, 12_000).encode(t)
	for at := 0; at < len(large); at += 4 << 10 {
		wantRefused(t, large[:at], fmt.Sprintf("cut at %d of %d", at, len(large)))
	}
	wantRefused(t, large[:len(large)-1], "without its last byte")
	wantRefused(t, append(slices.Clone(large), 0), "with one byte more")
	small := makeSample(6, 2, 20).encode(t)
	for at := range small {
		wantRefused(t, small[:at], fmt.Sprintf("cut at %d of %d", at, len(small)))
	}
}

// TestFlipped: a state with any byte changed is refused.
func TestFlipped(t *testing.T) {
	small := makeSample(7, 2, 60).encode(t)
	for at := range small {
		for _, with := range []byte{1, 0x80, 0xff} {
			small[at] ^= with
			wantRefused(t, small, fmt.Sprintf("byte %d changed by %#x", at, with))
			small[at] ^= with
		}
	}
	large := makeSample(8, 2, 10_000).encode(t)
	r := rand.New(rand.NewPCG(8, 8)) //nolint:gosec // seeded on purpose
	for range 150 {
		at, bit := r.IntN(len(large)), byte(1)<<r.IntN(8)
		large[at] ^= bit
		wantRefused(t, large, fmt.Sprintf("byte %d changed by %#x", at, bit))
		large[at] ^= bit
	}
	if err := Read(bytes.NewReader(large), &Checked{}); err != nil {
		t.Fatal(err)
	}
}

// sealed is the file of sections, with right checksums, whatever they say.
func sealed(streams uint64, sections ...[]byte) []byte {
	var b bytes.Buffer
	w := NewWriter(&b, Head{})
	for _, s := range sections {
		w.end(kind(s[0]), append(make([]byte, sectionHead), s[1:]...))
	}
	w.streams = streams
	_ = w.Close() // memory
	return b.Bytes()
}

// TestRefuses: what is well sealed and still wrong is refused, too, by its name.
func TestRefuses(t *testing.T) {
	reg := appendRegistration([]byte{byte(kindRegistrations)}, &Registration{Instance: "1", Live: []int{0}})
	begin := append([]byte{byte(kindStream), 1, 0, 0, 0, 1, 0}, make([]byte, 11)...)
	end := []byte{byte(kindStreamEnd), 0, 0, 0}
	part := func(tag byte, n byte, rest ...byte) []byte {
		b := append([]byte{byte(kindContent), tag}, rest...)
		return append(append(b, n), make([]byte, 8*int(n)+2+8*int(n))...)
	}
	root := make([]byte, 8)
	if err := Read(bytes.NewReader(sealed(1, reg, begin, part(partRoot|partAlike, 2, root...), []byte{byte(kindStreamEnd), 2, 2, 0})), &Checked{}); err != nil {
		t.Fatalf("the pieces below are wrong by themselves: %v", err)
	}
	orphan := func(flags, tier byte, engines byte) []byte {
		b := append([]byte{byte(kindOrphans), flags, tier, 0}, make([]byte, 16)...)
		return append(append(b, engines), make([]byte, 16*int(engines))...)
	}
	for name, b := range map[string][]byte{
		"a stream of no registration":       sealed(1, begin, end),
		"a stream twice":                    sealed(2, reg, begin, end, begin, end),
		"content without a stream":          sealed(0, reg, part(partRoot|partAlike, 1, root...)),
		"a stream without its end":          sealed(1, reg, begin),
		"another number of streams":         sealed(3, reg, begin, end),
		"another number of positions":       sealed(1, reg, begin, part(partRoot|partAlike, 2, root...), end),
		"a position below itself":           sealed(1, reg, begin, part(partBelow|partAlike, 1, 0), []byte{byte(kindStreamEnd), 1, 1, 0}),
		"a first position below nothing":    sealed(1, reg, begin, part(partFollows|partAlike, 1), []byte{byte(kindStreamEnd), 1, 1, 0}),
		"a part without positions":          sealed(1, reg, begin, part(partRoot|partAlike, 0, root...), end),
		"an unknown tag":                    sealed(1, reg, begin, part(8|partRoot|partAlike, 1, root...), []byte{byte(kindStreamEnd), 1, 1, 0}),
		"an orphan that waits for none":     sealed(1, reg, begin, orphan(orphanHashed, 0, 1), []byte{byte(kindStreamEnd), 0, 0, 1}),
		"an orphan in a remote tier":        sealed(1, reg, begin, orphan(orphanHashed|orphanParent, 3, 1), []byte{byte(kindStreamEnd), 0, 0, 1}),
		"an unknown kind":                   sealed(0, []byte{99}),
		"peers behind a stream":             sealed(1, reg, begin, end, []byte{byte(kindPeers), 1, 'x'}),
		"registrations that go on for ever": sealed(0, append([]byte{byte(kindRegistrations)}, 0, 0xff, 0xff, 0xff, 0xff, 0x7f)),
	} {
		wantRefused(t, b, name)
	}
	for _, c := range []struct {
		b    []byte
		want string
	}{
		{[]byte("something else altogether"), "no state of an index host"},
		{binary.LittleEndian.AppendUint64([]byte(magic), 2), "version is 2"},
		{nil, "cut short"},
	} {
		if err := Read(bytes.NewReader(c.b), &Checked{}); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: got %v, want a refusal with %q", c.b, err, c.want)
		}
	}
}

// A length that lies costs no more memory than what comes.
func TestLengthNotTrusted(t *testing.T) {
	b := makeSample(1, 0, 0).encode(t)[:fileHead]
	b = binary.LittleEndian.AppendUint32(b, uint32(kindHead))
	b = binary.LittleEndian.AppendUint32(b, MaxSection)
	b = append(b, make([]byte, 100)...)
	d := &reader{r: bytes.NewReader(b), t: &Checked{}, whole: xxh3.New()}
	if err := d.fileHead(); err != nil {
		t.Fatal(err)
	}
	if err := d.section(); !errors.Is(err, ErrRefused) || cap(d.buf) > 256<<10 {
		t.Errorf("got %v, with room for %d bytes", err, cap(d.buf))
	}
}

// The source's errors, and the taker's, are theirs.
func TestErrors(t *testing.T) {
	b := makeSample(9, 2, 100).encode(t)
	mine := errors.New("mine")
	if err := Read(io.MultiReader(bytes.NewReader(b[:200]), iotest.ErrReader(mine)), &Checked{}); !errors.Is(err, mine) || errors.Is(err, ErrRefused) {
		t.Errorf("got %v, want the source's", err)
	}
	if err := Read(bytes.NewReader(b), &picky{err: mine}); !errors.Is(err, mine) || errors.Is(err, ErrRefused) {
		t.Errorf("got %v, want the taker's", err)
	}
	w := NewWriter(failing{mine}, Head{})
	if err := w.Stream(&Stream{}); !errors.Is(err, mine) || !errors.Is(w.Close(), mine) {
		t.Errorf("got %v, want the sink's", err)
	}
}

type picky struct {
	Checked
	err error
}

func (p *picky) Stream(*Stream) error { return p.err }

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }

// FuzzRead: no bytes take more than they are worth, and what is taken can be written
// and read again. Half of the time the sections' checksums are made right first.
func FuzzRead(f *testing.F) {
	f.Add(makeSample(1, 0, 0).encode(f), false)
	f.Add(makeSample(2, 2, 30).encode(f), false)
	f.Add(makeSample(3, 1, 12).encode(f), true)
	f.Fuzz(func(t *testing.T, b []byte, seal bool) {
		if seal {
			b = reseal(slices.Clone(b))
		}
		var got sample
		if err := Read(bytes.NewReader(b), &got); err != nil {
			return
		}
		for _, st := range got.streams {
			_ = st.Content.Digest()
			for i := range st.Content.Orphans {
				if err := st.Content.Orphans[i].Valid(); err != nil {
					t.Fatal(err)
				}
			}
		}
		var again sample
		if err := Read(bytes.NewReader(got.encode(t)), &again); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(&got, &again, cmp.AllowUnexported(sample{}), cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("(-first +again):\n%.2000s", diff)
		}
	})
}

// reseal makes the checksums of b's sections right.
func reseal(b []byte) []byte {
	whole := xxh3.New()
	for at := fileHead; at+sectionHead+sumBytes <= len(b); {
		n := int(binary.LittleEndian.Uint32(b[at+4:]))
		end := at + sectionHead + n
		if n > len(b) || end+sumBytes > len(b) {
			return b
		}
		if kind(binary.LittleEndian.Uint16(b[at:])) == kindEnd && n >= 16 {
			whole.Reset()
			_, _ = whole.Write(b[:at])
			binary.LittleEndian.PutUint64(b[at+sectionHead:], uint64(at))
			binary.LittleEndian.PutUint64(b[at+sectionHead+8:], whole.Sum64())
		}
		binary.LittleEndian.PutUint64(b[end:], xxh3.Hash(b[at:end]))
		at = end + sumBytes
	}
	return b
}
