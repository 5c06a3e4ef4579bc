// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"flag"
	"fmt"
	"io"
	"strings"
	"time"

	"kindex/harness/live"
	"kindex/harness/trial"
	"kindex/harness/whole"
	"kindex/shard"
)

// list collects a flag that may be repeated.
type list []string

func (l *list) String() string { return strings.Join(*l, " ") }

func (l *list) Set(s string) error {
	*l = append(*l, s)
	return nil
}

// runFlags are those of the run command's forms, of which each takes its own.
type runFlags struct {
	recorded bool
	whole    whole.Config
	live     live.Config
	workers  list
	listen   string
	speed    float64 // 0: the form's own
	length   time.Duration
	every    time.Duration
}

// The flags that one form alone takes.
var (
	recordedFlags = []string{"kv-index", "vllm", "sglang"}
	wholeFlags    = []string{"gateway", "policy", "engines", "rows", "speedup"}
)

func (f *runFlags) register(fs *flag.FlagSet) {
	f.whole, f.live = whole.DefaultConfig(), live.DefaultConfig()
	fs.BoolVar(&f.recorded, "recorded", false, "no gateway: an index host and two engines that play recordings of real ones, each request asked of the index first and compared with what the engine said")
	fs.StringVar(&f.listen, "listen", f.live.Listen, "HTTP address of the index host; a free port is taken instead of a taken one")
	fs.DurationVar(&f.length, "for", 0, "end after so long (default at Ctrl-C)")
	fs.DurationVar(&f.every, "every", f.live.Every, "between tables where the output is no terminal")
	fs.Float64Var(&f.speed, "speed", 0, fmt.Sprintf("speed of the mock engines, 1 as real ones (default %v, with --recorded %v)", f.whole.Speed, f.live.Speed))
	fs.Var(&f.workers, "worker", "a real engine instead of the mock ones, may be repeated. URL[,events=ENDPOINT][,replay=ENDPOINT]...: a gateway before them with the index in it; ID=ENDPOINT,model=NAME,block=TOKENS[,replay=ENDPOINT][,dp_size=N]...: an index host alone that follows them")
	fs.StringVar(&f.whole.Gateway, "gateway", f.whole.Gateway, "HTTP address of the gateway, likewise")
	fs.StringVar(&f.whole.Policy, "policy", f.whole.Policy, "of the gateway")
	fs.IntVar(&f.whole.Engines, "engines", f.whole.Engines, "mock engines")
	fs.Var(&f.whole.Rows, "rows", "rows of the conversation trace, replayed again and again: `FIRST-LAST`, FIRST- or all")
	fs.Float64Var(&f.whole.Speedup, "speedup", f.whole.Speedup, "how many times as fast as the trace requests arrive")
	fs.StringVar(&f.live.Index, "kv-index", "", "index of an index host alone: "+trial.OneOf(shard.Kinds)+" (default the host's)")
	fs.StringVar(&f.live.VLLM, "vllm", f.live.VLLM, "with --recorded: the first engine's recording")
	fs.StringVar(&f.live.SGLang, "sglang", f.live.SGLang, "with --recorded: the second's")
}

// hostAlone reports whether an index host is started without a gateway.
func (f *runFlags) hostAlone() bool {
	return f.recorded || len(f.workers) > 0 && !whole.IsWorker(f.workers[0])
}

// settle hands what all forms take to the one that runs, and returns the first fault.
func (f *runFlags) settle(fs *flag.FlagSet) error {
	alone, wrong, form := f.hostAlone(), recordedFlags, "without a gateway: --recorded, or --worker ID=ENDPOINT,..."
	if alone {
		wrong, form = wholeFlags, "with a gateway: not --recorded and not --worker ID=ENDPOINT,..."
	}
	var err error
	fs.Visit(func(g *flag.Flag) {
		for _, name := range wrong {
			if g.Name == name {
				err = fmt.Errorf("--%s goes %s", name, form)
			}
		}
	})
	if err != nil {
		return err
	}
	if f.recorded && len(f.workers) > 0 {
		return fmt.Errorf("--recorded and --worker: one of them")
	}
	if f.speed == 0 {
		f.speed = f.whole.Speed
		if alone {
			f.speed = f.live.Speed
		}
	}
	if alone {
		c := &f.live
		c.Listen, c.For, c.Every, c.Speed, c.Workers = f.listen, f.length, f.every, f.speed, f.workers
		return c.Validate()
	}
	c := &f.whole
	c.Listen, c.For, c.Every, c.Speed, c.Workers = f.listen, f.length, f.every, f.speed, f.workers
	return c.Validate()
}

func runWhole(ctx context.Context, c *command, args []string, stdout, stderr io.Writer) int {
	var f runFlags
	fs := flag.NewFlagSet(c.name, flag.ContinueOnError)
	f.register(fs)
	rest, code, done := c.parse(fs, args, stdout, stderr)
	if done {
		return code
	}
	err := f.settle(fs)
	if len(rest) > 0 {
		err = fmt.Errorf("unexpected argument %q: everything is a flag", rest[0])
	}
	if err != nil {
		fmt.Fprintf(stderr, "harness run: %v\n", err)
		return exitUsage
	}
	if f.hostAlone() {
		err = live.Run(ctx, f.live, stdout)
	} else {
		err = whole.Run(ctx, f.whole, stdout)
	}
	if err != nil {
		fmt.Fprintf(stderr, "harness run: %v\n", err)
		return exitDiffers
	}
	return exitOK
}
