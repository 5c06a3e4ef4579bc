// SPDX-License-Identifier: Apache-2.0

package drill

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"kindex/harness/publish"
	"kindex/harness/trial"
	"kindex/internal/kv"
	"kindex/internal/longtest"
)

// slack is what tests allow of a rule's times: they run beside others, on machines of
// any size. The command judges by its rule.
const slack = 8

// build makes the programs in a folder of their own and runs the test there, where
// drills look for them.
func build(t *testing.T) {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cmd := exec.Command("go", "build", "-o", filepath.Join(dir, "bin")+string(os.PathSeparator), "./cmd/relay", "./cmd/indexsrv", "./cmd/mockworker", "./cmd/gateway")
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Chdir(dir)
}

// TestPlanted shows that a drill fails when its index is wrong, and only then: the same
// drill, once with an index that forgets one block of all that it is asked for.
func TestPlanted(t *testing.T) {
	longtest.Skip(t)
	build(t)
	drills, err := Select("relay-drop")
	if err != nil {
		t.Fatal(err)
	}
	o := Options{Seed: 3, Slack: slack, Progress: trial.NewProgress(nil, "drill")}
	r, err := Run(t.Context(), drills, o)
	if err != nil || r.Failed != 0 {
		t.Fatalf("%v: %+v", err, r)
	}
	t.Logf("%s: %s", r.Drills[0].Name, r.Drills[0].Measured)
	o.Slack = 1
	o.plant = func(rank int, e *publish.Event) bool {
		if n := len(e.Contents); rank == 1 && e.Kind == kv.KindStored && n > 1 {
			e.Engines, e.Contents = e.Engines[:n-1], e.Contents[:n-1]
		}
		return true
	}
	r, err = Run(t.Context(), drills, o)
	if err != nil || r.Failed != 1 || !strings.Contains(r.Drills[0].Measured, "rank 1 does not hold the truth") {
		t.Errorf("%v: with a forgetful index: %+v", err, r)
	}
}

// TestRelayDrills runs every drill of the relay.
func TestRelayDrills(t *testing.T) {
	longtest.Skip(t)
	build(t)
	for _, d := range relayDrills {
		t.Run(d.Name, func(t *testing.T) { runOne(t.Context(), t, d) })
	}
}
