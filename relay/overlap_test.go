// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"kindex/proto/peer/vllm"
)

// TestLoop: an RPC that comes back to the relay that passed it on is refused, over
// another relay, too.
func TestLoop(t *testing.T) {
	ports := [2]int{freePort(t), freePort(t)}
	var hosts [2]*Host
	for i := range hosts {
		cfg := loopbackConfig(EngineSpec{Kind: "vllm", Endpoint: fmt.Sprintf("tcp://127.0.0.1:%d", freePort(t)), GRPC: fmt.Sprintf("127.0.0.1:%d", ports[1-i])})
		cfg.Listen = fmt.Sprintf("127.0.0.1:%d", ports[i])
		hosts[i] = startHost(t, cfg)
	}
	conn, err := grpc.NewClient(hosts[0].Addr(0), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	var before uint64
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		before = hosts[0].engines[0].stats.passed.Load()
		_, err = vllm.NewVllmEngineClient(conn).GetModelInfo(testContext(t), &vllm.GetModelInfoRequest{})
		// The first relay may have asked for the second before that was there.
		if status.Code(err) != codes.Unavailable || time.Now().After(end) {
			break
		}
	}
	wantCode(t, "a loop", err, codes.FailedPrecondition, "came back", "grpc=127.0.0.1:")
	if n := hosts[0].engines[0].pass.back.Load(); n == 0 {
		t.Error("it was not counted")
	}
	// Readings of the load loop meanwhile, a few a second.
	if n := hosts[0].engines[0].stats.passed.Load() - before; n > 40 {
		t.Errorf("one RPC was passed on %d times", n)
	}
}

// TestOverlapFaults: addresses that cannot be, each in one line that says why.
func TestOverlapFaults(t *testing.T) {
	faults := func(want string, engines ...string) {
		t.Helper()
		args := []string{"--listen=0.0.0.0:9400", "--http=127.0.0.1:9399"}
		for _, e := range engines {
			args = append(args, "--engine="+e)
		}
		_, _, got := parseArgs(args)
		switch {
		case want == "" && len(got) == 0:
		case want == "" || len(got) != 1 || got[0].Error() != want:
			t.Errorf("%v: got %v, want %q", engines, got, want)
		}
	}
	const own = ": RPCs would come back to it; give the engine's own server"
	for _, host := range []string{"localhost", "127.0.0.1", "[::1]", "0.0.0.0", "[::]"} {
		faults("engine vllm-0: grpc: "+host+":9400 is this relay's own address (listen of engine vllm-0)"+own, "vllm=tcp://h:1,grpc="+host+":9400")
	}
	faults("engine vllm-0: grpc: localhost:9399 is this relay's own address (http)"+own, "vllm=tcp://h:1,grpc=localhost:9399")
	faults("engine vllm-0: grpc: 127.0.0.1:9401 is this relay's own address (listen of engine b)"+own, "vllm=tcp://h:1,grpc=127.0.0.1:9401", "vllm=tcp://h:2,name=b")
	faults("", "vllm=tcp://h:1,grpc=h:9400")
	faults("", "vllm=tcp://h:1,grpc=127.0.0.1:9402", "vllm=tcp://h:2,grpc=127.0.0.1:9402")

	const mend = ": give ports that overlap over no rank, such as "
	faults("engine vllm-0: replay: rank 0 would be tcp://h:1, which is rank 0 of vllm"+mend+"vllm=tcp://h:5557 with replay=tcp://h:5657", "vllm=tcp://h:1,replay=tcp://h:1")
	faults("engine vllm-0: replay: rank 0 would be tcp://h:5558, which is rank 1 of vllm"+mend+"vllm=tcp://h:5557 with replay=tcp://h:5657", "vllm=tcp://h:5557,replay=tcp://h:5558,ranks=4")
	faults("", "vllm=tcp://h:5557,replay=tcp://h:5558")
	faults("engine sglang-0: loads: rank 0 would be tcp://h:1, which is rank 0 of sglang"+mend+"sglang=tcp://h:5557 with replay=tcp://h:5657", "sglang=tcp://h:1,loads=tcp://h:1")
	faults("engine vllm-0: vllm: rank 0 would be tcp://127.0.0.1:9400, where this relay listens (listen of engine vllm-0): give the engine's own socket", "vllm=tcp://127.0.0.1:9400")
	faults("engine vllm-0: vllm: rank 0 would be tcp://*:9399, where this relay listens (http): give the engine's own socket", "vllm=tcp://*:9399")

	const alone = ": every engine needs sockets of its own"
	faults("engine b: vllm: rank 0 would be tcp://h:2, which is rank 1 of vllm of engine a"+alone, "vllm=tcp://h:1,ranks=2,name=a", "vllm=tcp://h:2,name=b")
	faults("engine b: vllm: rank 0 would be tcp://*:7, which is rank 0 of vllm of engine a"+alone, "vllm=tcp://*:7,name=a", "vllm=tcp://*:7,name=b")
	faults("engine b: vllm: rank 0 would be ipc://x, which is rank 0 of vllm of engine a"+alone, "vllm=ipc://x,name=a", "vllm=ipc://x,name=b")
}
