// SPDX-License-Identifier: Apache-2.0

// Before: whoever asks. After: the shards' request rings; then back, from their reply
// rings.

package shm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"kindex/internal/kv"
)

// What ends a call without an answer. All but ErrLate may be asked again, of another
// connection.
var (
	// ErrGone: the server died, or went silent, or broke the rules.
	ErrGone = errors.New("the server is gone")
	// ErrLeaving: the server said that it stops.
	ErrLeaving = errors.New("the server is stopping")
	// ErrLate: no answer before the deadline.
	ErrLate = errors.New("no answer before the deadline")
)

// RefusedError is why a server would not have this client.
type RefusedError struct {
	Denied bool // it may not; else there is no room
	Text   string
}

func (e *RefusedError) Error() string { return e.Text }

// maxCalls is how many calls of one client are under way at once; more wait.
const maxCalls = 256

// Call is one question and, after [Client.Do], its answer.
//
// Concurrency: one goroutine at a time.
type Call struct {
	Model    uint64 // by the number that the table gives it
	Seed     uint64
	Hashes   []kv.ContentHash
	Filtered bool     // only Holders are wanted
	Holders  []uint32 // holders
	Limit    int      // each shard's deepest so many; 0: all

	Status  Status // the worst of the shards'
	Version uint64 // of a table that knows all holders of Matches
	Matches []kv.Match

	// Guarded by the client's lock, but for done and the channel.
	id       uint64
	slot     uint16
	deadline uint64
	err      error
	left     int // shards whose answer is not all there
	unsent   int // records that had no room yet
	parts    []callPart
	waits    bool // on woken
	promoted bool // told to lead
	done     atomic.Bool
	woken    chan struct{} // of one
	timer    *time.Timer
}

// callPart is a call's affair in one shard.
type callPart struct {
	sent     int    // records of the request
	next, of uint32 // records of the reply
	matches  int    // that are to come
}

// NewCall returns an empty call. It can be used again and again.
func NewCall() *Call {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return &Call{woken: make(chan struct{}, 1), timer: t}
}

// ClientOptions say how a client works.
type ClientOptions struct {
	// Spin is how long a caller looks for its answer before it sleeps, where the server
	// does so, too.
	Spin time.Duration
	// Change is told each change of the server's table, in order, one call at a time;
	// the first is whole and comes before Dial returns.
	Change func(*Change)
}

// Client is one connection to a server. It ends with it: a new one is dialled.
//
// Concurrency: any goroutine. Its memory stays mapped until the last call has left.
type Client struct {
	opts   ClientOptions
	conn   *net.UnixConn
	layout Layout
	mem    *memory
	spin   time.Duration
	offset uint64 // what the server's clock is ahead, wrapping
	most   int    // payload of one record, in each ring
	mostIn int

	bell, sleeps *atomic.Uint32
	beat         *atomic.Uint64
	shards       []clientShard

	freed   chan struct{} // of one: a place in calls is free, and somebody waits for one
	long    chan struct{} // of one: the right to send a request of several records
	gone    chan struct{} // closed when the connection has ended
	leaving chan struct{} // closed when the server said that it stops
	ended   sync.WaitGroup

	silent atomic.Bool

	mu      sync.Mutex
	dead    error // why; nil: it lives
	retired bool
	users   int // who may touch the memory
	seq     uint64
	calls   [maxCalls]*Call
	free    []uint16 // places in calls
	queued  int      // who waits for a place
	unsent  int      // calls some of whose request had no room
	waiting int      // calls that wait on their channels
	leads   bool     // somebody sleeps for all

	asking asking
}

// clientShard is the client's ends of one shard's rings.
type clientShard struct {
	words words
	out   ring // requests
	in    ring // replies
	heard uint64
}

// Dial connects to the server at path and waits for its table.
//
// Errors: a *RefusedError, the context's, or what else kept it.
func Dial(ctx context.Context, path string, o ClientOptions) (*Client, error) {
	if err := CheckPath(path); err != nil {
		return nil, err
	}
	if !littleEndian {
		return nil, errors.New("shm: this machine is big-endian: the memory's words are not")
	}
	var d net.Dialer
	nc, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	conn, ok := nc.(*net.UnixConn)
	if !ok {
		return nil, errors.Join(fmt.Errorf("shm: a connection of type %T", nc), nc.Close())
	}
	// The context's end interrupts whatever is read until the client stands.
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	c := &Client{opts: o, conn: conn}
	if err := c.meet(); err != nil {
		stop()
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return nil, errors.Join(err, conn.Close(), c.mem.close())
	}
	if !stop() {
		return nil, errors.Join(ctx.Err(), conn.Close(), c.mem.close())
	}
	c.ended.Go(c.listen)
	c.ended.Go(c.watch)
	return c, nil
}

// meet reads the server's hello and its table, and maps the memory.
func (c *Client) meet() error {
	var first [frameHeader + 1024]byte
	n, f, err := receiveFile(c.conn, first[:])
	if f != nil {
		defer func() { _ = f.Close() }()
	}
	if err != nil {
		return err
	}
	if n == 0 {
		return fmt.Errorf("%w: it closed the connection", ErrGone)
	}
	head := &reading{first: first[:n], conn: c.conn}
	kind, body, _, err := readFrame(head, nil, 1024)
	switch {
	case err != nil:
		return err
	case kind == frameRefused:
		if len(body) == 0 {
			return errors.New("shm: the server's refusal is cut short")
		}
		return &RefusedError{body[0] == 1, string(body[1:])}
	case kind != frameHello || f == nil:
		return errors.New("shm: the server did not say hello")
	}
	var h hello
	if err := h.parse(body); err != nil {
		return err
	}
	if err := c.open(&h, f); err != nil {
		return err
	}
	kind, body, _, err = readFrame(head, nil, maxServerFrame)
	if err == nil && kind != frameTable {
		err = errors.New("shm: the server sent no table")
	}
	if err != nil {
		return err
	}
	if len(head.first) > 0 {
		return errors.New("shm: the server's first table is cut short") // it is longer than what was read with the hello
	}
	return c.change(body)
}

