// SPDX-License-Identifier: Apache-2.0

package enroll_test

import (
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"kindex/gateway/fleet"
	"kindex/gateway/fleet/enroll"
	"kindex/gateway/upstream"
	"kindex/harness/mockworker/engine"
)

// rig is a registry with a prober that is quick.
func rig(t *testing.T) (*fleet.Registry, *enroll.Prober) {
	t.Helper()
	get := upstream.New(upstream.DefaultOptions())
	r := fleet.NewRegistry()
	p := enroll.New(r, get, enroll.Options{First: 5 * time.Millisecond, Most: 20 * time.Millisecond, Failed: 30 * time.Millisecond, Confirm: time.Millisecond},
		slog.New(slog.DiscardHandler))
	t.Cleanup(func() { p.Close(); r.Close(); get.Close() })
	return r, p
}

// until waits for what must come.
func until(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !f(); {
		if time.Now().After(end) {
			t.Fatalf("%s: it never came", what)
		}
		<-time.After(2 * time.Millisecond)
	}
}

func register(t *testing.T, p *enroll.Prober, s fleet.Spec) *fleet.Registration {
	t.Helper()
	reg, err := p.Register(s)
	if err != nil {
		t.Fatalf("Register(%q): %v", s.URL, err)
	}
	return reg
}

// joined waits for the worker of reg.
func joined(t *testing.T, reg *fleet.Registration) *fleet.Worker {
	t.Helper()
	until(t, "a worker at "+reg.Given().URL, func() bool { return reg.Worker() != nil })
	return reg.Worker()
}

func TestEnginesTellWhatTheyAre(t *testing.T) {
	for _, kind := range []string{engine.VLLM, engine.SGLang} {
		f, err := engine.OpenFleet(engine.Config{
			Engine: kind, Model: "m", HTTP: "127.0.0.1:0", GRPC: "127.0.0.1:0", Pub: "tcp://127.0.0.1:0", Replay: "tcp://127.0.0.1:0",
			Ranks: 2, BlockSize: 32, LoRA: []string{"l"}, APIKey: "secret",
		}, 1)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		w := f.Workers()[0]
		for _, at := range []string{"http://" + w.HTTP(), "grpc://" + w.GRPC(), "http://" + w.GRPC()} {
			r, p := rig(t)
			got := joined(t, register(t, p, fleet.Spec{URL: at, Terms: fleet.Terms{APIKey: "secret"}})).Spec
			want := fleet.Spec{URL: at, Models: []string{"m"}, Engine: kind, Ranks: 2, BlockSize: 32, Instance: at, Terms: got.Terms, Events: got.Events}
			if strings.HasSuffix(at, w.GRPC()) {
				want.URL = "grpc://" + w.GRPC()
				want.Events = fleet.Events{Relay: w.GRPC()}
				if kind == engine.SGLang {
					want.BlockSize = 0 // its service does not say
				}
			} else {
				want.Adapters = map[string]string{"l": "m"}
				if pub := w.Engine.Publishers()[0]; got.Events.Endpoint != pub.Live || got.Events.Replay != pub.Replay {
					t.Errorf("%s %s: events at %+v, want %s and %s", kind, at, got.Events, pub.Live, pub.Replay)
				}
				if !r.Adapter("l") {
					t.Errorf("%s %s: l is no adapter", kind, at)
				}
			}
			if d := cmp.Diff(&want, got); d != "" {
				t.Errorf("%s %s (-want +got):\n%s", kind, at, d)
			}
		}
	}
}

func TestAWrongKeyIsSaid(t *testing.T) {
	f, err := engine.OpenFleet(engine.Config{Engine: engine.VLLM, HTTP: "127.0.0.1:0", Pub: "tcp://127.0.0.1:0", APIKey: "secret"}, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	_, p := rig(t)
	reg := register(t, p, fleet.Spec{URL: "http://" + f.Workers()[0].HTTP(), MaxAttempts: 2, Terms: fleet.Terms{APIKey: "guess"}})
	until(t, "a failure", func() bool { return reg.Job().Status == "failed" })
	if got := reg.Job().Message; !strings.Contains(got, "api_key") || strings.Contains(got, "guess") {
		t.Errorf("the reason is %q: it must name api_key and not the key", got)
	}
}

// late is an HTTP engine that can be changed while it serves.
type late struct {
	card, metrics atomic.Value
	asked         atomic.Int64
	broken        atomic.Bool // its metrics cannot be had
}

func (l *late) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	l.asked.Add(1)
	if l.broken.Load() && q.URL.Path == "/metrics" {
		http.Error(w, "overloaded", http.StatusInternalServerError)
		return
	}
	body := map[string]*atomic.Value{"/v1/models": &l.card, "/metrics": &l.metrics}[q.URL.Path]
	if body == nil || body.Load() == nil {
		http.NotFound(w, q)
		return
	}
	_, _ = fmt.Fprint(w, body.Load())
}

