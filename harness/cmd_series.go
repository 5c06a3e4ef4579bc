// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"kindex/asm"
	"kindex/harness/mooncake"
	"kindex/harness/peers"
	"kindex/harness/series"
	"kindex/harness/trial"
	"kindex/numa"
)

// seriesOptions are those of several arms.
type seriesOptions struct {
	rounds     int
	peers      list
	modes      string
	control    string
	out        string
	peersBin   string
	maxForeign float64
	interleave bool
}

// The control arms beside kernel levels.
const (
	controlAgain = "again"
	controlNone  = "none"
)

// defaultRounds of a series that names no number.
const defaultRounds = 20

func (s *seriesOptions) flags(fs *flag.FlagSet) {
	fs.IntVar(&s.rounds, "series", 0, "rounds of a series: every arm in every mode once a round, interleaved, resumed where it stopped")
	fs.Var(&s.peers, "peer", "a published index beside ours, may be repeated: "+trial.OneOf(peers.Indexers))
	fs.StringVar(&s.modes, "modes", strings.Join(series.DefaultModes, ","), "of a series; memory besides, which repeats exactly")
	fs.StringVar(&s.control, "control", controlAgain, "control arm of a series, in the same binary: again (as it is), avx2, generic or none")
	fs.StringVar(&s.out, "out", "", "folder of a series (default one in the cache folder, by corpus)")
	fs.StringVar(&s.peersBin, "peers-bin", "", "a built index-peers (default built by cargo, once)")
	fs.Float64Var(&s.maxForeign, "max-foreign", 0.5, "mean CPUs that others may keep busy during a trial of a series or a search; it is repeated past that")
	fs.BoolVar(&s.interleave, "interleave", false, "a series of local memory against memory interleaved over all nodes")
}

func (s *seriesOptions) wanted() bool { return s.rounds > 0 || s.interleave }

func (s *seriesOptions) modeList() []string { return strings.Split(s.modes, ",") }

// validate reports what cannot be right. It sets what --interleave implies.
func (s *seriesOptions) validate(o *mooncake.Options, sustained bool) error {
	for _, p := range s.peers {
		if !peers.Known(p) {
			return fmt.Errorf("--peer %q: must be %s", p, trial.OneOf(peers.Indexers))
		}
	}
	for i, m := range s.modeList() {
		if !slices.Contains(series.Modes, m) || slices.Contains(s.modeList()[:i], m) {
			return fmt.Errorf("--modes %q: must be different ones of %s, joined by commas", s.modes, trial.OneOf(series.Modes))
		}
	}
	switch {
	case s.rounds < 0 || s.rounds > 1_000:
		return fmt.Errorf("--series %d: must be 1 to 1000", s.rounds)
	case len(s.peers) > 0 && !s.wanted() && !sustained:
		return errors.New("--peer: give --series N or --sustained with it")
	case s.wanted() && sustained:
		return errors.New("--series and --sustained: give one of them")
	case s.wanted() && (o.WindowMS > 0 || o.Check):
		return errors.New("--series: takes no --window-ms and no --check")
	case !(s.maxForeign > 0): // so that no number is refused, too
		return fmt.Errorf("--max-foreign %g: must be above 0", s.maxForeign)
	}
	if s.control != controlAgain && s.control != controlNone {
		if err := asm.CheckLevel(s.control); err != nil {
			return fmt.Errorf("--control %s: must be %s, %s, or kernels (%w)", s.control, controlAgain, controlNone, err)
		}
	}
	if s.interleave && s.rounds == 0 {
		s.rounds = defaultRounds
	}
	return nil
}

// runSeries measures and tells a series.
func runSeries(ctx context.Context, o mooncake.Options, s *seriesOptions, p *trial.Progress, stdout, stderr io.Writer, asJSON bool) error {
	arms, note, err := s.arms(ctx, &o, p, stderr)
	if err != nil {
		return err
	}
	if note != "" {
		p.Alwaysf("%s", note)
	}
	plan, err := s.plan(&o, arms)
	if err != nil {
		return err
	}
	dir := s.out
	if dir == "" {
		name := strings.TrimSuffix(filepath.Base(o.Corpus), filepath.Ext(o.Corpus))
		if s.interleave {
			name += "-interleave"
		}
		if dir, err = trial.CacheDir(filepath.Join("series", name)); err != nil {
			return err
		}
	}
	p.Alwaysf("results are kept in %s", dir)
	trials, err := series.Run(ctx, dir, plan, arms, p)
	if err != nil {
		return err
	}
	r := series.NewReport(plan, trials)
	if note != "" {
		r.Notes = append(r.Notes, note)
	}
	if err := errors.Join(r.Save(dir), r.Plot(dir, trials)); err != nil {
		return err
	}
	if asJSON {
		return json.NewEncoder(stdout).Encode(r)
	}
	return r.WriteText(stdout)
}

