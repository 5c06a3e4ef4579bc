// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime"

	"kindex/internal/logsink"
	"kindex/internal/settings"
)

// Run is the gateway program: it reads args, serves until a signal comes, and returns
// the exit status. The first of signals begins the drain, a second one ends it at once;
// each of reload has the configuration read again.
func Run(args []string, stdout, stderr io.Writer, signals, reload <-chan os.Signal) int {
	cfg, action, faults := parseArgs(args)
	for _, err := range faults {
		_, _ = fmt.Fprintf(stderr, "gateway: %v\n", err) // nobody to tell
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
		_, err = fmt.Fprintf(stdout, "gateway %s (%s, %s %s/%s)\n", version, revision, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	case settings.Defaults:
		err = defaultCommand().WriteDefaults(stdout)
	case settings.Show:
		err = cfg.command().WriteConfig(stdout)
	case settings.Check:
		_, err = fmt.Fprintln(stdout, "configuration ok")
	case settings.Serve:
		return serve(cfg, args, stderr, signals, reload)
	}
	if err != nil {
		_, _ = fmt.Fprintf(stderr, "gateway: %v\n", err)
		return 1
	}
	return 0
}

// serve runs one gateway until it ends or is told to.
func serve(cfg *Config, args []string, stderr io.Writer, signals, reload <-chan os.Signal) int {
	sink := logsink.New(stderr, cfg.LogFormat, cfg.LogQueue)
	defer sink.Close()
	level := new(slog.LevelVar)
	level.Set(cfg.LogLevel)
	log := logsink.NewLogger(sink, cfg.LogFormat, level)
	g, err := New(cfg, log)
	if err == nil {
		g.level = level
		g.sinks = append(g.sinks, namedSink{"log", sink})
		err = g.Listen()
	}
	if err != nil {
		_, _ = fmt.Fprintf(stderr, "gateway: %v\n", err)
		return 1
	}
	ctx, drain := context.WithCancel(context.Background())
	defer drain()
	asked := make(chan string, 1)
	g.beside = func(ctx context.Context) { g.watchConfig(ctx, args, asked) }
	done := make(chan error, 1)
	go func() { done <- g.Serve(ctx) }()
	for {
		select {
		case s := <-signals:
			if ctx.Err() != nil {
				log.Warn("second signal: exiting without finishing", "signal", s.String())
				return 1
			}
			log.Info("draining", "signal", s.String())
			drain()
		case s := <-reload:
			select {
			case asked <- s.String():
			default: // one waits already
			}
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
