// SPDX-License-Identifier: Apache-2.0

package indexsrv

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime"

	"kindex/asm"
	"kindex/internal/logsink"
	"kindex/internal/settings"
	"kindex/shard"
)

// Run is the indexsrv program: it reads args, serves until a signal comes, and
// returns the exit status. The first signal begins the drain, a second one ends
// it at once.
func Run(args []string, stdout, stderr io.Writer, signals <-chan os.Signal) int {
	cfg, action, faults := parseArgs(args)
	for _, err := range faults {
		_, _ = fmt.Fprintf(stderr, "indexsrv: %v\n", err) // nobody to tell
	}
	if len(faults) > 0 {
		return 2
	}
	var err error
	switch action {
	case settings.Help:
		err = defaultCommand().WriteUsage(stdout)
	case settings.Version:
		version, revision := settings.BuildVersion()
		_, err = fmt.Fprintf(stdout, "indexsrv %s (%s, %s %s/%s, index %v, cpu features %s)\n",
			version, revision, runtime.Version(), runtime.GOOS, runtime.GOARCH, shard.Kinds, asm.Level())
	case settings.Defaults:
		err = defaultCommand().WriteDefaults(stdout)
	case settings.Check:
		_, err = fmt.Fprintln(stdout, "configuration ok")
	case settings.Show: // not offered
	case settings.Serve:
		if err := cfg.settle(); err != nil {
			_, _ = fmt.Fprintf(stderr, "indexsrv: node: %v\n", err)
			return 1
		}
		return serve(&cfg, stderr, signals)
	}
	if err != nil {
		_, _ = fmt.Fprintf(stderr, "indexsrv: %v\n", err)
		return 1
	}
	return 0
}

// serve runs one host until it ends or is told to.
func serve(cfg *Config, stderr io.Writer, signals <-chan os.Signal) int {
	sink := logsink.New(stderr, cfg.LogFormat, cfg.LogQueue)
	defer sink.Close()
	log := logsink.NewLogger(sink, cfg.LogFormat, cfg.LogLevel)
	var h *Host
	err := asm.SetLevel(cfg.CPUFeatures)
	if err != nil {
		err = fmt.Errorf("cpu-features: %w", err)
	} else {
		h, err = New(*cfg, log)
	}
	if err == nil {
		err = h.Listen()
	}
	if err != nil {
		_, _ = fmt.Fprintf(stderr, "indexsrv: %v\n", err)
		return 1
	}
	h.logSink = sink
	ctx, drain := context.WithCancel(context.Background())
	defer drain()
	done := make(chan error, 1)
	go func() { done <- h.Serve(ctx) }()
	for {
		select {
		case s := <-signals:
			if ctx.Err() != nil {
				log.Warn("second signal: exiting without finishing", "signal", s.String())
				return 1
			}
			log.Info("draining", "signal", s.String())
			drain()
		case err := <-done:
			if err != nil {
				log.Error("stopped", "error", err)
				return 1
			}
			log.Info("stopped")
			return 0
		}
	}
}