func (l *late) is(model, more string, ranks int) {
	l.card.Store(fmt.Sprintf(`{"data":[{"id":%q,"owned_by":"vllm"}%s]}`, model, more))
	all := ""
	for i := range ranks {
		all += fmt.Sprintf("vllm:cache_config_info{block_size=\"16\",engine=\"%d\"} 1\n", i)
	}
	l.metrics.Store(all)
}

func TestAnEngineThatBootsIsAskedAgain(t *testing.T) {
	r, p := rig(t)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := taken.Addr().String()
	if err := taken.Close(); err != nil {
		t.Fatal(err)
	}
	unknown := register(t, p, fleet.Spec{URL: "http://" + at, MaxAttempts: 2})
	known := register(t, p, fleet.Spec{URL: "http://localhost:1", Models: []string{"n"}})
	until(t, "a failure", func() bool { return unknown.Job().Status == "failed" })
	if j := unknown.Job(); j.Attempts < 2 || !strings.Contains(j.Message, "connect") {
		t.Errorf("the job is %+v: it must count and say why", j)
	}
	if w := joined(t, known); w.State() != fleet.Pending || r.Pool("n") == nil {
		t.Error("a worker whose model was given is not known to serve it while it cannot be reached")
	}
	l, err := net.Listen("tcp", at)
	if err != nil {
		t.Skip("the port was taken by somebody else")
	}
	var e late
	e.is("m", "", 1)
	s := &httptest.Server{Listener: l, Config: &http.Server{Handler: &e}}
	s.Start()
	defer s.Close()
	if w := joined(t, unknown); w.Spec.Engine != fleet.VLLM || r.Pool("m") == nil {
		t.Errorf("it joined as %+v", w.Spec)
	}
	if j := unknown.Job(); j.Status != "done" || j.Message != "" {
		t.Errorf("the job is %+v, want done", j)
	}
}

func TestAnotherEngineAtTheURLJoinsAnew(t *testing.T) {
	var e late
	e.is("m", "", 1)
	s := httptest.NewServer(&e)
	defer s.Close()
	r, p := rig(t)
	reg := register(t, p, fleet.Spec{URL: s.URL})
	first := joined(t, reg)
	first.SetState(fleet.Ready)
	lease := first.Holders[0].Take(fleet.Work{Prompt: 100, Stream: true})

	e.is("m", `,{"id":"l","parent":"m"}`, 1) // an adapter more is the same engine
	p.Again(reg.ID)
	until(t, "the adapter", func() bool { return r.Pool("l") != nil })
	if reg.Worker() != first || first.InFlight() != 1 {
		t.Error("an adapter more made another worker")
	}
	e.is("x", "", 2)
	p.Again(reg.ID)
	until(t, "another worker", func() bool { return reg.Worker() != first })
	second := reg.Worker()
	if first.State() != fleet.Removed || second.State() != fleet.Pending || len(second.Holders) != 2 || r.Pool("m") != nil || r.Pool("x") == nil {
		t.Errorf("the old one is %v, the new one %v with %d ranks", first.State(), second.State(), len(second.Holders))
	}
	if !lease.Release() || first.InFlight() != 0 || second.InFlight() != 0 {
		t.Error("a lease on the old one touched the new one")
	}
	if got := slices.Collect(func(yield func(string) bool) {
		for _, w := range r.Workers() {
			if !yield(w.ID) {
				return
			}
		}
	}); !slices.Equal(got, []string{reg.ID}) {
		t.Errorf("workers are %v, want %s alone", got, reg.ID)
	}
}

