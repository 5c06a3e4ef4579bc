// SPDX-License-Identifier: Apache-2.0

// Before: another host's GET /state. After: state_load.go.

package indexsrv

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"kindex/indexsrv/state"
	"kindex/internal/settings"
)

// Pauses and bounds of copying from a peer. Chosen, not measured.
const (
	peerDelay     = 200 * time.Millisecond // before the second round, doubling
	peerMaxDelay  = 5 * time.Second
	peerStall     = 10 * time.Second // without a byte before a copy is given up
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
	urls := p.list()
	return p.until(ctx, urls, true)
}

// until tries urls in turn until one has given what it knows.
func (p *peers) until(ctx context.Context, urls []string, start bool) (found bool, err error) {
	end := time.NewTimer(p.h.cfg.PeerTimeout)
	defer end.Stop()
	last := map[string]string{}
	for delay := peerDelay; ; delay = min(2*delay, peerMaxDelay) {
		failed := 0
		for _, url := range urls {
			n, err := p.copyFrom(ctx, url, start)
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

// refusedWorkerError is a configured worker that cannot be registered: no peer's fault.
type refusedWorkerError struct{ error }

// copyFrom takes up what the peer at url knows and this host does not. It returns how
// many registrations the peer has.
func (p *peers) copyFrom(ctx context.Context, url string, start bool) (n int, err error) {
	p.copying.Lock()
	defer p.copying.Unlock()
	begun := time.Now()
	f, err := os.CreateTemp(p.h.cfg.StateDir, ".peer-*"+unfinished)
	if err != nil {
		return 0, err
	}
	// Nobody else needs its name, and nothing is left of it however this ends.
	err = os.Remove(f.Name())
	defer func() { err = errors.Join(err, f.Close()) }()
	if err != nil {
		return 0, err
	}
	if err := p.fetch(ctx, url, f); err != nil {
		return 0, err
	}
	var list registrationList
	if err := rewound(f, &list); err != nil {
		return 0, err
	}
	if len(list.regs) == 0 {
		return 0, nil
	}
	r := &restorer{h: p.h, ctx: ctx, start: start}
	if err := rewound(f, r); err != nil {
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

func rewound(f *os.File, t state.Taker) error {
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	return state.Read(bufio.NewReaderSize(f, 1<<20), t)
}

// fetch asks the peer for its state.
func (p *peers) fetch(ctx context.Context, url string, to io.Writer) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stalled := time.AfterFunc(peerStall, func() { cancel(fmt.Errorf("nothing came for %v", peerStall)) })
	defer stalled.Stop()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/state", nil)
	if err != nil {
		return err
	}
	client, err := p.client(req)
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	resp, err := client.Do(req)
	if err != nil {
		return errors.Join(context.Cause(ctx), err)
	}
	defer func() { _ = resp.Body.Close() }() // it was read, or is of no use
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, maxPeerAnswer)) // as much as there is
		return fmt.Errorf("answered %s: %.300q", resp.Status, text)
	}
	n, err := io.Copy(to, io.LimitReader(&moving{resp.Body, stalled}, maxPeerState+1))
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return err
	}
	if n > maxPeerState {
		return fmt.Errorf("a state of more than %d bytes", int64(maxPeerState))
	}
	return nil
}

// moving puts a timer off with each read that brings something.
type moving struct {
	r io.Reader
	t *time.Timer
}

// Read implements io.Reader.
func (m *moving) Read(b []byte) (int, error) {
	n, err := m.r.Read(b)
	if n > 0 {
		m.t.Reset(peerStall)
	}
	return n, err
}

// client returns what asks a peer, and gives req the token.
func (p *peers) client(req *http.Request) (*http.Client, error) {
	t := &http.Transport{DisableCompression: true}
	if p.h.cfg.PeerCA != "" {
		pool, err := readAuthorities(p.h.cfg.PeerCA)
		if err != nil {
			return nil, err
		}
		t.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: pool}
	}
	if p.h.cfg.PeerTokenFile != "" {
		token, err := settings.ReadToken(p.h.cfg.PeerTokenFile)
		if err != nil {
			return nil, err
		}
		req.Header.Set("Authorization", "Bearer "+token)
	}
	return &http.Client{Transport: t}, nil
}

// readAuthorities reads the certificates in a PEM file.
func readAuthorities(path string) (*x509.CertPool, error) {
	pem, err := settings.ReadFile(path)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s holds no certificate in PEM form", path)
	}
	return pool, nil
}

// copyAside copies from url behind the caller's back, until it has worked or the peer
// timeout is over. A host that has no workers yet is not ready meanwhile.
func (p *peers) copyAside(url string) {
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
		if found, _ := p.until(ctx, []string{url}, false); found { // nothing is configured then
			p.h.changed(ctx)
		}
	})
}
