// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"kindex/gateway/fleet"
	"kindex/internal/settings"
)

// parseArgs reads the command line and the file it names. It returns all faults, in
// the words of who has to mend them.
func parseArgs(args []string) (*Config, settings.Action, []error) {
	cfg := DefaultConfig()
	command := cfg.command()
	action, faults := command.Parse(args)
	cfg.file = command.File
	return &cfg, action, faults
}

// command is the command line that fills c.
func (c *Config) command() *settings.Command {
	return &settings.Command{
		Name:    "gateway",
		Options: c.options(),
		List: settings.List{
			Name: "worker", Clear: func() { c.Workers = nil },
			Add: c.addWorker, Begin: c.beginWorker, Items: c.workerItems,
		},
		Validate: c.Validate,
		Head:     usageHead, Tail: usageTail, Sample: sampleWorkers,
	}
}

// defaultCommand is the command line before anything is given.
func defaultCommand() *settings.Command {
	cfg := DefaultConfig()
	return cfg.command()
}

const usageHead = `gateway is an OpenAI-compatible proxy before a fleet of engines: each request goes
where its prompt is cached, as far as load and liveness let it.

usage: gateway --worker http://127.0.0.1:8000
       gateway --worker http://h1:8000,events=tcp://h1:5557,replay=tcp://h1:5657 --worker http://h2:8000,relay=h2:9400
       gateway --config gateway.yaml

  --worker ` + fleet.FlagForm + `
        an engine to send requests to; may be repeated. events= and replay= are its
        own sockets, relay= a relay beside it: where an index in this process learns
        what it has cached. What is left out is asked of the engine. Workers given
        here replace the file's.
  --config FILE
        YAML file; its keys are the flags' names, flags overrule it. It is read again
        when it changes, and on SIGHUP
  --check-config
        read flags and file, list every fault, exit 0 (none) or 2
  --print-config
        print flags and file as one file
  --print-defaults
        print a configuration file with every default
  --version
  --help
`

const usageTail = `
Exit status: 0 after a clean shutdown (SIGTERM, SIGINT; a second one exits at
once with 1), 1 when the gateway cannot run, 2 when flags or files are wrong.
`

const sampleWorkers = `
# engines to send requests to: as --worker takes them, or with the same names as keys
worker: []
# - http://h1:8000,events=tcp://h1:5557,replay=tcp://h1:5657
# - {url: "http://h2:8000", relay: "h2:9400", model: m, block: 16, dp_size: 2}
`
