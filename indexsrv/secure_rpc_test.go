// SPDX-License-Identifier: Apache-2.0

package indexsrv

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"kindex/internal/logsink"
	"kindex/internal/secure"
	"kindex/internal/secure/securetest"
	kindexv1 "kindex/proto/kindex/v1"
)

// rpcRig is a gRPC server behind a gate, whose services do nothing: a call that is
// let in is unimplemented.
type rpcRig struct {
	t      *testing.T
	gate   *gate
	server *grpc.Server
	addr   string
	logged *lockedBuffer
}

// rpcWorkers sees who registers.
type rpcWorkers struct {
	kindexv1.UnimplementedWorkersServiceServer
	gate *gate
}

func (w rpcWorkers) RegisterWorker(ctx context.Context, _ *kindexv1.RegisterWorkerRequest) (*kindexv1.RegisterWorkerResponse, error) {
	w.gate.audit.mutation(actorOf(ctx), "register", nil)
	return &kindexv1.RegisterWorkerResponse{}, nil
}

func startRPC(t *testing.T, listen string, cfg SecureConfig) *rpcRig {
	t.Helper()
	r := &rpcRig{t: t, logged: &lockedBuffer{}}
	var err error
	if r.gate, err = newGate(&cfg, slog.New(slog.NewJSONHandler(r.logged, nil))); err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", listen)
	if err != nil {
		t.Fatal(err)
	}
	p := &port{}
	r.gate.taken(p, ln.Addr())
	_, number, err := net.SplitHostPort(ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	r.addr = net.JoinHostPort("127.0.0.1", number)
	r.server = grpc.NewServer(r.gate.rpcOptions(p)...)
	kindexv1.RegisterIndexServiceServer(r.server, kindexv1.UnimplementedIndexServiceServer{})
	kindexv1.RegisterWorkersServiceServer(r.server, rpcWorkers{gate: r.gate})
	kindexv1.RegisterContentServiceServer(r.server, kindexv1.UnimplementedContentServiceServer{})
	kindexv1.RegisterStatsServiceServer(r.server, kindexv1.UnimplementedStatsServiceServer{})
	kindexv1.RegisterExplainServiceServer(r.server, kindexv1.UnimplementedExplainServiceServer{})
	healthpb.RegisterHealthServer(r.server, health.NewServer())
	reflection.Register(r.server)
	go func() { _ = r.server.Serve(ln) }()
	t.Cleanup(r.server.Stop)
	return r
}

// dial returns a connection with TLS as c says; nil: in the clear.
func (r *rpcRig) dial(c *tls.Config) *grpc.ClientConn {
	r.t.Helper()
	creds := insecure.NewCredentials()
	if c != nil {
		creds = credentials.NewTLS(c)
	}
	conn, err := grpc.NewClient(r.addr, grpc.WithTransportCredentials(creds))
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// call calls a method with an empty message.
func call(t *testing.T, conn *grpc.ClientConn, method, token string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	}
	s, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
	if err != nil {
		return err
	}
	_ = s.SendMsg(&emptypb.Empty{}) // how it ends is told by what comes back
	_ = s.CloseSend()
	return s.RecvMsg(&emptypb.Empty{})
}

// TestRPCRoles calls every method with no token, a wrong one, and one of each role.
func TestRPCRoles(t *testing.T) {
	r := startRPC(t, "127.0.0.1:0", SecureConfig{TokenFile: tokenFile(t)})
	conn := r.dial(nil)
	methods := []string{"/kindex.v1.IndexService/NoSuchThing", "/no.Such/Thing"}
	for service, info := range r.server.GetServiceInfo() {
		for _, m := range info.Methods {
			methods = append(methods, "/"+service+"/"+m.Name)
		}
	}
	for method := range rpcAccess {
		if !slices.Contains(methods, method) {
			t.Errorf("%s has a role and is not served", method)
		}
	}
	for _, method := range methods {
		known := strings.HasPrefix(method, "/grpc.") || rpcAccess[method] != access{}
		if !known && !strings.Contains(method, "NoSuch") && !strings.Contains(method, "no.Such") {
			t.Errorf("%s has no role of its own", method)
		}
		if !known {
			continue // gRPC answers that by itself: unimplemented, before anybody is asked
		}
		need := accessOf(method).role
		for token, has := range roleTokens {
			err := call(t, conn, method, token)
			want, words := codes.PermissionDenied, "asks for a token of role "+need.String()
			switch {
			case has >= need:
				if c := status.Code(err); c == codes.Unauthenticated || c == codes.PermissionDenied {
					t.Errorf("%s with %q: %v, want it let in", method, token, err)
				}
				continue
			case token == "":
				want, words = codes.Unauthenticated, `"Bearer TOKEN"`
			case has == secure.RoleNone:
				want, words = codes.Unauthenticated, "not one of this host's"
			}
			if status.Code(err) != want || !strings.Contains(err.Error(), words) {
				t.Errorf("%s with %q: %v, want %v with %q", method, token, err, want, words)
			}
		}
	}
	for _, method := range []string{kindexv1.WorkersService_RegisterWorker_FullMethodName, kindexv1.WorkersService_UnregisterWorker_FullMethodName} {
		if accessOf(method) != toChange {
			t.Errorf("%s asks for %v", method, accessOf(method))
		}
	}
	if accessOf("/grpc.health.v1.Health/Check") != openToAll || accessOf("/x.Y/Z") != toAdmin {
		t.Error("health is not open, or what nobody knows is")
	}
	if n := r.gate.audit.total(); n == 0 || r.gate.audit.refusals[reasonRole].Load() == 0 {
		t.Errorf("%d refusals are counted", n)
	}
	r.gate.audit.lines = logsink.NewLimiter()
	_ = call(t, conn, kindexv1.WorkersService_RegisterWorker_FullMethodName, "reader-token")
	_ = call(t, conn, kindexv1.WorkersService_RegisterWorker_FullMethodName, "writer-token")
	lines := strings.Split(strings.TrimSpace(r.logged.String()), "\n")
	for i, want := range []string{`"who":"gateway","via":"grpc","remote":"127.0.0.1:`, `"who":"deployer","via":"grpc","remote":"127.0.0.1:`} {
		if line := lines[len(lines)-2+i]; !strings.Contains(line, want) || !strings.Contains(line, []string{`"result":"refused","reason":"role"`, `"action":"register","result":"ok"`}[i]) {
			t.Errorf("audited as %s, want %s", line, want)
		}
	}
	for token := range roleTokens {
		if token != "" && strings.Contains(r.logged.String(), token) {
			t.Errorf("%s stands in the log", token)
		}
	}
}

// TestRPCAddress: what changes something is refused where the admin address has it,
// and beyond loopback where nobody has to say who he is.
func TestRPCAddress(t *testing.T) {
	for _, c := range []struct {
		listen string
		cfg    SecureConfig
		why    refusalReason
		words  string
	}{
		{"127.0.0.1:0", SecureConfig{}, numReasons, ""},
		{"127.0.0.1:0", SecureConfig{AdminListen: "127.0.0.1:9"}, reasonAdminOnly, "127.0.0.1:9"},
		{"0.0.0.0:0", SecureConfig{}, reasonExposed, "set token-file"},
		{"0.0.0.0:0", SecureConfig{OpenAdmin: true}, numReasons, ""},
	} {
		r := startRPC(t, c.listen, c.cfg)
		conn := r.dial(nil)
		err := call(t, conn, kindexv1.WorkersService_RegisterWorker_FullMethodName, "")
		if c.why == numReasons {
			if err != nil || r.gate.audit.total() != 0 {
				t.Errorf("%s %+v: %v", c.listen, c.cfg, err)
			}
		} else if status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), c.words) || r.gate.audit.refusals[c.why].Load() != 1 {
			t.Errorf("%s %+v: %v, want %q", c.listen, c.cfg, err, c.words)
		}
		if err := call(t, conn, kindexv1.IndexService_Lookup_FullMethodName, ""); status.Code(err) != codes.Unimplemented {
			t.Errorf("%s %+v: a lookup: %v, want it let in", c.listen, c.cfg, err)
		}
	}
}

