// SPDX-License-Identifier: Apache-2.0

package relay

import "kindex/internal/settings"

// parseArgs reads the command line and the file it names. It returns all faults,
// in the words of who has to mend them.
func parseArgs(args []string) (Config, settings.Action, []error) {
	cfg := DefaultConfig()
	action, faults := cfg.command().Parse(args)
	return cfg, action, faults
}

// command is the command line that fills c.
func (c *Config) command() *settings.Command {
	return &settings.Command{
		Name:     "relay",
		Options:  c.options(),
		List:     settings.List{Name: "engine", Clear: func() { c.Engines = nil }, Add: c.addEngine, Begin: c.beginEngine},
		Validate: c.Validate,
		Head:     usageHead, Tail: usageTail, Sample: sampleEngines,
	}
}

// defaultCommand is the command line before anything is given.
func defaultCommand() *settings.Command {
	cfg := DefaultConfig()
	return cfg.command()
}

const usageHead = `relay reads the event sockets of inference engines and serves what they say
over gRPC, so that no subscriber loses anything: history, snapshots, repaired
gaps, load.

usage: relay --engine vllm=tcp://127.0.0.1:5557,replay=tcp://127.0.0.1:5657
       relay --engine sglang=tcp://h:5557,replay=tcp://h:5657,ranks=4,metrics=http://h:30000,grpc=h:30001
       relay --config relay.yaml

  --engine ` + engineForm + `
        an engine to read; may be repeated. Rank r publishes, replays and tells
        its load at the port plus r. Engine i (from 0) is served at listen's port
        plus i, or at its own listen:
          vllm.grpc.engine.VllmEngine or sglang.grpc.scheduler.SglangScheduler
              SubscribeKvEvents and GetLoads; with grpc= all else of the engine's
              own server, passed through
          kindex.relay.v1.RelayService
              all engines of this relay, by name
        metrics= or loads= is where the engine's load is read; with grpc= alone
        its own server is asked. Engines given here replace the file's.
  --config FILE
        YAML file; its keys are the flags' names, flags overrule it
  --check-config
        read flags and files, list every fault, exit 0 (none) or 2
  --print-defaults
        print a configuration file with every default
  --version
  --help
`

const usageTail = `
It runs on few processors while there is little to do, unless the environment
variable GOMAXPROCS says how many.

Exit status: 0 after a clean shutdown (SIGTERM, SIGINT; a second one exits at
once with 1), 1 when the relay cannot run, 2 when flags or files are wrong.
`

const sampleEngines = `
# engines to read: as --engine takes them, or with the same names as keys
engine: []
# - vllm=tcp://127.0.0.1:5557,replay=tcp://127.0.0.1:5657
# - {sglang: "tcp://h:5557", replay: "tcp://h:5657", ranks: 4, metrics: "http://h:30000", name: w1}
`
