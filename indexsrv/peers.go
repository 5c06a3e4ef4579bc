// SPDX-License-Identifier: Apache-2.0

// Before: another host's GET /state. After: state_load.go.

package indexsrv

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"kindex/indexsrv/state"
	"kindex/internal/secure"
	"kindex/internal/settings"
)

// Pauses and bounds of copying from a peer. Chosen, not measured.
const (
	peerDelay     = 200 * time.Millisecond // before the second round, doubling
	peerMaxDelay  = 5 * time.Second
	peerStall     = 10 * time.Second // before a copy is given up that has not moved on by peerPace
	peerPace      = 64 << 10         // bytes
	maxPeerState  = 256 << 30        // bytes
	maxPeerAnswer = 4 << 10          // of a refusal that is read
)

// peers are the other hosts that one knows, and copies from.
//
// Concurrency: any goroutine.
type peers struct {
	h *Host

	mu   sync.Mutex
	urls []string // in the order they were told

	copying sync.Mutex // one copy at a time
	aside   sync.WaitGroup
}

// list returns their addresses.
func (p *peers) list() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.urls)
}

// add adds an address; false: there is no room.
func (p *peers) add(url string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if slices.Contains(p.urls, url) {
		return true
	}
	if len(p.urls) >= maxPeers {
		return false
	}
	p.urls = append(p.urls, url)
	return true
}

// remove reports whether the address was there.
func (p *peers) remove(url string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.Index(p.urls, url)
	if i >= 0 {
		p.urls = slices.Delete(p.urls, i, i+1)
	}
	return i >= 0
}

// bootstrap copies, at the host's start, what one of the peers knows: the first that
// knows anything. It reports whether one did. Peers that fail are tried again until
// the peer timeout; where all of them answer that they know nothing, no longer.
//
// Errors: a configured worker that is refused.
func (p *peers) bootstrap(ctx context.Context) (found bool, err error) {
	return p.until(ctx, p.list(), &peerCopy{start: true, trusted: true})
}

// peerCopy is how a peer is copied.
type peerCopy struct {
	start    bool          // of the host
	trusted  bool          // whoever named the peer may do everything: it is shown the token
	patience time.Duration // until the first of it, peerPace of it, is there
}

// until tries urls in turn until one has given what it knows. What has begun to come
// when the peer timeout is over is taken as long as it moves on.
func (p *peers) until(ctx context.Context, urls []string, how *peerCopy) (found bool, err error) {
	until := time.Now().Add(p.h.cfg.PeerTimeout)
	end := time.NewTimer(p.h.cfg.PeerTimeout)
	defer end.Stop()
	last := map[string]string{}
	for delay := peerDelay; ; delay = min(2*delay, peerMaxDelay) {
		failed := 0
		for i, url := range urls {
			// One that says nothing does not take the others' time.
			how.patience = min(peerStall, max(0, time.Until(until))/time.Duration(len(urls)-i))
			n, err := p.copyFrom(ctx, url, how)
			var refused *refusedWorkerError
			switch {
			case errors.As(err, &refused):
				return true, refused.error
			case err != nil:
				failed++
				if ctx.Err() != nil {
					return false, nil
				}
				p.h.stateStats.peerFailures.Add(1)
				if last[url] != err.Error() { // each reason once
					last[url] = err.Error()
					p.h.log.Warn("peer not copied", "peer", url, "error", err)
				}
			case n > 0:
				return true, nil
			}
		}
		if failed == 0 {
			p.h.log.Info("the peers know nothing yet", "peers", strings.Join(urls, ","))
			return false, nil
		}
		pause := time.NewTimer(delay)
		select {
		case <-pause.C:
		case <-end.C:
			pause.Stop()
			p.h.log.Warn("peers given up: going on without them", "peers", strings.Join(urls, ","), "after", p.h.cfg.PeerTimeout)
			return false, nil
		case <-ctx.Done():
			pause.Stop()
			return false, nil
		}
	}
}

// errPeerStalled is what a copy ends with that does not move on.
var errPeerStalled = errors.New("nothing came, or too little, for too long")

// refusedWorkerError is a configured worker that cannot be registered: no peer's fault.
type refusedWorkerError struct{ error }

// copyFrom takes up what the peer at url knows and this host does not. It returns how
// many registrations the peer has.
func (p *peers) copyFrom(ctx context.Context, url string, how *peerCopy) (n int, err error) {
	p.copying.Lock()
	defer p.copying.Unlock()
	begun := time.Now()
	list, f, err := p.spool(ctx, url, how)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if len(list.regs) == 0 {
		return 0, nil
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return 0, err
	}
	r := &restorer{h: p.h, ctx: ctx, start: how.start}
	if err := state.Read(bufio.NewReaderSize(f, 1<<20), r); err != nil {
		r.abandon()
		return 0, err
	}
	r.peers = nil // they are the peer's
	if err := r.finish(); err != nil {
		return 0, &refusedWorkerError{err}
	}
	st := &p.h.stateStats
	st.peerCopies.Add(1)
	st.restored.Add(uint64(r.streams))
	st.memberships.Add(r.memberships)
	p.h.log.Info("copied from a peer", "peer", url, "registrations", r.registered, "streams", r.streams, "of", list.Streams,
		"memberships", r.memberships, "took", time.Since(begun))
	return len(list.regs), nil
}