// TestRPCTLS: TLS 1.3 alone, clients that must show a certificate, read again.
func TestRPCTLS(t *testing.T) {
	a, other := securetest.New(t, "ours"), securetest.New(t, "theirs")
	dir := t.TempDir()
	cert, key := a.Pair(dir, "host")
	r := startRPC(t, "127.0.0.1:0", SecureConfig{TLSCert: cert, TLSKey: key, TLSClientCA: securetest.WriteFile(t, filepath.Join(dir, "ca.pem"), a.PEM)})
	register := func(c *tls.Config) error {
		return call(t, r.dial(c), kindexv1.WorkersService_RegisterWorker_FullMethodName, "")
	}
	if err := register(a.Client(a, later())); err != nil {
		t.Fatal(err)
	}
	if got := r.logged.String(); !strings.Contains(got, `"who":"CN=client","via":"grpc"`) {
		t.Errorf("audited as %s", got)
	}
	for name, c := range map[string]struct {
		client *tls.Config
		why    refusalReason
	}{
		"no certificate":         {a.Client(nil, later()), reasonNoCertificate},
		"an expired certificate": {a.Client(a, time.Now().Add(-time.Minute)), reasonCertificate},
		"another authority's":    {a.Client(other, later()), reasonCertificate},
		"no TLS":                 {nil, reasonPlaintext},
	} {
		before := r.gate.audit.refusals[c.why].Load()
		if err := register(c.client); status.Code(err) != codes.Unavailable {
			t.Errorf("%s: %v", name, err)
		}
		waitFor(t, name+" to be counted", func() bool { return r.gate.audit.refusals[c.why].Load() > before })
	}
	old := a.Client(a, later())
	old.MinVersion, old.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	if conn, err := tls.Dial("tcp", r.addr, old); err == nil {
		_ = conn.Close()
		t.Error("TLS 1.2 is taken")
	}
	waitFor(t, "TLS 1.2 to be counted", func() bool { return r.gate.audit.refusals[reasonTLSVersion].Load() == 1 })

	other.Pair(dir, "host")
	securetest.WriteFile(t, filepath.Join(dir, "ca.pem"), other.PEM)
	waitFor(t, "the new certificates", func() bool { return register(other.Client(other, later())) == nil })
	if err := register(other.Client(a, later())); err == nil {
		t.Error("the old authority's client is let in")
	}
}

