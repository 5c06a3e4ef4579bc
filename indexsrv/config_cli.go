// SPDX-License-Identifier: Apache-2.0

package indexsrv

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
		Name:     "indexsrv",
		Options:  c.options(),
		List:     settings.List{Name: "worker", Clear: func() { c.Workers = nil }, Add: c.addWorker, Begin: c.beginWorker},
		Validate: c.Validate,
		Head:     usageHead, Tail: usageTail, Sample: sampleWorkers,
	}
}

// defaultCommand is the command line before anything is given.
func defaultCommand() *settings.Command {
	cfg := DefaultConfig()
	return cfg.command()
}

const usageHead = `indexsrv answers which engine holds how much of a prompt in its KV cache, from
the engines' own event streams, over HTTP.

usage: indexsrv [flags]
       indexsrv --worker 1=tcp://host:5557,replay=tcp://host:5657,model=m,block=16

  --config FILE
        YAML file; its keys are the flags' names, flags overrule it
  --check-config
        read flags and file, list every fault, exit 0 (none) or 2
  --print-defaults
        print a configuration file with every default
  --worker ` + workerForm + `
        register an engine at start; may be repeated. The keys are /register's
        fields, model, block and replay being short for model_name, block_size
        and replay_endpoint. With source=relay the endpoint is host:port of a
        relay's gRPC server. Workers given here replace the file's.
  --version
  --help
`

const usageTail = `
Exit status: 0 after a clean shutdown (SIGTERM, SIGINT; a second one exits at
once with 1), 1 when the host cannot run, 2 when flags or file are wrong.
`

const sampleWorkers = `
# engines registered at start: as --worker takes them, or with /register's names
worker: []
# - 1=tcp://host:5557,replay=tcp://host:5657,model=m,block=16
# - 3=relay-host:9400,source=relay,model=m,block=16,dp_size=2
# - {instance_id: 2, endpoint: "tcp://host2:5557", model_name: m, block_size: 16}
`
