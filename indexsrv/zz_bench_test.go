package indexsrv

import (
	"slices"
	"testing"
	"time"

	"kindex/indexclient"
	"kindex/internal/shm"
	"kindex/numa"
)

func BenchmarkZP(b *testing.B) { zz(b, true) }
func BenchmarkZZ(b *testing.B) { zz(b, false) }

type timed struct {
	h    shm.Handler
	took []time.Duration
	gap  []time.Duration
	last time.Time
}

func (t *timed) Answer(i int, b []shm.Request) {
	s := time.Now()
	t.gap = append(t.gap, s.Sub(t.last))
	t.h.Answer(i, b)
	t.last = time.Now()
	t.took = append(t.took, t.last.Sub(s))
}

func zz(b *testing.B, place bool) {
	sock := b.TempDir() + "/s"
	h, _ := benchHost(b, func(c *Config) { c.Shm.Listen = sock; c.Shm.Wait = "spin" })
	tm := &timed{h: h.shm}
	var pl func(int, []byte) error
	if place {
		pl = h.shm.place
	}
	srv, err := shm.NewServer(shm.ServerOptions{Path: sock, Layout: shm.Layout{1, 128 << 10, 128 << 10}, MaxClients: 4, Allow: func(shm.Cred) bool { return true }, Handler: tm, Tables: &h.shm.table, Place: pl,
		Spin: 50 * time.Microsecond, Thread: func(int) func() { u, _ := numa.LockAndPin([]int{0}); return u }})
	if err != nil {
		b.Fatal(err)
	}
	if err := srv.Listen(); err != nil {
		b.Fatal(err)
	}
	go srv.Serve()
	unpin, _ := numa.LockAndPin([]int{1})
	defer unpin()
	c, _ := indexclient.Dial(b.Context(), "unix:"+sock, indexclient.Options{Wait: true, SharedSpin: 50 * time.Microsecond})
	benchLookups(b, c)
	slices.Sort(tm.took)
	slices.Sort(tm.gap)
	b.ReportMetric(float64(tm.took[len(tm.took)/2]), "handler-p50")
	b.ReportMetric(float64(tm.gap[len(tm.took)/2]), "gap-p50")
}
