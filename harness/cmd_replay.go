// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"flag"
	"fmt"
	"io"
	"strings"

	"kindex/harness/openloop"
	"kindex/harness/trial"
)

func runReplay(ctx context.Context, c *command, args []string, stdout, stderr io.Writer) int {
	o := openloop.DefaultOptions()
	fs := flag.NewFlagSet(c.name, flag.ContinueOnError)
	replayFlags(fs, &o)
	asJSON := fs.Bool("json", false, "print summary.json instead of the report")
	rest, code, done := c.parse(fs, args, stdout, stderr)
	if done {
		return code
	}
	if o.URL == "" && len(rest) == 1 {
		o.URL, rest = rest[0], nil
	}
	err := o.Validate()
	if len(rest) > 0 {
		err = fmt.Errorf("unexpected argument %q: everything but the endpoint's address is a flag", rest[0])
	}
	if err != nil {
		fmt.Fprintf(stderr, "harness replay: %v\n", err)
		return exitUsage
	}
	r, err := openloop.Run(ctx, &o, stderr)
	if err != nil {
		fmt.Fprintf(stderr, "harness replay: %v\n", err)
		return exitUsage
	}
	if o.Out != "" {
		err = r.WriteDir(o.Out)
	}
	switch {
	case err != nil:
	case *asJSON:
		err = r.Summary.WriteJSON(stdout)
	default:
		err = r.Summary.WriteText(stdout)
	}
	if err != nil {
		fmt.Fprintf(stderr, "harness replay: %v\n", err)
		return exitDiffers
	}
	if !r.Summary.Valid {
		fmt.Fprintf(stderr, "harness replay: invalid: %s\n", strings.Join(r.Summary.Invalid, "; "))
		return exitDiffers
	}
	return exitOK
}

func replayFlags(fs *flag.FlagSet, o *openloop.Options) {
	fs.StringVar(&o.URL, "url", "", "the endpoint: a gateway, an engine or a mock one (may also stand alone, without the flag)")
	fs.StringVar(&o.Trace, "trace", o.Trace, "Mooncake's JSON lines or Azure's CSV, plain or packed (gzip, zstd); "+openloop.Conversation+" for the one within this program; "+openloop.Generated+" for one of its shape, made up from --seed")
	fs.Var(&o.Rows, "rows", "rows to replay, both counted in and from 0: `FIRST-LAST`, FIRST- or all")
	fs.Float64Var(&o.Speedup, "speedup", o.Speedup, "how many times as fast as the trace requests arrive")
	fs.BoolVar(&o.OneByOne, "one-by-one", false, "send each request when the one before is answered, whatever the trace's times: what is cached then depends on no timing")
	fs.DurationVar(&o.For, "for", 0, "send nothing that is due later (default all)")
	fs.StringVar(&o.Model, "model", "", "model to ask for (default the first that the endpoint names)")
	fs.StringVar(&o.Prompt, "prompt", o.Prompt, "prompts as token ids or words to /v1/completions, or words to /v1/chat/completions: "+trial.OneOf(openloop.Prompts))
	fs.Uint64Var(&o.Vocab, "vocab", o.Vocab, "token ids are below it")
	fs.StringVar(&o.Words, "words", "", "`file` of words for prompts as words, each one token of the endpoint's tokenizer: one that it does not know makes all prompts alike (default some common ones)")
	fs.IntVar(&o.Share, "share", 0, "leading tokens that rows without ids (Azure's) have in common")
	fs.IntVar(&o.MaxOutput, "max-output", 0, "bound of an answer's tokens (default as the trace says)")
	fs.BoolVar(&o.IgnoreEOS, "ignore-eos", o.IgnoreEOS, "ask for answers of exactly the trace's length (vLLM's and SGLang's ignore_eos)")
	fs.Func("header", "`\"Name: value\"` to send with each request, may be repeated", func(s string) error {
		name, value, ok := strings.Cut(s, ":")
		if name = strings.TrimSpace(name); !ok || name == "" || strings.ContainsAny(s, "\r\n") {
			return fmt.Errorf("must be \"Name: value\"")
		}
		o.Headers.Add(name, strings.TrimSpace(value))
		return nil
	})
	fs.StringVar(&o.Workers, "worker-header", o.Workers, "response header that names the worker, where no --oracle does")
	fs.StringVar(&o.Oracle, "oracle", "", "admin address of the mock fleet behind the endpoint: its shape, for the oracle, who served what, and what the best worker held")
	fs.BoolVar(&o.Reset, "reset", false, "empty the fleet's caches and log first")
	fs.IntVar(&o.BlockSize, "block-size", 0, "tokens of a cache block, for prefix reuse (default the fleet's, else 16)")
	fs.Var(&o.Shape, "shape", "fleet that the oracle is of, as `WORKERSxBLOCKSxTOKENS`: 8x32768x16 are eight of 32768 blocks of 16 tokens (default as --oracle says, else no oracle)")
	fs.IntVar(&o.InFlight, "max-in-flight", o.InFlight, "requests on the way at once; one more is dropped, and counted")
	fs.DurationVar(&o.Timeout, "timeout", o.Timeout, "of a whole answer")
	fs.DurationVar(&o.Late, "late", o.Late, "the replay is invalid if 1 of 100 requests is sent later than that")
	fs.DurationVar(&o.TTFT, "slo-ttft", o.TTFT, "goodput: time to the first token")
	fs.DurationVar(&o.ITL, "slo-itl", o.ITL, "goodput: mean gap between tokens of an answer")
	fs.StringVar(&o.Out, "out", "", "folder for summary.json, requests.csv, fleet.csv, report.md and plots (default none)")
	fs.Uint64Var(&o.Seed, "seed", o.Seed, "of prompts' tokens, and of a made-up trace")
}

func runProxy(ctx context.Context, c *command, args []string, stdout, stderr io.Writer) int {
	fs := flag.NewFlagSet(c.name, flag.ContinueOnError)
	upstream := fs.String("upstream", "", "the engines' addresses, with commas between")
	listen := fs.String("listen", "127.0.0.1:8080", "`host:port` to listen at")
	rest, code, done := c.parse(fs, args, stdout, stderr)
	if done {
		return code
	}
	var urls []string
	for s := range strings.SplitSeq(*upstream, ",") {
		if s = strings.TrimSpace(s); s != "" {
			urls = append(urls, s)
		}
	}
	var err error
	var p *openloop.Proxy
	if len(rest) > 0 {
		err = fmt.Errorf("unexpected argument %q: everything is a flag", rest[0])
	} else {
		p, err = openloop.OpenProxy(*listen, urls)
	}
	if err != nil {
		fmt.Fprintf(stderr, "harness proxy: %v\n", err)
		return exitUsage
	}
	fmt.Fprintf(stdout, "listening at http://%s\n", p.Addr)
	<-ctx.Done()
	p.Close()
	return exitOK
}
