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

	"kindex/harness/corpus"
	"kindex/harness/trial"
)

// corpusOptions are the command's.
type corpusOptions struct {
	trace, out, compare string
	generate            bool
	rows                int
	params              corpus.Params
}

// corpusReport is what the command tells of a corpus.
type corpusReport struct {
	File      string            `json:"corpus"`
	Workers   int               `json:"workers"`
	BlockSize int               `json:"block_size"`
	Source    map[string]any    `json:"source"`
	Counts    corpus.Counts     `json:"counts"`
	Sections  map[string]string `json:"sections_sha256"`
	Differs   []string          `json:"differs,omitempty"` // sections, with --compare
}

func runCorpus(ctx context.Context, c *command, args []string, stdout, stderr io.Writer) int {
	o := corpusOptions{params: corpus.DefaultParams()}
	fs := flag.NewFlagSet(c.name, flag.ContinueOnError)
	fs.StringVar(&o.trace, "trace", "", "request trace (JSON lines as Mooncake publishes them, gzipped or plain), or "+corpus.BuiltIn+" for the one within this program")
	fs.BoolVar(&o.generate, "generate", false, "make up a trace of the conversation trace's shape from --seed and --rows")
	fs.IntVar(&o.rows, "rows", corpus.DefaultRows, "requests to make up")
	fs.IntVar(&o.params.Duplication, "dup", o.params.Duplication, "copies of the request list, alike but sharing no content")
	fs.IntVar(&o.params.Length, "len", o.params.Length, "factor of all prompts' lengths")
	fs.IntVar(&o.params.Workers, "workers", o.params.Workers, "simulated workers")
	fs.IntVar(&o.params.GPUBlocks, "gpu-blocks", o.params.GPUBlocks, "blocks that a worker caches")
	fs.Uint64Var(&o.params.Seed, "seed", o.params.Seed, "of requests' workers, and of a made-up trace")
	fs.StringVar(&o.out, "out", "", "corpus file to write")
	fs.StringVar(&o.compare, "compare", "", "another corpus file: every section must be equal")
	asJSON := fs.Bool("json", false, "print one JSON object")
	rest, code, done := c.parse(fs, args, stdout, stderr)
	if done {
		return code
	}
	var err error
	switch made := o.generate || o.trace != ""; {
	case o.trace != "" && o.rows != corpus.DefaultRows:
		err = errors.New("--rows: is for --generate; a trace is taken whole")
	case o.generate && o.trace != "":
		err = errors.New("--generate and --trace: give one of them")
	case made && len(rest) > 0:
		err = fmt.Errorf("unexpected argument %q: a corpus is made or a file is read, not both", rest[0])
	case made && o.out == "" && o.compare == "":
		err = errors.New("--out: name the file to write (or --compare one with it)")
	case !made && (len(rest) != 1 || o.out != ""):
		err = errors.New("give --trace FILE or --generate, with --out FILE; or one corpus file to be described")
	}
	var r *corpusReport
	if err == nil {
		r, err = doCorpus(ctx, o, rest, trial.NewProgress(stderr, c.name))
	}
	if err == nil {
		err = r.write(stdout, *asJSON)
	}
	if err != nil {
		fmt.Fprintf(stderr, "harness corpus: %v\n", err)
		return exitUsage
	}
	if len(r.Differs) > 0 {
		return exitDiffers
	}
	return exitOK
}

// doCorpus reads or makes a corpus, writes it where asked and describes it.
func doCorpus(ctx context.Context, o corpusOptions, files []string, p *trial.Progress) (*corpusReport, error) {
	var c *corpus.Corpus
	var err error
	name := o.out
	if len(files) > 0 {
		name = files[0]
		c, err = corpus.ReadFile(name)
	} else {
		c, err = makeCorpus(ctx, o, p)
	}
	if err != nil {
		return nil, err
	}
	if o.out != "" {
		p.Sayf("writing %s", o.out)
		if err := writeCorpus(o.out, c); err != nil {
			return nil, err
		}
	}
	r := &corpusReport{File: name, Workers: c.Workers, BlockSize: c.BlockSize, Source: c.Source, Counts: c.Counts(), Sections: sectionSums(c)}
	if o.compare != "" {
		other, err := corpus.ReadFile(o.compare)
		if err != nil {
			return nil, err
		}
		for tag, sum := range sectionSums(other) {
			if sum != r.Sections[tag] {
				r.Differs = append(r.Differs, tag)
			}
		}
	}
	return r, nil
}