// reading reads what came with the first message, then on.
type reading struct {
	first []byte
	conn  *net.UnixConn
}

func (r *reading) Read(b []byte) (int, error) {
	if len(r.first) > 0 {
		n := copy(b, r.first)
		r.first = r.first[n:]
		return n, nil
	}
	return r.conn.Read(b)
}

// open maps the memory and takes this side's ends of the rings.
func (c *Client) open(h *hello, f *os.File) error {
	m, err := openMemory(f, h.layout)
	if err != nil {
		return err
	}
	c.mem, c.layout = m, h.layout
	if err := m.checkHeader(h.layout, h.generation); err != nil {
		return err
	}
	// Processes of one machine have one clock, but for those in a time namespace.
	if ahead := h.clock - now(); int64(ahead) > int64(time.Second) || int64(ahead) < -int64(time.Second) {
		c.offset = ahead
	}
	if h.spins {
		c.spin = c.opts.Spin
	}
	c.bell, c.sleeps, c.beat = m.word32(offClientBell), m.word32(offClientSleeps), m.word64(offClientBeat)
	mark := uint32(h.generation)
	for i := range h.layout.Shards {
		w := m.words(h.layout, i)
		out, in := m.rings(h.layout, i)
		c.most, c.mostIn = chunk(len(out)), chunk(len(in))
		c.shards = append(c.shards, clientShard{
			words: w,
			out:   ring{data: out, head: w.requestHead, mark: mark},
			in:    ring{data: in, head: w.replyHead, mark: mark},
		})
	}
	for i := range maxCalls {
		c.free = append(c.free, uint16(maxCalls-1-i))
	}
	c.freed = make(chan struct{}, 1)
	c.long = make(chan struct{}, 1)
	c.long <- struct{}{}
	c.gone, c.leaving = make(chan struct{}), make(chan struct{})
	return nil
}

// change tells of a table frame.
func (c *Client) change(body []byte) error {
	ch, err := parseChange(body)
	if err == nil && c.opts.Change != nil {
		c.opts.Change(ch)
	}
	return err
}

// listen reads the socket until it ends.
func (c *Client) listen() {
	var buf []byte
	for {
		kind, body, kept, err := readFrame(c.conn, buf, maxServerFrame)
		if err == nil {
			switch kind {
			case frameTable:
				err = c.change(body)
			case frameBye:
				c.retire()
			case frameAnswer:
				err = c.answered(body)
			default:
				err = fmt.Errorf("shm: the server sent a frame of kind %d", kind)
			}
		}
		if err != nil {
			c.kill(fmt.Errorf("%w: %w", ErrGone, err))
			return
		}
		if buf = kept; cap(buf) > 1<<20 {
			buf = nil
		}
	}
}

// retire takes no new calls; the connection ends with the last one under way.
func (c *Client) retire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.retired || c.dead != nil {
		return
	}
	c.retired = true
	close(c.leaving)
	if c.users == 0 {
		c.killLocked(ErrLeaving)
	}
}

// kill ends the connection, and all calls with err.
func (c *Client) kill(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.killLocked(err)
}

func (c *Client) killLocked(err error) {
	if c.dead != nil {
		return
	}
	c.dead = err
	close(c.gone)
	_ = c.conn.Close() // gone or not: nothing more is expected of it
	for _, call := range c.calls {
		if call != nil {
			c.finish(call, err)
		}
	}
	c.bell.Add(1)
	wake(c.bell)
	c.asking.end(err)
	if c.users == 0 {
		_ = c.mem.close() // a mapping of ours: nothing can be wrong with it
	}
}

// watch says that this side lives, and sees whether the server does.
func (c *Client) watch() {
	tick := time.NewTicker(beatEvery)
	defer tick.Stop()
	missed := 0
	for {
		select {
		case <-tick.C:
		case <-c.gone:
			return
		}
		c.mu.Lock()
		if c.dead == nil {
			c.beat.Add(1)
			if missed++; c.heard() {
				missed = 0
			}
			if c.silent.Store(missed >= silentBeats); missed > goneBeats {
				c.killLocked(fmt.Errorf("%w: no sign of life for %v", ErrGone, goneBeats*beatEvery))
			}
		}
		c.mu.Unlock()
	}
}

// heard reports whether all shards' threads have said that they live since the last
// time all had. The caller holds mu.
func (c *Client) heard() bool {
	for i := range c.shards {
		if s := &c.shards[i]; s.words.serverBeat.Load() == s.heard {
			return false
		}
	}
	for i := range c.shards {
		s := &c.shards[i]
		s.heard = s.words.serverBeat.Load()
	}
	return true
}

// Silent reports whether the server, whose connection stands, has given no sign of
// life for 100 ms.
func (c *Client) Silent() bool { return c.silent.Load() }

// Gone is closed when the connection has ended.
func (c *Client) Gone() <-chan struct{} { return c.gone }

// Leaving is closed when the server has said that it stops.
func (c *Client) Leaving() <-chan struct{} { return c.leaving }

// Err returns why the connection ended; nil while it stands.
func (c *Client) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.dead
}

// Close ends the connection and all calls with ErrGone.
func (c *Client) Close() {
	c.kill(fmt.Errorf("%w: closed by this side", ErrGone))
	c.ended.Wait()
}