// arms returns what is measured, ours first, and what is to be said of it.
func (s *seriesOptions) arms(ctx context.Context, o *mooncake.Options, p *trial.Progress, stderr io.Writer) (arms []series.Arm, note string, err error) {
	if s.interleave {
		t, err := numa.Discover("/")
		if err != nil {
			return nil, "", err
		}
		if n := len(t.MemoryNodes()); n < 2 {
			note = "This machine has one memory node: there is nothing to interleave over, so the series has one placement, local."
		} else if o.Lanes == 1 && o.Shards == 0 {
			o.Lanes = len(t.Workplaces())
		}
	}
	ours := *o
	arms = append(arms, series.Ours("kindex", ours, stderr))
	switch s.control {
	case controlNone:
	case controlAgain:
		arms = append(arms, series.Ours("kindex again", ours, stderr))
	default:
		other := ours
		other.Level = s.control
		arms = append(arms, series.Ours("kindex "+s.control, other, stderr))
	}
	if s.interleave && note == "" {
		other := ours
		other.Memory = "interleave"
		arms = append(arms, series.Ours("kindex interleaved", other, stderr))
	}
	if len(s.peers) > 0 {
		exe, err := s.peerProgram(ctx, p, stderr)
		if err != nil {
			return nil, "", err
		}
		for _, name := range s.peers {
			arms = append(arms, series.Peer(exe, name, ours, stderr))
		}
	}
	return arms, note, nil
}

func (s *seriesOptions) peerProgram(ctx context.Context, p *trial.Progress, stderr io.Writer) (string, error) {
	if s.peersBin != "" {
		return s.peersBin, nil
	}
	return peers.Build(ctx, p, stderr)
}

// plan pins all that must be the same when a series is resumed, both programs included.
func (s *seriesOptions) plan(o *mooncake.Options, arms []series.Arm) (*series.Plan, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	version, err := peers.Version()
	if err != nil {
		return nil, err
	}
	p := &series.Plan{
		Corpus: filepath.Base(o.Corpus), Seed: o.Seed, Modes: s.modeList(), Rounds: s.rounds, MaxForeign: s.maxForeign,
		Settings: map[string]string{
			"kv_index": o.Index, "lanes": strconv.Itoa(o.Lanes), "shards": strconv.Itoa(o.Shards), "query_threads": strconv.Itoa(o.Queries),
			"cpu_features": o.Level, "limit_ops": strconv.Itoa(o.LimitOps),
		},
	}
	if len(s.peers) > 0 {
		p.Settings["index_peers"] = version
		if s.peersBin != "" {
			if p.Settings["index_peers"], err = fileSum(s.peersBin); err != nil {
				return nil, fmt.Errorf("--peers-bin: %w", err)
			}
		}
	}
	if p.Settings["program"], err = fileSum(exe); err != nil {
		return nil, err
	}
	if p.CorpusSum, err = fileSum(o.Corpus); err != nil {
		return nil, err
	}
	for i := range arms {
		if slices.Contains(p.Arms, arms[i].Name) {
			return nil, fmt.Errorf("--peer %s: given twice", arms[i].Name)
		}
		p.Arms = append(p.Arms, arms[i].Name)
	}
	return p, nil
}

// fileSum returns the SHA-256 of a file.
func fileSum(name string) (string, error) {
	f, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// runSustained searches the highest sustained rates, ours first.
func runSustained(ctx context.Context, o mooncake.Options, s *seriesOptions, p *trial.Progress, stdout, stderr io.Writer, asJSON bool) error {
	ours, err := mooncake.Sustain(ctx, o, s.maxForeign, p, stderr)
	if err != nil {
		return err
	}
	all := []*mooncake.Sustainable{ours}
	if len(s.peers) > 0 {
		exe, err := s.peerProgram(ctx, p, stderr)
		if err != nil {
			return err
		}
		for _, name := range s.peers {
			x, err := series.SustainPeer(ctx, exe, name, o, s.maxForeign, p, stderr)
			if err != nil {
				return err
			}
			all = append(all, x)
		}
	}
	if asJSON {
		return json.NewEncoder(stdout).Encode(struct {
			Machine trial.Machine           `json:"machine"`
			Arms    []*mooncake.Sustainable `json:"arms"`
		}{trial.ThisMachine(), all})
	}
	return mooncake.WriteSustained(stdout, all)
}
