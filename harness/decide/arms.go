// SPDX-License-Identifier: Apache-2.0

// Before: feed.go. After: run.go, which times what an arm answers.

package decide

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"kindex/gateway/fleet"
	"kindex/gateway/index"
	"kindex/harness/proc"
	"kindex/harness/publish"
	"kindex/indexclient"
	"kindex/internal/lookup"
	"kindex/numa"
)

// Times of indexes.
const (
	startTime  = time.Minute
	settleTime = 5 * time.Minute
	remoteTime = time.Second // of one lookup
	spinTime   = 50 * time.Microsecond
)

// asked is what is asked of an arm's index.
type asked interface {
	Lookup(ctx context.Context, q *lookup.Query, a *lookup.Answer) error
}

// arm is one way to know who holds a prompt.
type arm struct {
	name  string
	index asked // nil: the answers of before
	pin   []int // CPUs of who decides; none: anywhere
	close func()
}

// machines are the processes beside this one.
type machines struct {
	dir string
}

func (m *machines) close() { _ = os.RemoveAll(m.dir) }

// open makes an arm; why: this machine has no room for it.
func (m *machines) open(ctx context.Context, name string, ws []*fleet.Worker) (a *arm, why string, err error) {
	a = &arm{name: name, close: func() {}}
	switch name {
	case ArmChain, ArmPositional:
		x, err := index.Open(ctx, index.Options{Kind: name}, slog.New(slog.DiscardHandler))
		if err != nil {
			return nil, "", err
		}
		for _, w := range ws {
			x.Joined(w)
		}
		a.index, a.close = x, func() { _ = x.Close() }
	case ArmRemote:
		err = m.remote(ctx, a, ws, nil)
	case ArmPinned:
		var cpus []int
		if cpus, why = twoCores(); why != "" {
			return nil, why, nil
		}
		err = m.remote(ctx, a, ws, cpus)
	}
	return a, "", err
}

// twoCores chooses the two cores that spin, or says why there are none.
func twoCores() (cpus []int, why string) {
	t, err := numa.Discover("/")
	if err != nil {
		return nil, err.Error()
	}
	if _, err := exec.LookPath("taskset"); err != nil {
		return nil, "taskset (util-linux) is missing"
	}
	for _, n := range t.Nodes {
		if len(n.CPUs) >= 2 { // the last is not the first one's other thread where there are more
			return []int{n.CPUs[0], n.CPUs[len(n.CPUs)-1]}, ""
		}
	}
	return nil, "no memory node has two CPUs for this process"
}

// remote starts an index host; cpus: its own and its client's, where both spin.
func (m *machines) remote(ctx context.Context, a *arm, ws []*fleet.Worker, cpus []int) error {
	port, err := publish.FreePorts(1)
	if err != nil {
		return err
	}
	path, err := proc.Find("indexsrv")
	if err != nil {
		return err
	}
	at, socket := fmt.Sprintf("127.0.0.1:%d", port), filepath.Join(m.dir, a.name)
	args := []string{path, "--listen", at, "--shm-listen", socket, "--shm-wait", "sleep"}
	options := indexclient.Options{Timeout: remoteTime, Wait: true}
	if cpus != nil {
		args[len(args)-1] = "spin"
		args = slices.Concat([]string{"taskset", "-c", fmt.Sprint(cpus[0])}, args)
		options.SharedSpin, a.pin = spinTime, cpus[1:]
	}
	p, err := proc.Start(args[0], []string{"GOMAXPROCS=2"}, args[1:]...)
	if err != nil {
		return err
	}
	a.close = p.Kill
	err = proc.Until(ctx, startTime, func() bool { return p.Ended() != nil || call(ctx, "http://"+at+"/health", nil) == nil })
	if err = errors.Join(err, p.Ended()); err != nil {
		return err
	}
	for i, w := range ws {
		err := call(ctx, "http://"+at+"/register", map[string]any{
			"instance_id": i + 1, "endpoint": w.Spec.Events.Endpoint, "model_name": modelName, "block_size": blockTokens, "dp_rank": 0,
		})
		if err != nil {
			return err
		}
	}
	client, err := indexclient.Dial(ctx, "unix:"+socket, options)
	if err != nil {
		return err
	}
	a.index, a.close = client, func() {
		_ = client.Close()
		p.Kill()
	}
	return nil
}

// call is one request that must succeed.
func call(ctx context.Context, url string, body any) error {
	method, in := http.MethodGet, []byte(nil)
	if body != nil {
		method = http.MethodPost
		var err error
		if in, err = json.Marshal(body); err != nil {
			return err
		}
	}
	q, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(in))
	if err != nil {
		return err
	}
	q.Header.Set("Content-Type", "application/json")
	r, err := http.DefaultClient.Do(q)
	if err != nil {
		return err
	}
	defer func() { _ = r.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(r.Body, 1<<16))
	if err == nil && r.StatusCode/100 != 2 {
		err = fmt.Errorf("%s: %d %.200s", url, r.StatusCode, text)
	}
	return err
}

// settled waits until the arm answers every question right.
func (a *arm) settled(ctx context.Context, qs []question) error {
	if a.index == nil {
		return nil
	}
	var answer lookup.Answer
	next := 0
	err := proc.Until(ctx, settleTime, func() bool {
		for ; next < len(qs); next++ {
			if err := a.index.Lookup(ctx, &qs[next].query, &answer); err != nil || !qs[next].right(&answer) {
				return false
			}
			qs[next].last = slices.Clone(answer.Matches)
		}
		return true
	})
	if err != nil {
		return fmt.Errorf("%s: question %d of %d is not answered right: %w: %d matches, want %d", a.name, next, len(qs), err, len(answer.Matches), len(qs[next].depths))
	}
	return nil
}
