// SPDX-License-Identifier: Apache-2.0

package mockworker

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"

	"kindex/harness/mockworker/engine"
	"kindex/harness/record"
	"kindex/relay/wire"
)

// Config is what a mock worker can be told.
type Config struct {
	Recording string  // kvrec/1 file
	Pub       string  // rank 0's event endpoint
	Replay    string  // rank 0's replay endpoint; "": none
	Speed     float64 // 1: as recorded
	Loop      bool
	Buffer    int  // batches that a replay can go back; 0: as recorded, else 10,000
	Report    bool // tell requests and answers on standard output
	Gate      bool // wait for a line of standard input at the start and after each request
}

const (
	defaultBuffer = 10_000
	maxBuffer     = 1_000_000
	maxSpeed      = 1e6
)

// Validate returns the first fault, naming the flag.
func (c *Config) Validate() error {
	switch {
	case c.Recording == "":
		return errors.New("--recording: missing: name a kvrec/1 file, or a live engine by --engine")
	case c.Pub == "":
		return errors.New("--pub: must be tcp://host:port or ipc://path")
	case !(c.Speed > 0 && c.Speed <= maxSpeed):
		return fmt.Errorf("--speed %v: must be above 0 and at most %v", c.Speed, float64(maxSpeed))
	case c.Buffer < 0 || c.Buffer > maxBuffer:
		return fmt.Errorf("--buffer %d: must be 0 to %d", c.Buffer, maxBuffer)
	}
	if _, err := engine.Endpoint(c.Pub, 0); err != nil {
		return fmt.Errorf("--pub: %w", err)
	}
	if c.Replay != "" {
		if _, err := engine.Endpoint(c.Replay, 0); err != nil {
			return fmt.Errorf("--replay: %w", err)
		}
	}
	return nil
}

// namesEngine tells whether an argument asks for a live engine.
func namesEngine(arg string) bool {
	name, _, _ := strings.Cut(strings.TrimPrefix(arg, "-"), "=")
	return name == "-engine" || name == "engine" && strings.HasPrefix(arg, "-")
}

// Main runs the program with args, its name left out, and returns the exit code:
// 0 after a clean end, 1 when it cannot go on, 2 for bad usage or an unreadable
// recording. It ends when ctx does.
func Main(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	if slices.ContainsFunc(args, namesEngine) {
		return engine.Main(ctx, args, stdout, stderr)
	}
	var c Config
	fs := flag.NewFlagSet("mockworker", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.Usage = func() {}
	fs.StringVar(&c.Recording, "recording", "", "recording to play (kvrec/1, gzipped or plain)")
	fs.StringVar(&c.Pub, "pub", "tcp://127.0.0.1:5557", "event endpoint of rank 0; rank r is at port + r; port 0 takes a free one")
	fs.StringVar(&c.Replay, "replay", "", "replay endpoint of rank 0, as --pub (default none)")
	fs.Float64Var(&c.Speed, "speed", 1, "how many times as fast as recorded")
	fs.BoolVar(&c.Loop, "loop", false, "begin again at the end: each time is a restarted engine, numbered from 0 with an empty cache")
	fs.IntVar(&c.Buffer, "buffer", 0, "batches a replay can go back (default as recorded, else 10000)")
	fs.BoolVar(&c.Report, "report", false, "tell requests and the engine's answers on standard output, a JSON object a line")
	fs.BoolVar(&c.Gate, "gate", false, "wait for a line on standard input at the start and, with --report, after each request; end with standard input")
	err := fs.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		_, _ = fmt.Fprint(stdout, "mockworker plays an engine's recording over real ZMQ sockets, or, with --engine, is a small live engine.\n\n"+
			"usage: mockworker --recording FILE [--pub ENDPOINT] [--replay ENDPOINT] [flags]\n"+
			"       mockworker --engine vllm|sglang [flags]   (mockworker --engine vllm --help tells them)\n\n")
		fs.SetOutput(stdout)
		fs.PrintDefaults()
		return 0
	case err == nil && fs.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q: everything is a flag", fs.Arg(0))
	case err == nil:
		err = c.Validate()
	}
	if err != nil {
		_, _ = fmt.Fprintf(stderr, "mockworker: %v\n", err)
		return 2
	}
	f, err := record.Read(c.Recording)
	if err != nil {
		_, _ = fmt.Fprintf(stderr, "mockworker: %v\n", err)
		return 2
	}
	if err := run(ctx, c, f, stdin, stdout, stderr); err != nil {
		_, _ = fmt.Fprintf(stderr, "mockworker: %v\n", err)
		return 1
	}
	return 0
}

// run opens the sockets and plays f.
func run(ctx context.Context, c Config, f *record.File, stdin io.Reader, stdout, stderr io.Writer) error {
	ranks := f.Ranks()
	if len(ranks) == 0 {
		return fmt.Errorf("%s: no message of an event socket in it", c.Recording)
	}
	layout, err := wire.LayoutFor(f.Header.Engine, f.Header.Version)
	if err != nil {
		return fmt.Errorf("%s: %w", c.Recording, err)
	}
	steps := c.Buffer
	if steps == 0 {
		steps = f.Header.BufferSteps
	}
	if steps <= 0 || steps > maxBuffer {
		steps = defaultBuffer
	}
	out, err := open(c.Pub, c.Replay, ranks, layout.Replay, steps)
	if err != nil {
		return err
	}
	defer out.close()
	_, _ = fmt.Fprintf(stderr, "mockworker: %s %s, ranks %v, publishing at %v, replays at %v\n", f.Header.Engine, f.Header.Version, ranks, out.pubs, out.replays)
	var report io.Writer
	if c.Report {
		report = stdout
	}
	var gate chan struct{}
	if c.Gate {
		gate = make(chan struct{})
		var end context.CancelFunc
		ctx, end = context.WithCancel(ctx)
		defer end()
		go func() { // ends with standard input, and ends the player then, or with the process
			defer end()
			for in := bufio.NewScanner(stdin); in.Scan(); {
				select {
				case gate <- struct{}{}:
				case <-ctx.Done():
					return
				}
			}
		}()
	}
	return newPlayer(c, f, out, report, gate).play(ctx)
}
