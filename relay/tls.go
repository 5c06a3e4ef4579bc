// SPDX-License-Identifier: Apache-2.0

// Before: connections. After: gRPC and HTTP.

package relay

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"kindex/internal/settings"
)

// watchPeriod is how often files are looked at, when somebody asks.
const watchPeriod = time.Second

// watched is what some files say. They are looked at when it is asked for, once a
// second at most, and read again when one has changed. What cannot be read leaves
// what was there in force.
//
// Concurrency: any goroutine.
type watched[T any] struct {
	paths []string
	load  func() (*T, error)
	told  func(error) // of a reload: nil when it was good

	value atomic.Pointer[T]
	next  atomic.Int64 // when to look again, Unix ns

	mu    sync.Mutex // guards stamp
	stamp []fileStamp
}

type fileStamp struct {
	size int64
	time time.Time
}

func newWatched[T any](paths []string, load func() (*T, error), told func(error)) (*watched[T], error) {
	w := &watched[T]{paths: paths, load: load, told: told}
	w.stamp = w.stamps()
	v, err := load()
	if err != nil {
		return nil, err
	}
	w.value.Store(v)
	w.next.Store(time.Now().Add(watchPeriod).UnixNano())
	return w, nil
}

// stamps returns what tells one state of the files from another; a file that is
// not there has a zero one.
func (w *watched[T]) stamps() []fileStamp {
	stamps := make([]fileStamp, len(w.paths))
	for i, path := range w.paths {
		if info, err := os.Stat(path); err == nil {
			stamps[i] = fileStamp{info.Size(), info.ModTime()}
		}
	}
	return stamps
}

// get returns what the files say.
func (w *watched[T]) get() *T {
	now := time.Now()
	next := w.next.Load()
	if now.UnixNano() >= next && w.next.CompareAndSwap(next, now.Add(watchPeriod).UnixNano()) {
		w.reload()
	}
	return w.value.Load()
}

func (w *watched[T]) reload() {
	w.mu.Lock()
	defer w.mu.Unlock()
	stamp := w.stamps()
	same := true
	for i := range stamp {
		same = same && stamp[i].size == w.stamp[i].size && stamp[i].time.Equal(w.stamp[i].time)
	}
	if same {
		return
	}
	v, err := w.load()
	if err == nil {
		w.value.Store(v)
	}
	w.stamp = stamp
	w.told(err)
}

// tlsFiles are the certificate of a server, its key, and the authorities whose
// clients it takes: all of it is read again when it changes.
type tlsFiles struct {
	cert, key, clientCA string // paths; clientCA "": any client
}

// config returns the configuration of a server that speaks the given protocols.
func (f tlsFiles) config(told func(error), protocols ...string) (*tls.Config, error) {
	paths := []string{f.cert, f.key}
	if f.clientCA != "" {
		paths = append(paths, f.clientCA)
	}
	files, err := newWatched(paths, func() (*tls.Config, error) { return f.read(protocols) }, told)
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion:         tls.VersionTLS13,
		NextProtos:         protocols,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return files.get(), nil },
	}, nil
}

// read returns the configuration that the files give now.
func (f tlsFiles) read(protocols []string) (*tls.Config, error) {
	cert, err := settings.ReadKeyPair(f.cert, f.key)
	if err != nil {
		return nil, err
	}
	c := &tls.Config{MinVersion: tls.VersionTLS13, NextProtos: protocols, Certificates: []tls.Certificate{cert}}
	if f.clientCA != "" {
		if c.ClientCAs, err = readAuthorities(f.clientCA); err != nil {
			return nil, err
		}
		c.ClientAuth = tls.RequireAndVerifyClientCert
	}
	return c, nil
}

// readAuthorities returns the authorities that the file at path names.
func readAuthorities(path string) (*x509.CertPool, error) {
	text, err := settings.ReadFile(path)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s: no certificate in it: it must be PEM", path)
	}
	return pool, nil
}
