// SPDX-License-Identifier: Apache-2.0

package indexsrv

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"kindex/internal/kv"
	"kindex/internal/livedigest"
	"kindex/relay/feed"

	relayv1 "kindex/proto/kindex/relay/v1"
)

// fakeRelay serves what tests say, to each subscription in its turn.
type fakeRelay struct {
	relayv1.UnimplementedRelayServiceServer
	serve func(n int, req *relayv1.SubscribeRequest, send func(...*relayv1.SubscribeResponse)) error
	token string // where not "", whoever brings no such token is refused

	addr  string
	srv   *grpc.Server
	n     atomic.Int32
	conns atomic.Int32
}

func startRelay(t *testing.T, f *fakeRelay, opts ...grpc.ServerOption) *fakeRelay {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f.addr = ln.Addr().String()
	f.srv = grpc.NewServer(opts...)
	relayv1.RegisterRelayServiceServer(f.srv, f)
	go func() { _ = f.srv.Serve(countConns{ln, &f.conns}) }()
	t.Cleanup(f.srv.Stop)
	return f
}

// countConns counts the connections that are open.
type countConns struct {
	net.Listener
	n *atomic.Int32
}

func (l countConns) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.n.Add(1)
	return &countedConn{Conn: c, n: l.n}, nil
}

type countedConn struct {
	net.Conn
	n    *atomic.Int32
	once sync.Once
}

func (c *countedConn) Close() error {
	c.once.Do(func() { c.n.Add(-1) })
	return c.Conn.Close()
}

func (f *fakeRelay) Describe(ctx context.Context, _ *relayv1.DescribeRequest) (*relayv1.DescribeResponse, error) {
	return &relayv1.DescribeResponse{}, f.allow(ctx)
}

func (f *fakeRelay) allow(ctx context.Context) error {
	md, _ := metadata.FromIncomingContext(ctx)
	if got := strings.Join(md.Get("authorization"), ","); f.token != "" && got != "Bearer "+f.token {
		return status.Error(codes.Unauthenticated, "a bearer token is needed")
	}
	return nil
}

func (f *fakeRelay) Subscribe(req *relayv1.SubscribeRequest, s grpc.ServerStreamingServer[relayv1.SubscribeResponse]) error {
	if err := f.allow(s.Context()); err != nil {
		return err
	}
	err := f.serve(int(f.n.Add(1))-1, req, func(ms ...*relayv1.SubscribeResponse) {
		for _, m := range ms {
			_ = s.Send(m) // a client that is gone is seen below
		}
	})
	if err != nil {
		return err
	}
	<-s.Context().Done()
	return s.Context().Err()
}

// relayStore is the store of device copies that storeOf announces, as a relay
// tells it.
func relayStore(parent uint64, blocks ...uint64) *relayv1.Event {
	st := &relayv1.Stored{Tier: relayv1.Tier_TIER_DEVICE, Seed: kv.HashSeed, BlockSize: testBlock, Engines: blocks}
	if parent != 0 {
		st.Parent = &parent
	}
	for _, c := range chainOf(kv.HashSeed, blocks...) {
		st.Contents = append(st.Contents, uint64(c))
	}
	return &relayv1.Event{Event: &relayv1.Event_Stored{Stored: st}}
}

func relayClear() *relayv1.Event {
	return &relayv1.Event{Event: &relayv1.Event_Cleared{Cleared: &relayv1.Cleared{}}}
}

func relayBatch(rank uint32, seq uint64, events ...*relayv1.Event) *relayv1.SubscribeResponse {
	return &relayv1.SubscribeResponse{Rank: rank, Epoch: 77, Body: &relayv1.SubscribeResponse_Batch{
		Batch: &relayv1.Batch{Sequence: seq, Check: 1 + seq, Timestamp: 1_800_000_000, Events: events},
	}}
}

func relayHole(from, to uint64) *relayv1.SubscribeResponse {
	return &relayv1.SubscribeResponse{Epoch: 77, Body: &relayv1.SubscribeResponse_Hole{Hole: &relayv1.Hole{From: from, To: to, Why: "the engine has no replay"}}}
}

func relayStands(exact bool, why string) *relayv1.SubscribeResponse {
	return &relayv1.SubscribeResponse{Epoch: 77, Body: &relayv1.SubscribeResponse_Standing{
		Standing: &relayv1.Standing{Primed: true, Exact: exact, Why: why},
	}}
}

