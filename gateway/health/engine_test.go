// SPDX-License-Identifier: Apache-2.0

package health

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"kindex/gateway/fleet"
	"kindex/harness/mockworker/engine"
	"kindex/internal/longtest"
)

// patience is how long a test waits for what must come.
const patience = 20 * time.Second

// engineEnv has this program be an engine, with these arguments.
const engineEnv = "KINDEX_TEST_ENGINE"

func init() {
	if args := os.Getenv(engineEnv); args != "" {
		os.Exit(engine.Main(context.Background(), strings.Fields(args), os.Stdout, os.Stderr))
	}
}

// process is an engine in a process of its own.
type process struct {
	engine.Ready
	cmd *exec.Cmd
}

func launch(t *testing.T, args string) *process {
	t.Helper()
	p := &process{cmd: exec.Command(os.Args[0])}
	p.cmd.Env = append(os.Environ(), engineEnv+"="+args)
	p.cmd.Stderr = os.Stderr
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.kill)
	if err := json.NewDecoder(bufio.NewReader(out)).Decode(&p.Ready); err != nil {
		t.Fatal(err)
	}
	return p
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

func (p *process) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

// await waits until ok.
func await(t *testing.T, what string, ok func() bool) time.Duration {
	t.Helper()
	began := time.Now()
	for !ok() {
		if time.Since(began) > patience {
			t.Fatalf("not %s within %v", what, patience)
		}
		time.Sleep(2 * time.Millisecond)
	}
	took := time.Since(began)
	t.Logf("%s after %v", what, took.Round(time.Millisecond))
	return took
}

func watch(t *testing.T, edit func(*Options)) *Watch {
	t.Helper()
	o := DefaultOptions()
	if edit != nil {
		edit(&o)
	}
	w, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	return w
}

// quick has everything happen ten times as fast.
func quick(o *Options) {
	o.StallAfter, o.WedgeAfter = o.StallAfter/10, o.WedgeAfter/10
	o.ProbeInterval, o.ProbeFast = o.ProbeInterval/10, o.ProbeFast/10
}

// TestEngineGoesAndComes has real engines refuse connections and take them again at the
// same address: their workers are out and back, over HTTP and gRPC.
func TestEngineGoesAndComes(t *testing.T) {
	f, err := engine.OpenFleet(engine.Config{
		Engine: engine.VLLM, HTTP: "127.0.0.1:0", GRPC: "127.0.0.1:0", Admin: "127.0.0.1:0", Pub: "tcp://127.0.0.1:0", Replay: "tcp://127.0.0.1:0",
	}, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	admin, err := engine.OpenAdmin(f, "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	defer http.DefaultClient.CloseIdleConnections()
	fault := func(what string) {
		t.Helper()
		a, err := http.Post("http://"+admin.Addr+"/admin/fault/w0/"+what, "", nil)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, a.Body)
		_ = a.Body.Close()
		if a.StatusCode != http.StatusOK {
			t.Fatalf("%s: %d", what, a.StatusCode)
		}
	}
	w := watch(t, quick)
	all := []*fleet.Worker{at("http://" + f.Workers()[0].HTTP()), at("grpc://" + f.Workers()[0].GRPC())}
	for _, x := range all {
		w.Add(x)
	}
	are := func(usable bool) func() bool {
		return func() bool { return all[0].Usable() == usable && all[1].Usable() == usable }
	}
	await(t, "ready", are(true))
	for range longtest.N(2, 20) {
		fault("refuse")
		await(t, "out", are(false))
		await(t, "failed", func() bool { return all[0].State() == fleet.Failed && all[1].State() == fleet.Failed })
		fault("refuse?on=0")
		await(t, "back", are(true))
	}
	s := w.Stats()
	if s.Probes[Refused] == 0 || s.Moved[fleet.Failed] < 4 || s.States[fleet.Ready] != 2 {
		t.Errorf("%+v: want refused probes, moves to failed and two ready", s)
	}
}

// TestEngineKilled has an engine in another process be killed, and begin again at its
// address: with the defaults, as an operator has them.
func TestEngineKilled(t *testing.T) {
	longtest.Skip(t)
	args := "--engine vllm --pub tcp://127.0.0.1:0 --pass 1ms --http "
	p := launch(t, args+"127.0.0.1:0")
	w, x := watch(t, nil), at("http://"+p.HTTP)
	w.Add(x)
	await(t, "ready", x.Usable)
	p.kill()
	await(t, "out", func() bool { return !x.Usable() })
	time.Sleep(3 * time.Second)
	launch(t, args+p.HTTP)
	await(t, "back", x.Usable)
}

// TestEngineStopped has an engine in another process be stopped, whose connections the
// system still accepts: idle, and with requests.
func TestEngineStopped(t *testing.T) {
	longtest.Skip(t)
	for _, busy := range []bool{false, true} {
		p := launch(t, "--engine vllm --pub tcp://127.0.0.1:0 --pass 1ms --http 127.0.0.1:0 --grpc 127.0.0.1:0")
		w := watch(t, nil)
		all := []*fleet.Worker{at("http://" + p.HTTP), at("grpc://" + p.GRPC)}
		for _, x := range all {
			w.Add(x)
			await(t, "ready", x.Usable)
		}
		var leases []*fleet.Lease
		if busy {
			for _, x := range all {
				leases = append(leases, x.Holders[0].Take(fleet.Work{Stream: true}))
			}
		}
		p.signal(t, syscall.SIGSTOP)
		await(t, "out", func() bool { return !all[0].Usable() && !all[1].Usable() })
		time.Sleep(4 * time.Second)
		for _, x := range all {
			if x.State() != fleet.Ready || x.Vetoes() != fleet.Wedged {
				t.Errorf("%s: %v with vetoes %b, want ready and wedged", x.Spec.URL, x.State(), x.Vetoes())
			}
		}
		p.signal(t, syscall.SIGCONT)
		for _, l := range leases {
			l.Moved(fleet.Now())
		}
		await(t, "back", func() bool { return all[0].Usable() && all[1].Usable() })
		p.kill()
	}
}
