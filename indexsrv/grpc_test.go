// SPDX-License-Identifier: Apache-2.0

package indexsrv

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"kindex/internal/kv"
	kindexv1 "kindex/proto/kindex/v1"
)

// rpcClient is a client of a host by the generated code.
type rpcClient struct {
	conn    *grpc.ClientConn
	index   kindexv1.IndexServiceClient
	workers kindexv1.WorkersServiceClient
	content kindexv1.ContentServiceClient
	stats   kindexv1.StatsServiceClient
	health  healthpb.HealthClient
}

func withGRPC(change func(*Config)) func(*Config) {
	return func(c *Config) {
		c.GRPCListen = "127.0.0.1:0"
		if change != nil {
			change(c)
		}
	}
}

func dialRPC(t testing.TB, h *Host, options ...grpc.DialOption) *rpcClient {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+h.GRPCAddr().String(), append(options, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return &rpcClient{
		conn, kindexv1.NewIndexServiceClient(conn), kindexv1.NewWorkersServiceClient(conn),
		kindexv1.NewContentServiceClient(conn), kindexv1.NewStatsServiceClient(conn), healthpb.NewHealthClient(conn),
	}
}

// wantStatus fails unless err is of that code and says so of that field.
func wantStatus(t *testing.T, what string, err error, code codes.Code, text string) {
	t.Helper()
	s := status.Convert(err)
	if s.Code() != code || !strings.HasPrefix(s.Message(), text) || strings.ContainsAny(s.Message(), "\n\r") {
		t.Errorf("%s: %v, want %s: %s...", what, err, code, text)
	}
}

// TestGRPCWorkers: a worker registered here is HTTP's too, and is taken out.
func TestGRPCWorkers(t *testing.T) {
	h := startTestHost(t, withGRPC(nil))
	c := dialRPC(t, h.Host)
	ctx := t.Context()
	add := func(change func(*kindexv1.RegisterWorkerRequest)) error {
		m := &kindexv1.RegisterWorkerRequest{InstanceId: "1", InstanceIsNumber: true, ModelName: "m", Endpoint: "tcp://127.0.0.1:21001", BlockSize: 4}
		if change != nil {
			change(m)
		}
		_, err := c.workers.RegisterWorker(ctx, m)
		return err
	}
	if err := add(nil); err != nil {
		t.Fatal(err)
	}
	if err := add(func(m *kindexv1.RegisterWorkerRequest) {
		m.InstanceId, m.InstanceIsNumber, m.DpSize, m.Endpoint, m.ReplayEndpoint, m.RoutingGroup, m.TenantId = "b", false, 2, "tcp://127.0.0.1:22001", "tcp://127.0.0.1:23001", "g", "t"
	}); err != nil {
		t.Fatal(err)
	}
	wantStatus(t, "again", add(nil), codes.FailedPrecondition, "instance_id: 1 dp_rank 0 is already registered")
	wantStatus(t, "another block size", add(func(m *kindexv1.RegisterWorkerRequest) { m.InstanceId, m.BlockSize = "2", 8 }), codes.FailedPrecondition, "block_size: ")
	for field, change := range map[string]func(*kindexv1.RegisterWorkerRequest){
		"instance_id: ":     func(m *kindexv1.RegisterWorkerRequest) { m.InstanceId, m.InstanceIsNumber = "", false },
		"instance_id: must": func(m *kindexv1.RegisterWorkerRequest) { m.InstanceId = "01" },
		"model_name: ":      func(m *kindexv1.RegisterWorkerRequest) { m.ModelName = strings.Repeat("m", 600) },
		"endpoint: ":        func(m *kindexv1.RegisterWorkerRequest) { m.Endpoint = "http://x" },
		"block_size: ":      func(m *kindexv1.RegisterWorkerRequest) { m.BlockSize = 1 << 20 },
		"dp_rank: ":         func(m *kindexv1.RegisterWorkerRequest) { m.DpRank = 1 << 31 },
		"dp_size: ":         func(m *kindexv1.RegisterWorkerRequest) { m.DpSize = 1 << 31 },
		"engine: ":          func(m *kindexv1.RegisterWorkerRequest) { m.Engine = "x" },
		"source: ":          func(m *kindexv1.RegisterWorkerRequest) { m.Source = "x" },
		"replay_endpoint: ": func(m *kindexv1.RegisterWorkerRequest) { m.ReplayEndpoint = "tcp://*:1" },
	} {
		wantStatus(t, "a bad one", add(change), codes.InvalidArgument, field)
	}

	list, err := c.workers.ListWorkers(ctx, &kindexv1.ListWorkersRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var overHTTP []struct {
		Instance  json.RawMessage     `json:"instance_id"`
		Listeners map[string]Listener `json:"listeners"`
	}
	if err := json.Unmarshal([]byte(h.must(200, "GET", "/workers", "")), &overHTTP); err != nil {
		t.Fatal(err)
	}
	if len(list.GetWorkers()) != 2 || len(overHTTP) != 2 || string(overHTTP[0].Instance) != "1" || string(overHTTP[1].Instance) != `"b"` {
		t.Fatalf("workers:\n%v\n%+v", list, overHTTP)
	}
	b := list.GetWorkers()[1]
	if b.GetInstanceId() != "b" || b.GetInstanceIsNumber() || !list.GetWorkers()[0].GetInstanceIsNumber() || b.GetRoutingGroup() != "g" || b.GetTenantId() != "t" ||
		b.GetBlockSize() != 4 || b.GetSource() != "zmq" || b.GetStatus() != overHTTP[1].Listeners["0"].Status || len(b.GetListeners()) != 2 ||
		b.GetListeners()[1].GetEndpoint() != "tcp://127.0.0.1:22002" || b.GetListeners()[1].GetReplayEndpoint() != "tcp://127.0.0.1:23002" || b.GetListeners()[1].LastSeq != nil {
		t.Errorf("b: %v", b)
	}
	if list, err := c.workers.ListWorkers(ctx, &kindexv1.ListWorkersRequest{TenantId: "t"}); err != nil || len(list.GetWorkers()) != 1 {
		t.Errorf("of a tenant: %v, %v", list, err)
	}

	one := uint32(1)
	if _, err := c.workers.UnregisterWorker(ctx, &kindexv1.UnregisterWorkerRequest{InstanceId: "b", ModelName: "m", DpRank: &one}); err != nil {
		t.Error(err)
	}
	_, err = c.workers.UnregisterWorker(ctx, &kindexv1.UnregisterWorkerRequest{InstanceId: "b", ModelName: "m", DpRank: &one})
	wantStatus(t, "again", err, codes.NotFound, "dp_rank: ")
	_, err = c.workers.UnregisterWorker(ctx, &kindexv1.UnregisterWorkerRequest{ModelName: "m"})
	wantStatus(t, "nobody", err, codes.InvalidArgument, "instance_id: ")
	if _, err := c.workers.UnregisterWorker(ctx, &kindexv1.UnregisterWorkerRequest{InstanceId: "1", ModelName: "m"}); err != nil {
		t.Error(err)
	}
	if got := h.must(200, "GET", "/workers", ""); strings.Count(got, `"instance_id"`) != 1 || !strings.Contains(got, `"listeners":{"0"`) {
		t.Errorf("left: %s", got)
	}
}

// TestGRPCWatch: what Host.Watch says goes over the wire, and ends with the call.
func TestGRPCWatch(t *testing.T) {
	h := startTestHost(t, withGRPC(nil))
	c := dialRPC(t, h.Host)
	ctx, cancel := context.WithCancel(t.Context())
	w, err := c.workers.WatchWorkers(ctx, &kindexv1.WatchWorkersRequest{ModelName: "m"})
	if err != nil {
		t.Fatal(err)
	}
	m, err := w.Recv()
	if err != nil || !m.GetWhole() || len(m.GetWorkers()) != 0 || m.GetEpoch() != h.epoch {
		t.Fatalf("the table: %v, %v", m, err)
	}
	h.register(reg("1", "m", ""))
	for {
		next, err := w.Recv()
		if err != nil || next.GetWhole() || next.GetVersion() <= m.GetVersion() {
			t.Fatalf("a change: %v, %v", next, err)
		}
		if m = next; len(m.GetWorkers()) == 1 && m.GetWorkers()[0].GetInstanceId() == "1" {
			break
		}
	}
	if err := h.Unregister(ctx, Registration{Instance: NumberID(1), Model: "m"}, false); err != nil {
		t.Fatal(err)
	}
	for len(m.GetGone()) == 0 {
		if m, err = w.Recv(); err != nil {
			t.Fatal(err)
		}
	}
	cancel()
	if _, err := w.Recv(); status.Code(err) != codes.Canceled {
		t.Errorf("ended with %v", err)
	}
	waitFor(t, "the handler's end", func() bool { return h.rpc.met.open.Load() == 0 })
}

// TestGRPCContent: a dump's events and digests are HTTP's, each with its cursor.
func TestGRPCContent(t *testing.T) {
	h := startTestHost(t, withGRPC(nil))
	h.register(reg("1", "m", ""))
	h.register(strings.Replace(reg(`"b"`, "m", `,"dp_size":2,"tenant_id":"t"`), "21001", "23001", 1))
	h.put(h.rank("m", "", "1", 0), kv.TierDevice, "ad", "", 1, tokens(1, 5000*4), nil)
	h.put(h.rank("m", "", "1", 0), kv.TierHost, "ad", "", 9001, tokens(1, 40), nil)
	c := dialRPC(t, h.Host)
	ctx := t.Context()

	var overHTTP []string
	for line := range strings.SplitSeq(strings.TrimSpace(h.must(200, "GET", "/dump?format=ndjson", "")), "\n") {
		overHTTP = append(overHTTP, line)
	}
	dump, err := c.content.Dump(ctx, &kindexv1.DumpRequest{})
	if err != nil {
		t.Fatal(err)
	}
	i, blocks := 0, 0
	for ; ; i++ {
		m, err := dump.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil || i == len(overHTTP) {
			t.Fatalf("message %d: %v, %v", i, m, err)
		}
		want := "?"
		switch p := m.GetPart().(type) {
		case *kindexv1.DumpResponse_Stream:
			want = fmt.Sprintf(`"streams":{"%s":{"%d":{"epoch":%d,"last_seq":null,"status":"%s","orphans":%d}`,
				p.Stream.GetInstanceId(), p.Stream.GetDpRank(), p.Stream.GetCursor().GetEpoch(), p.Stream.GetCursor().GetStatus(), p.Stream.GetCursor().GetOrphans())
			if p.Stream.GetCursor().LastSeq != nil || p.Stream.GetBlockSize() != 4 || (p.Stream.GetTenantId() == "t") != (p.Stream.GetInstanceId() == "b") {
				t.Errorf("head: %v", p.Stream)
			}
		case *kindexv1.DumpResponse_Stored:
			s := p.Stored
			parent := "null"
			if s.Parent != nil {
				parent = fmt.Sprint(s.GetParent())
			}
			want = fmt.Sprintf(`"stored":{"parent_hash":%s,"namespace_seed":%d,"blocks":[{"block_hash":%d,"tokens_hash":%d,`,
				parent, s.GetNamespaceSeed(), s.GetEngineHashes()[0], s.GetContentHashes()[0])
			if tier := strings.ToLower(strings.TrimPrefix(s.GetTier().String(), "TIER_")); !strings.Contains(overHTTP[i], `"storage_tier":"`+tier+`"`) {
				t.Errorf("tier %s: %s", tier, overHTTP[i][:100])
			}
			if n := strings.Count(overHTTP[i], `"block_hash"`); n != len(s.GetEngineHashes()) || n != len(s.GetContentHashes()) {
				t.Errorf("event %d: %d blocks over HTTP, %d and %d here", i, n, len(s.GetEngineHashes()), len(s.GetContentHashes()))
			}
			blocks += len(s.GetEngineHashes())
		case *kindexv1.DumpResponse_Removed:
			want = fmt.Sprintf(`"removed":{"block_hashes":[%d`, p.Removed.GetEngineHashes()[0])
		}
		if !strings.Contains(overHTTP[i], want) {
			t.Errorf("event %d is\n%.200s over HTTP, want %s", i, overHTTP[i], want)
		}
	}
	if i != len(overHTTP) || blocks != 5010 {
		t.Errorf("%d messages with %d blocks, want %d with 5010", i, blocks, len(overHTTP))
	}

	var digests map[string]map[string]map[string]string
	if err := json.Unmarshal([]byte(h.must(200, "GET", "/digest", "")), &digests); err != nil {
		t.Fatal(err)
	}
	stream, err := c.content.Digest(ctx, &kindexv1.DigestRequest{})
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for ; ; n++ {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		key := "m:default"
		if m.GetStream().GetTenantId() == "t" {
			key += "@t"
		}
		if want := digests[key][m.GetStream().GetInstanceId()][fmt.Sprint(m.GetStream().GetDpRank())]; fmt.Sprintf("%016x", m.GetDigest()) != want {
			t.Errorf("%v: %016x, want %s", m.GetStream(), m.GetDigest(), want)
		}
	}
	if n != 3 {
		t.Errorf("%d digests, want 3", n)
	}
	if stream, err = c.content.Digest(ctx, &kindexv1.DigestRequest{ModelName: "zz"}); err == nil {
		_, err = stream.Recv()
	}
	wantStatus(t, "another model", err, codes.NotFound, "model_name: ")
	if dump, err = c.content.Dump(ctx, &kindexv1.DumpRequest{InstanceId: "zz"}); err == nil {
		_, err = dump.Recv()
	}
	wantStatus(t, "another instance", err, codes.NotFound, "instance_id: ")
}

// TestGRPCStanding: figures, health and reflection.
func TestGRPCStanding(t *testing.T) {
	h := startTestHost(t, withGRPC(nil))
	c := dialRPC(t, h.Host)
	ctx := t.Context()
	check := func(service string) healthpb.HealthCheckResponse_ServingStatus {
		t.Helper()
		m, err := c.health.Check(ctx, &healthpb.HealthCheckRequest{Service: service})
		if err != nil {
			t.Fatal(err)
		}
		return m.GetStatus()
	}
	const good, bad = healthpb.HealthCheckResponse_SERVING, healthpb.HealthCheckResponse_NOT_SERVING
	for _, service := range []string{"", "ready", "kindex.v1.IndexService"} {
		if got := check(service); got != good {
			t.Errorf("%q: %v", service, got)
		}
	}
	w, err := c.health.Watch(ctx, &healthpb.HealthCheckRequest{Service: "ready"})
	if err != nil {
		t.Fatal(err)
	}
	if m, err := w.Recv(); err != nil || m.GetStatus() != good {
		t.Fatalf("watched: %v, %v", m, err)
	}
	h.must(201, "POST", "/register", reg("1", "m", "")) // its engine is not there
	if m, err := w.Recv(); err != nil || m.GetStatus() != bad {
		t.Errorf("watched: %v, %v", m, err)
	}
	if got := check("ready"); got != bad || check("") != good {
		t.Errorf("ready with a pending stream: %v", got)
	}
	_, err = c.health.Check(ctx, &healthpb.HealthCheckRequest{Service: "zz"})
	wantStatus(t, "another service", err, codes.NotFound, "service: ")

	h.put(h.rank("m", "", "1", 0), kv.TierDevice, "", "", 1, tokens(1, 40), nil)
	if _, err := c.index.Lookup(ctx, &kindexv1.LookupRequest{Query: &kindexv1.Query{ModelName: "m", TokenIds: tokens(1, 40)}}); err != nil {
		t.Fatal(err)
	}
	st, err := c.stats.GetStats(ctx, &kindexv1.GetStatsRequest{})
	if err != nil || st.GetWorkers() != 1 || st.GetStreams()["pending"] != 1 || st.GetMemberships() != 10 || st.GetBlocks() != 10 || st.GetLookups() != 1 ||
		st.GetReady() || st.GetKvIndex() != "chain" || st.GetEpoch() != h.epoch || len(st.GetBytes()) == 0 || st.GetUptimeSeconds() <= 0 {
		t.Errorf("stats: %v, %v", st, err)
	}

	r, err := reflectionpb.NewServerReflectionClient(c.conn).ServerReflectionInfo(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Send(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}}); err != nil {
		t.Fatal(err)
	}
	m, err := r.Recv()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, s := range m.GetListServicesResponse().GetService() {
		names = append(names, s.GetName())
	}
	for _, want := range []string{"kindex.v1.IndexService", "kindex.v1.WorkersService", "kindex.v1.ContentService", "kindex.v1.StatsService", "grpc.health.v1.Health"} {
		if !slices.Contains(names, want) {
			t.Errorf("reflection has %v, not %s", names, want)
		}
	}
	if err := r.Send(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: "kindex.v1.IndexService"}}); err != nil {
		t.Fatal(err)
	}
	if m, err := r.Recv(); err != nil || len(m.GetFileDescriptorResponse().GetFileDescriptorProto()) == 0 {
		t.Errorf("the file of IndexService: %v, %v", m, err)
	}
}