// relaySnapshot returns chunks, one for each event, of stores only.
func relaySnapshot(through uint64, stores ...*relayv1.Event) []*relayv1.SubscribeResponse {
	var book livedigest.Book
	ms := make([]*relayv1.SubscribeResponse, len(stores))
	for i, ev := range stores {
		s := ev.GetStored()
		st := livedigest.Store{Parent: kv.EngineHash(s.GetParent()), HasParent: s.Parent != nil, Seed: s.GetSeed()}
		for k, e := range s.GetEngines() {
			st.Engines = append(st.Engines, kv.EngineHash(e))
			st.Contents = append(st.Contents, kv.ContentHash(s.GetContents()[k]))
		}
		book.Store(&st)
		ms[i] = &relayv1.SubscribeResponse{Epoch: 77, Body: &relayv1.SubscribeResponse_Snapshot{Snapshot: &relayv1.SnapshotChunk{
			Index: uint32(i), Count: uint32(len(stores)), Any: true, Through: through, Check: 1 + through, Events: []*relayv1.Event{ev},
		}}}
	}
	ms[len(ms)-1].GetSnapshot().Digest = book.Sum()
	return ms
}

// relayHost is a host with one instance of a relay.
func relayHost(t *testing.T, f *fakeRelay, more string, change func(*Config)) *testHost {
	t.Helper()
	h := startTestHost(t, change)
	h.register(fmt.Sprintf(`{"instance_id":1,"endpoint":%q,"model_name":"m","block_size":%d,"source":"relay"%s}`, f.addr, testBlock, more))
	return h
}

// relayed waits until rank n of instance 1 is as ok wants it.
func (h *testHost) relayed(what string, n int, ok func(l Listener) bool) Listener {
	h.t.Helper()
	var l Listener
	waitFor(h.t, what, func() bool {
		l = h.Instances("", "")[0].Listeners[fmt.Sprint(n)]
		return ok(l)
	})
	return l
}

func (h *testHost) state(n int, want feed.State) Listener {
	h.t.Helper()
	return h.relayed("state "+want.String(), n, func(l Listener) bool { return l.Status == want.String() })
}

func seqIs(want uint64) func(Listener) bool {
	return func(l Listener) bool { return l.LastSeq != nil && *l.LastSeq == want }
}

// TestRelayRanks: the ranks of one registration share one connection and one
// stream; each has its own content, state and end.
func TestRelayRanks(t *testing.T) {
	more := make(chan struct{})
	f := startRelay(t, &fakeRelay{serve: func(_ int, req *relayv1.SubscribeRequest, send func(...*relayv1.SubscribeResponse)) error {
		if len(req.GetRanks()) != 2 {
			t.Errorf("ranks %d are asked for, want 2 of them", req.GetRanks())
		}
		send(relayBatch(0, 0, relayStore(0, 1, 2, 3)), relayBatch(1, 0, relayStore(0, 1)), relayBatch(1, 1, relayStore(1, 5)))
		<-more
		send(relayBatch(0, 1, relayStore(0, 9)), relayBatch(1, 2, relayStore(0, 9)))
		return nil
	}})
	h := relayHost(t, f, `,"dp_size":2`, nil)
	h.state(0, feed.StateActive)
	l := h.state(1, feed.StateActive)
	if l.Memberships != 2 || l.Endpoint != f.addr || l.LastError != "" || l.Epoch != 1 {
		t.Errorf("rank 1 is %+v", l)
	}
	if w := h.Instances("", "")[0]; w.Source != "relay" || w.Status != "active" {
		t.Errorf("the worker is %+v", w)
	}
	r := h.rank("m", "", "1", 0)
	if got := h.idx.Lookup(r.cfg.Model.Namespace(kv.HashSeed), chainOf(kv.HashSeed, 1, 2, 3), nil); len(got) != 2 || got[0].Any+got[1].Any != 4 {
		t.Errorf("the ranks hold %+v, want 3 and 1 of the chain", got)
	}
	if n := f.n.Load(); n != 1 {
		t.Errorf("%d subscriptions, want 1", n)
	}
	h.must(200, "POST", "/unregister", `{"instance_id":1,"model_name":"m","dp_rank":0}`)
	close(more)
	if l := h.relayed("batch 2", 1, seqIs(2)); l.Memberships != 3 {
		t.Errorf("rank 1 is %+v", l)
	}
	if n := f.conns.Load(); n != 1 {
		t.Errorf("%d connections, want 1", n)
	}
	h.must(200, "POST", "/unregister", `{"instance_id":1,"model_name":"m"}`)
	waitFor(t, "the connection's end", func() bool { return f.conns.Load() == 0 })
	h.register(fmt.Sprintf(`{"instance_id":1,"endpoint":%q,"model_name":"m","block_size":%d,"source":"relay","dp_size":2}`, f.addr, testBlock))
	h.state(0, feed.StateActive)
}