// makeCorpus reads or generates the trace and simulates.
func makeCorpus(ctx context.Context, o corpusOptions, p *trial.Progress) (*corpus.Corpus, error) {
	var rows []corpus.Row
	var err error
	name := fmt.Sprintf("generated, %d rows", o.rows)
	switch {
	case o.generate:
		rows, err = corpus.Generate(o.params.Seed, o.rows)
	case o.trace == corpus.BuiltIn:
		rows, name, err = corpus.BuiltInTrace()
	default:
		name = filepath.Base(o.trace)
		rows, err = corpus.ReadTrace(o.trace)
	}
	if err != nil {
		return nil, err
	}
	c, err := corpus.Simulate(ctx, rows, o.params, func(done, of int) { p.Sayf("%d of %d workers simulated", done, of) })
	if err != nil {
		return nil, err
	}
	c.Source = map[string]any{
		"generator": "kindex, rule SIM1", "trace": name, "rows": len(rows), "duplication": o.params.Duplication,
		"length_factor": o.params.Length, "num_gpu_blocks": o.params.GPUBlocks, "seed": o.params.Seed,
	}
	return c, nil
}

// defaultCorpus is the published corpus of the built-in trace with 4 copies, made once
// in the cache folder.
func defaultCorpus(ctx context.Context, p *trial.Progress) (string, error) {
	dir, err := trial.CacheDir("corpus")
	if err != nil {
		return "", err
	}
	o := corpusOptions{trace: corpus.BuiltIn, params: corpus.DefaultParams(), out: filepath.Join(dir, "sim-conv-d4.kvc")}
	if _, err := os.Stat(o.out); err == nil {
		return o.out, nil
	}
	o.params.Duplication = 4
	p.Alwaysf("making %s, once", o.out)
	c, err := makeCorpus(ctx, o, p)
	if err != nil {
		return "", err
	}
	return o.out, writeCorpus(o.out, c)
}

// writeCorpus writes beside the name and renames, so that no half file is ever taken
// for a corpus.
func writeCorpus(name string, c *corpus.Corpus) error {
	f, err := os.CreateTemp(filepath.Dir(name), filepath.Base(name)+".*.part")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(f.Name()) }()
	if err := corpus.Write(f, c); err != nil {
		_ = f.Close()
		return err
	}
	if err := f.Chmod(0o644); err != nil {
		_ = f.Close()
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return os.Rename(f.Name(), name)
}

func sectionSums(c *corpus.Corpus) map[string]string {
	out := map[string]string{}
	for _, s := range c.Sections() {
		h := sha256.Sum256(s.Data)
		out[s.Tag] = hex.EncodeToString(h[:])
	}
	return out
}

func (r *corpusReport) write(w io.Writer, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(w).Encode(r)
	}
	n := r.Counts
	fmt.Fprintf(w, "%s: %d workers, blocks of %d tokens, %v\n", r.File, r.Workers, r.BlockSize, r.Source["trace"])
	fmt.Fprintf(w, "  %d operations: %d lookups, %d stored events (%d of one block), %d removed events, %d clears\n", n.Ops, n.Requests, n.StoredEvents, n.SingleStores, n.RemovedEvents, n.Cleared)
	fmt.Fprintf(w, "  %d block operations: %d looked up, %d stored, %d removed\n", n.BlockOps, n.RequestBlocks, n.StoredBlocks, n.RemovedBlocks)
	fmt.Fprintf(w, "  %d nodes of %d contents, deepest prompt %d blocks\n", n.Nodes, n.Contents, n.MaxDepth)
	for _, tag := range corpus.Tags() {
		same := ""
		for _, d := range r.Differs {
			if d == tag {
				same = "  DIFFERS"
			}
		}
		fmt.Fprintf(w, "  %s sha256 %s%s\n", tag, r.Sections[tag], same)
	}
	return nil
}