// spool has the peer's state in a file that has no name: in the state directory, and
// where that takes nothing, among the system's temporary files.
func (p *peers) spool(ctx context.Context, url string, how *peerCopy) (*registrationList, *os.File, error) {
	dirs := []string{p.h.cfg.StateDir, os.TempDir()}
	if p.h.cfg.StateDir == "" {
		dirs = dirs[1:]
	}
	var errs []error
	for _, dir := range dirs {
		f, err := unnamed(dir)
		if err == nil {
			var list *registrationList
			if list, err = p.fetch(ctx, url, f, how); err == nil {
				return list, f, nil
			}
			err = errors.Join(err, f.Close())
		}
		errs = append(errs, err)
		if local := (*fs.PathError)(nil); !errors.As(err, &local) {
			break // the peer's fault
		}
	}
	return nil, nil, errors.Join(errs...)
}

// unnamed makes a file in dir that nobody else sees, and of which nothing is left
// however this ends.
func unnamed(dir string) (*os.File, error) {
	f, err := os.CreateTemp(dir, ".peer-*"+unfinished)
	if err != nil {
		return nil, err
	}
	if err := os.Remove(f.Name()); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// fetch writes the peer's state to f, checked as it comes: of one that is none no more
// is read than shows it.
func (p *peers) fetch(ctx context.Context, url string, f *os.File, how *peerCopy) (*registrationList, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stalled := time.AfterFunc(how.patience, func() { cancel(errPeerStalled) })
	defer stalled.Stop()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/state", nil)
	if err != nil {
		return nil, err
	}
	client, err := p.client(req, how.trusted)
	if err != nil {
		return nil, err
	}
	defer client.CloseIdleConnections()
	resp, err := client.Do(req)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }() // it was read, or is of no use
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, maxPeerAnswer)) // as much as there is
		hint := ""
		if p.h.cfg.PeerTokenFile != "" && !how.trusted {
			hint = " (a peer that no admin registered is not shown peer-token-file)"
		}
		return nil, fmt.Errorf("answered %s: %.300q%s", resp.Status, text, hint)
	}
	out := bufio.NewWriterSize(f, 1<<20)
	body := io.LimitReader(&moving{r: resp.Body, t: stalled}, maxPeerState)
	list := &registrationList{}
	if err := state.Read(io.TeeReader(bufio.NewReaderSize(body, 1<<20), out), list); err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return nil, err
	}
	return list, out.Flush()
}

// moving puts a timer off each time that it has brought as much as peerPace.
type moving struct {
	r io.Reader
	t *time.Timer
	n int // bytes since
}

// Read implements io.Reader.
func (m *moving) Read(b []byte) (int, error) {
	n, err := m.r.Read(b)
	if m.n += n; m.n >= peerPace {
		m.n = 0
		m.t.Reset(peerStall)
	}
	return n, err
}

// client returns what asks a peer; one that is trusted is shown the token. Nobody is
// followed elsewhere.
func (p *peers) client(req *http.Request, trusted bool) (*http.Client, error) {
	t := &http.Transport{DisableCompression: true}
	if p.h.cfg.PeerCA != "" {
		pool, err := secure.ReadAuthorities(p.h.cfg.PeerCA)
		if err != nil {
			return nil, err
		}
		t.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: pool}
	}
	if p.h.cfg.PeerTokenFile != "" && trusted {
		token, err := settings.ReadToken(p.h.cfg.PeerTokenFile)
		if err != nil {
			return nil, err
		}
		req.Header.Set("Authorization", "Bearer "+token)
	}
	return &http.Client{Transport: t, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}, nil
}

// copyAside copies from url behind the caller's back, until it has worked or the peer
// timeout is over. A host that has no workers yet is not ready meanwhile.
func (p *peers) copyAside(url string, trusted bool) {
	ctx, cancel := context.WithCancel(context.Background())
	over := func() {}
	if len(p.h.reg.workers(nil)) == 0 && p.h.beginning.Load() == nil {
		p.h.copies.Add(1)
		over = func() { p.h.copies.Add(-1) }
	}
	p.aside.Go(func() {
		defer over()
		defer cancel()
		go func() {
			select {
			case <-p.h.closing:
				cancel()
			case <-ctx.Done():
			}
		}()
		if p.h.begun(ctx) != nil {
			return
		}
		if found, _ := p.until(ctx, []string{url}, &peerCopy{trusted: trusted}); found { // nothing is configured then
			p.h.changed(ctx)
		}
	})
}