// TestRelaySnapshots: a snapshot that ends early leaves nothing behind and no
// state that looks exact; a whole one replaces everything.
func TestRelaySnapshots(t *testing.T) {
	torn := make(chan struct{})
	f := startRelay(t, &fakeRelay{serve: func(n int, req *relayv1.SubscribeRequest, send func(...*relayv1.SubscribeResponse)) error {
		chunks := relaySnapshot(40, relayStore(0, 1, 2, 3), relayStore(3, 4, 5), relayStore(0, 8))
		if n == 0 {
			send(relayBatch(0, 0, relayStore(0, 100)))
			send(chunks[:2]...)
			<-torn
			return status.Error(codes.Unavailable, "going away")
		}
		if len(req.GetCursors()) > 0 {
			t.Errorf("cursors %v after a snapshot that did not end", req.GetCursors())
		}
		send(chunks...)
		send(relayBatch(0, 41, relayStore(5, 6)))
		return nil
	}})
	h := relayHost(t, f, "", nil)
	l := h.relayed("half a snapshot", 0, func(l Listener) bool { return l.Memberships == 5 })
	if l.Status != "degraded" || !strings.Contains(l.LastError, "snapshot") {
		t.Errorf("within a snapshot it is %+v", l)
	}
	if code, _ := h.do("GET", "/readyz", ""); code != 503 {
		t.Errorf("/readyz is %d within a snapshot, want 503", code)
	}
	close(torn)
	h.relayed("the whole one", 0, seqIs(41))
	l = h.state(0, feed.StateActive)
	if l.Memberships != 7 || l.Snapshots != 1 || l.Resets != 1 {
		t.Errorf("after a whole one it is %+v", l)
	}
	if code, _ := h.do("GET", "/readyz", ""); code != 200 {
		t.Errorf("/readyz is %d, want 200", code)
	}
}

// TestRelayHoles: what never comes leaves the stream degraded, given up on, until
// the engine clears its cache.
func TestRelayHoles(t *testing.T) {
	clearing := make(chan struct{})
	f := startRelay(t, &fakeRelay{serve: func(_ int, _ *relayv1.SubscribeRequest, send func(...*relayv1.SubscribeResponse)) error {
		send(relayStands(true, ""), relayBatch(0, 0, relayStore(0, 1, 2, 3)), relayHole(1, 4), relayBatch(0, 5, relayStore(0, 9)))
		<-clearing
		send(relayBatch(0, 6, relayClear(), relayStore(0, 7)))
		return nil
	}})
	h := relayHost(t, f, "", nil)
	h.relayed("batch 5", 0, seqIs(5))
	l := h.state(0, feed.StateDegraded)
	if l.LastError != "batches 1 to 4 lost: the engine has no replay" || l.Lost != 4 || l.Memberships != 4 {
		t.Errorf("after a hole it is %+v", l)
	}
	if code, _ := h.do("GET", "/readyz", ""); code != 200 {
		t.Errorf("/readyz is %d where nothing more can be done, want 200", code)
	}
	if _, body := h.do("POST", "/query", query(t, blockTokens(1), "")); !strings.Contains(body, `"degraded":true`) {
		t.Errorf("the answer is %s, want degraded", body)
	}
	close(clearing)
	if l := h.state(0, feed.StateActive); l.Memberships != 1 {
		t.Errorf("after a clear it is %+v", l)
	}
}

// TestRelayStanding: what the relay says of itself is the stream's state.
func TestRelayStanding(t *testing.T) {
	heal := make(chan struct{})
	f := startRelay(t, &fakeRelay{serve: func(_ int, _ *relayv1.SubscribeRequest, send func(...*relayv1.SubscribeResponse)) error {
		send(relayStands(false, "batches 3 to 4 lost"), relayBatch(0, 0))
		<-heal
		send(relayStands(true, ""))
		return nil
	}})
	h := relayHost(t, f, "", nil)
	h.relayed("why", 0, func(l Listener) bool {
		return l.Status == "degraded" && l.LastError == "the relay is not exact: batches 3 to 4 lost"
	})
	close(heal)
	h.state(0, feed.StateActive)
}

