// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime"

	"kindex/internal/logsink"
	"kindex/internal/settings"
)

// Run is the relay program: it reads args, serves until a signal comes, and
// returns the exit status. The first signal begins the drain, a second one ends
// it at once.
func Run(args []string, stdout, stderr io.Writer, signals <-chan os.Signal) int {
	cfg, action, faults := parseArgs(args)
	for _, err := range faults {
		_, _ = fmt.Fprintf(stderr, "relay: %v\n", err) // nobody to tell
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
		_, err = fmt.Fprintf(stdout, "relay %s (%s, %s %s/%s)\n", version, revision, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	case settings.Defaults:
		err = defaultCommand().WriteDefaults(stdout)
	case settings.Check:
		_, err = fmt.Fprintln(stdout, "configuration ok")
	case settings.Show: // not offered
	case settings.Serve:
		return serve(&cfg, stderr, signals)
	}
	if err != nil {
		_, _ = fmt.Fprintf(stderr, "relay: %v\n", err)
		return 1
	}
	return 0
}

// serve runs one host until it ends or is told to.
func serve(cfg *Config, stderr io.Writer, signals <-chan os.Signal) int {
	procs := limitProcessors(cfg)
	defer procs.close()
	sink := logsink.New(stderr, cfg.LogFormat, cfg.LogQueue)
	defer sink.Close()
	log := logsink.NewLogger(sink, cfg.LogFormat, cfg.LogLevel)
	h, err := New(*cfg, log)
	if err == nil {
		h.logSink = sink
		h.options.procs = procs
		h.memory = new(memory)
		defer h.memory.close()
		h.memory.limitHeadroom()
		err = h.Listen()
	}
	if err != nil {
		_, _ = fmt.Fprintf(stderr, "relay: %v\n", err)
		return 1
	}
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