func TestWhoDoesNotSayIsNoOtherEngine(t *testing.T) {
	var e late
	e.is("m", "", 2)
	s := httptest.NewServer(&e)
	defer s.Close()
	r, p := rig(t)
	reg := register(t, p, fleet.Spec{URL: s.URL})
	w := joined(t, reg)
	e.broken.Store(true)
	e.is("m", `,{"id":"l","parent":"m"}`, 2)
	p.Again(reg.ID)
	until(t, "the adapter", func() bool { return r.Pool("l") != nil })
	if now := reg.Worker(); now != w || len(now.Holders) != 2 || now.Spec.BlockSize != 16 {
		t.Errorf("a question without an answer made another engine: %d ranks, blocks of %d", len(now.Holders), now.Spec.BlockSize)
	}
}

func TestWhoComesBackIsAskedAgain(t *testing.T) {
	var e late
	e.is("m", "", 1)
	s := httptest.NewServer(&e)
	defer s.Close()
	_, p := rig(t)
	reg := register(t, p, fleet.Spec{URL: s.URL})
	w := joined(t, reg)
	w.SetState(fleet.NotReady)
	e.is("x", "", 1)
	until(t, "another worker", func() bool {
		w.SetState(fleet.NotReady)
		<-time.After(300 * time.Millisecond)
		w.SetState(fleet.Ready)
		<-time.After(300 * time.Millisecond)
		return reg.Worker() != w
	})
}

func TestWhatIsGivenStays(t *testing.T) {
	var e late
	e.is("m", "", 2)
	s := httptest.NewServer(&e)
	defer s.Close()
	r, p := rig(t)
	reg := register(t, p, fleet.Spec{URL: s.URL, Models: []string{"n"}, Ranks: 1, BlockSize: 8, Engine: fleet.SGLang})
	joined(t, reg)
	until(t, "the end of the questions", func() bool { return reg.Job().Status == "done" })
	w := reg.Worker()
	if len(w.Holders) != 1 || w.Spec.BlockSize != 8 || w.Spec.Engine != fleet.SGLang || r.Pool("n") == nil || r.Pool("m") != nil {
		t.Errorf("it joined as %+v", w.Spec)
	}
	for _, want := range []string{"not the model n", "2 ranks, not 1", "16 tokens, not 8", "vllm, not sglang"} {
		if got := reg.Job().Message; !strings.Contains(got, want) {
			t.Errorf("the note is %q: it must say %q", got, want)
		}
	}
	if _, err := r.Pin(reg.ID, fleet.Served{Models: []string{"k"}}); err != nil {
		t.Fatal(err)
	}
	w = reg.Worker()
	asked := e.asked.Load()
	p.Again(reg.ID)
	until(t, "questions", func() bool { return e.asked.Load() > asked+1 })
	<-time.After(20 * time.Millisecond)
	if reg.Worker() != w || r.Pool("n") != nil || r.Pool("k") == nil {
		t.Error("what was given was overruled by the engine")
	}
}

func TestARegistrationEndsItsQuestions(t *testing.T) {
	asked := make(chan struct{}, 1000)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		select {
		case asked <- struct{}{}:
		default:
		}
		http.Error(w, "booting", http.StatusServiceUnavailable)
	}))
	defer s.Close()
	r, p := rig(t)
	reg := register(t, p, fleet.Spec{URL: s.URL})
	<-asked
	until(t, "the reason", func() bool { return strings.Contains(reg.Job().Message, "503") })
	if _, err := r.Remove(reg.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Remove(reg.ID); err == nil {
		t.Error("it could be removed twice")
	}
	again := register(t, p, fleet.Spec{URL: s.URL})
	if again.ID == reg.ID {
		t.Error("the URL registered again has the old id")
	}
}

func TestNobodyIsFollowedAfterItsRemoval(t *testing.T) {
	var e late
	e.is("m", "", 1)
	s := httptest.NewServer(&e)
	defer s.Close()
	r, p := rig(t)
	before := runtime.NumGoroutine()
	for range 50 {
		joined(t, register(t, p, fleet.Spec{URL: s.URL}))
		if _, err := r.Remove(s.URL); err != nil {
			t.Fatal(err)
		}
	}
	until(t, "the end of their goroutines", func() bool { return runtime.NumGoroutine() < before+20 })
}