// TestRelayGone: content is kept while a relay is away, and the stream is failed
// when that takes long; it goes on where it was.
func TestRelayGone(t *testing.T) {
	f := startRelay(t, &fakeRelay{serve: func(_ int, req *relayv1.SubscribeRequest, send func(...*relayv1.SubscribeResponse)) error {
		if len(req.GetCursors()) > 0 {
			send(relayStands(true, ""), relayBatch(0, 1, relayStore(3, 4)))
			return nil
		}
		send(relayBatch(0, 0, relayStore(0, 1, 2, 3)))
		return nil
	}})
	h := relayHost(t, f, "", func(c *Config) { c.ConnectPeriod = 300 * time.Millisecond })
	h.state(0, feed.StateActive)
	f.srv.Stop()
	h.state(0, feed.StateDegraded)
	l := h.state(0, feed.StateFailed)
	if want := "no event stream from " + f.addr + " for 300ms: "; !strings.HasPrefix(l.LastError, want) || l.Memberships != 3 {
		t.Errorf("it is %+v, want an error that begins %q", l, want)
	}
	ln, err := net.Listen("tcp", f.addr)
	if err != nil {
		t.Fatal(err)
	}
	again := grpc.NewServer()
	relayv1.RegisterRelayServiceServer(again, f)
	go func() { _ = again.Serve(ln) }()
	t.Cleanup(again.Stop)
	h.relayed("batch 1", 0, seqIs(1))
	if l := h.state(0, feed.StateActive); l.Memberships != 4 || l.Epoch != 1 || l.Resets != 0 {
		t.Errorf("it is %+v", l)
	}
}

// TestRelayAgain: a relay that restarted and goes on from a proven cursor tells of
// the same life of the engine, whatever it calls it.
func TestRelayAgain(t *testing.T) {
	f := startRelay(t, &fakeRelay{serve: func(_ int, req *relayv1.SubscribeRequest, send func(...*relayv1.SubscribeResponse)) error {
		for _, cur := range req.GetCursors() {
			next := relayBatch(0, cur.GetSequence()+1, relayStore(3, 4))
			next.Epoch = 78
			send(next)
			return nil
		}
		send(relayBatch(0, 0, relayStore(0, 1, 2, 3)))
		return status.Error(codes.Unavailable, "going away")
	}})
	h := relayHost(t, f, "", nil)
	h.relayed("batch 1", 0, seqIs(1))
	if l := h.state(0, feed.StateActive); l.Memberships != 4 || l.Epoch != 1 || l.Restarts != 0 || l.Resets != 0 {
		t.Errorf("it is %+v, want 4 blocks of life 1", l)
	}
}

// TestRelayNever: a relay that is not there leaves the stream pending, then failed.
func TestRelayNever(t *testing.T) {
	h := relayHost(t, &fakeRelay{addr: "127.0.0.1:1"}, "", func(c *Config) { c.ConnectPeriod = 200 * time.Millisecond })
	h.relayed("why", 0, func(l Listener) bool {
		return l.Status == "pending" && strings.Contains(l.LastError, "connection refused")
	})
	h.state(0, feed.StateFailed)
}

// TestRelayRefused: what the index has no room for leaves the stream degraded. What
// was taken stays, and once there is room the content is asked for again.
func TestRelayRefused(t *testing.T) {
	evict := make(chan struct{})
	f := startRelay(t, &fakeRelay{serve: func(n int, req *relayv1.SubscribeRequest, send func(...*relayv1.SubscribeResponse)) error {
		if n > 0 && len(req.GetCursors()) == 0 {
			send(relaySnapshot(41, relayStore(0, 1, 2, 3))...)
			return nil
		}
		var all []uint64
		for seq := range uint64(40) {
			blocks := make([]uint64, 2_000)
			for i := range blocks {
				blocks[i] = 1 + seq*2_000 + uint64(i)
			}
			all = append(all, blocks...)
			send(relayBatch(0, seq, relayStore(0, blocks...)))
		}
		<-evict
		send(relayBatch(0, 40, &relayv1.Event{Event: &relayv1.Event_Removed{Removed: &relayv1.Removed{Tier: relayv1.Tier_TIER_DEVICE, Engines: all[3:]}}}))
		return nil
	}})
	h := relayHost(t, f, "", func(c *Config) {
		c.KVIndex, c.Memory, c.ResyncDelay = "chain", 1<<20, 300*time.Millisecond
	})
	first := h.relayed("refused", 0, func(l Listener) bool {
		return l.Status == "degraded" && strings.Contains(l.LastError, "this worker has most") && l.Dropped["over_budget"] > 0 &&
			l.LastSeq != nil && *l.LastSeq == 39
	})
	if first.Memberships < 2_000 || first.Dropped["arena_full"] > 0 {
		t.Errorf("it is %+v: want what was taken, and nobody refused by a full index", first)
	}
	close(evict)
	h.relayed("less", 0, func(l Listener) bool { return l.Status == "active" && l.Memberships == 3 })
}