// TestGRPCLookups: the generated code reads our answers; refusals name the field,
// alone and in a stream, which goes on.
func TestGRPCLookups(t *testing.T) {
	h := startTestHost(t, withGRPC(nil))
	h.register(reg("1", "m", ""))
	h.put(h.rank("m", "", "1", 0), kv.TierHost, "", "", 1, tokens(1, 40), nil)
	c := dialRPC(t, h.Host)
	ctx := t.Context()
	good := &kindexv1.Query{ModelName: "m", TokenIds: tokens(1, 400)}
	check := func(a *kindexv1.Answer) {
		t.Helper()
		if a.GetBlockSize() != 4 || !slices.Equal(a.GetInstances(), []string{"1"}) || !a.GetNumber()[0] || a.GetDegraded()[0] || !slices.Equal(a.GetInstance(), []uint32{0}) ||
			!slices.Equal(a.GetRank(), []uint32{0}) || !slices.Equal(a.GetDevice(), []uint32{0}) || !slices.Equal(a.GetHost(), []uint32{10}) || !slices.Equal(a.GetAny(), []uint32{10}) {
			t.Errorf("answer: %v", a)
		}
	}
	m, err := c.index.Lookup(ctx, &kindexv1.LookupRequest{Query: good})
	if err != nil {
		t.Fatal(err)
	}
	check(m.GetAnswer())

	bad := map[string]struct {
		q    *kindexv1.Query
		code codes.Code
		kind kindexv1.Kind
		text string
	}{
		"none":           {nil, codes.InvalidArgument, kindexv1.Kind_KIND_INVALID, "query: "},
		"no model":       {&kindexv1.Query{TokenIds: tokens(1, 4)}, codes.InvalidArgument, kindexv1.Kind_KIND_INVALID, "model_name: "},
		"unknown model":  {&kindexv1.Query{ModelName: "zz", TokenIds: tokens(1, 4)}, codes.NotFound, kindexv1.Kind_KIND_NOT_FOUND, "model_name: "},
		"both":           {&kindexv1.Query{ModelName: "m", TokenIds: tokens(1, 4), BlockHashes: []uint64{1}}, codes.InvalidArgument, kindexv1.Kind_KIND_INVALID, "block_hashes: "},
		"a long name":    {&kindexv1.Query{ModelName: "m", LoraName: strings.Repeat("x", 513)}, codes.InvalidArgument, kindexv1.Kind_KIND_INVALID, "lora_name: "},
		"limit":          {&kindexv1.Query{ModelName: "m", Limit: 1 << 31}, codes.InvalidArgument, kindexv1.Kind_KIND_INVALID, "limit: "},
		"keys":           {&kindexv1.Query{ModelName: "m", TokenIds: tokens(1, 4), ExtraKeys: [][]byte{{7}}}, codes.InvalidArgument, kindexv1.Kind_KIND_INVALID, "extra_keys[0]: "},
		"more keys":      {&kindexv1.Query{ModelName: "m", TokenIds: tokens(1, 4), ExtraKeys: make([][]byte, 5)}, codes.InvalidArgument, kindexv1.Kind_KIND_INVALID, "extra_keys: "},
		"many instances": {&kindexv1.Query{ModelName: "m", Instances: &kindexv1.Instances{Ids: make([]string, 1<<16+1)}}, codes.InvalidArgument, kindexv1.Kind_KIND_INVALID, "instances: "},
	}
	stream, err := c.index.LookupStream(ctx)
	if err != nil {
		t.Fatal(err)
	}
	id := uint64(100)
	ask := func(q *kindexv1.Query) *kindexv1.LookupStreamResponse {
		t.Helper()
		id++
		if err := stream.Send(&kindexv1.LookupStreamRequest{Id: id, Query: q}); err != nil {
			t.Fatal(err)
		}
		m, err := stream.Recv()
		if err != nil || m.GetId() != id {
			t.Fatalf("%v, %v, want id %d", m, err, id)
		}
		return m
	}
	for name, b := range bad {
		_, err := c.index.Lookup(ctx, &kindexv1.LookupRequest{Query: b.q})
		wantStatus(t, name, err, b.code, b.text)
		if r := ask(b.q).GetRefusal(); r.GetKind() != b.kind || r.GetText() != status.Convert(err).Message() {
			t.Errorf("%s in a stream: %v, alone: %v", name, r, err)
		}
	}
	check(ask(good).GetAnswer())
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("the end: %v", err)
	}
	late, cancel := context.WithTimeout(ctx, time.Nanosecond)
	defer cancel()
	_, err = c.index.Lookup(late, &kindexv1.LookupRequest{Query: good})
	wantStatus(t, "late", err, codes.DeadlineExceeded, "")

	text := h.must(200, "GET", "/metrics", "")
	for _, want := range []string{
		`kindex_grpc_calls_total{code="OK",method="/kindex.v1.IndexService/Lookup"} 1`,
		`kindex_grpc_calls_total{code="NotFound",method="/kindex.v1.IndexService/Lookup"} 1`,
		`kindex_grpc_calls_total{code="OK",method="/kindex.v1.IndexService/LookupStream"} 1`,
		`kindex_grpc_lookups_total{result="ok"} 2`,
		`kindex_grpc_lookups_total{result="not found"} 2`,
		`kindex_grpc_lookups_total{result="invalid"} 16`,
		`kindex_grpc_panics_total 0`,
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("metrics lack %s", want)
		}
	}
}