// TestRPCOfHost: the host's own gRPC server is behind the gate.
func TestRPCOfHost(t *testing.T) {
	a := securetest.New(t, "ours")
	g, _ := startTLS(t, a, withGRPC(func(c *Config) { c.TokenFile = tokenFile(t) }))
	r := &rpcRig{t: t, addr: g.GRPCAddr().String()}
	conn := r.dial(a.Client(a, later()))
	for _, c := range []struct {
		method, token string
		want          codes.Code
	}{
		{kindexv1.WorkersService_ListWorkers_FullMethodName, "", codes.Unauthenticated},
		{kindexv1.WorkersService_ListWorkers_FullMethodName, "wrong-token", codes.Unauthenticated},
		{kindexv1.WorkersService_ListWorkers_FullMethodName, "reader-token", codes.OK},
		{kindexv1.ContentService_Dump_FullMethodName, "", codes.Unauthenticated},
		{kindexv1.IndexService_LookupStream_FullMethodName, "", codes.Unauthenticated},
		{kindexv1.WorkersService_RegisterWorker_FullMethodName, "reader-token", codes.PermissionDenied},
		{kindexv1.WorkersService_RegisterWorker_FullMethodName, "writer-token", codes.InvalidArgument},
		{kindexv1.WorkersService_UnregisterWorker_FullMethodName, "reader-token", codes.PermissionDenied},
		{healthpb.Health_Check_FullMethodName, "", codes.OK},
	} {
		g.forgive()
		if err := call(t, conn, c.method, c.token); status.Code(err) != c.want {
			t.Errorf("%s with %q: %v, want %v", c.method, c.token, err, c.want)
		}
		refused := c.want == codes.Unauthenticated || c.want == codes.PermissionDenied
		if !refused && c.want != codes.InvalidArgument {
			continue
		}
		if l := g.lastAudit(); l.Via != "grpc" || l.Certificate != "CN=client" && l.Who != "CN=client" || (l.Result == "refused") != refused {
			t.Errorf("%s with %q: audited as %+v", c.method, c.token, l)
		}
	}
	if err := call(t, r.dial(nil), healthpb.Health_Check_FullMethodName, ""); status.Code(err) != codes.Unavailable {
		t.Errorf("in the clear: %v", err)
	}
	before := g.refusals(reasonCertificate)
	if err := call(t, r.dial(a.Client(a, time.Now().Add(-time.Minute))), healthpb.Health_Check_FullMethodName, ""); status.Code(err) != codes.Unavailable {
		t.Errorf("an expired certificate: %v", err)
	}
	waitFor(t, "it to be counted", func() bool { return g.refusals(reasonCertificate) > before })
}