// TestRelayBlockSize: another block size than the registered one is named, and
// makes no memberships.
func TestRelayBlockSize(t *testing.T) {
	f := startRelay(t, &fakeRelay{serve: func(_ int, _ *relayv1.SubscribeRequest, send func(...*relayv1.SubscribeResponse)) error {
		ev := relayStore(0, 1, 2)
		ev.GetStored().BlockSize = 64
		send(relayStands(true, ""), relayBatch(0, 0, ev))
		return nil
	}})
	h := relayHost(t, f, "", nil)
	l := h.relayed("why", 0, func(l Listener) bool { return l.Dropped["block_size"] == 1 })
	if l.Status != "degraded" || !strings.Contains(l.LastError, "block size is 64, registered was 16") || l.Memberships != 0 {
		t.Errorf("it is %+v", l)
	}
}

// certificates writes a CA, and a certificate of it for 127.0.0.1, to files.
func certificates(t *testing.T) (ca, cert, key string, pair tls.Certificate, pool *x509.CertPool) {
	t.Helper()
	dir := t.TempDir()
	write := func(name, kind string, der []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	authority := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, authority, authority, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	ca, key = write("cert.pem", "CERTIFICATE", der), write("key.pem", "EC PRIVATE KEY", secret)
	if pair, err = tls.LoadX509KeyPair(ca, key); err != nil {
		t.Fatal(err)
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool = x509.NewCertPool()
	pool.AddCert(parsed)
	return ca, ca, key, pair, pool
}

// TestRelaySecrets: certificates on both sides and a token; without them the
// stream says what is wrong.
func TestRelaySecrets(t *testing.T) {
	ca, cert, key, pair, pool := certificates(t)
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	f := startRelay(t, &fakeRelay{token: "secret", serve: func(_ int, _ *relayv1.SubscribeRequest, send func(...*relayv1.SubscribeResponse)) error {
		send(relayBatch(0, 0, relayStore(0, 1, 2, 3)))
		return nil
	}}, grpc.Creds(credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{pair}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert,
	})))
	whole := func(c *Config) { c.RelayCA, c.RelayCert, c.RelayKey, c.RelayTokenFile = ca, cert, key, token }
	h := relayHost(t, f, "", whole)
	if l := h.state(0, feed.StateActive); l.Memberships != 3 {
		t.Errorf("it is %+v", l)
	}
	for _, tc := range []struct {
		want   string
		change func(*Config)
	}{
		{"a bearer token is needed", func(c *Config) { whole(c); c.RelayTokenFile = "" }},
		{"certificate", func(c *Config) { whole(c); c.RelayCert, c.RelayKey = "", "" }},
		{"x509", func(c *Config) { whole(c); c.RelayCA = "" }},
		{"", func(c *Config) { c.RelayTokenFile = token }}, // in the clear
	} {
		h := relayHost(t, f, "", tc.change)
		l := h.relayed("refused: "+tc.want, 0, func(l Listener) bool { return l.LastError != "" && strings.Contains(l.LastError, tc.want) })
		if l.Status != "pending" || l.Memberships != 0 {
			t.Errorf("%q: it is %+v", tc.want, l)
		}
	}
}

// TestRelayFiles: what is wrong with a file for relays is said at the start.
func TestRelayFiles(t *testing.T) {
	_, cert, key, _, _ := certificates(t)
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for want, c := range map[string]Config{
		"relay-ca: open ":                           {RelayCA: filepath.Join(dir, "none")},
		"no certificate in it":                      {RelayCA: file("ca", "nothing")},
		"relay-cert and relay-key go together":      {RelayCert: cert},
		"relay-cert: ":                              {RelayCert: key, RelayKey: cert},
		"a token must be one word a line":           {RelayTokenFile: file("two", "a b\n")},
		"relay-token-file: open ":                   {RelayTokenFile: filepath.Join(dir, "none")},
		"over 1048576 bytes, no such file is that ": {RelayTokenFile: file("long", strings.Repeat("a", 1<<20+1))},
	} {
		if _, err := c.relayOptions(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", c, err, want)
		}
	}
}
