// SPDX-License-Identifier: Apache-2.0

package indexsrv

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"runtime/debug"
	"strings"
)

// What the command line asks for.
type cliAction int

const (
	actServe cliAction = iota
	actCheck
	actDefaults
	actHelp
	actVersion
)

// cliFlag keeps what one flag was given; it is applied after the file, which it
// overrules.
type cliFlag struct {
	values []string
	isBool bool
}

func (f *cliFlag) String() string     { return "" }
func (f *cliFlag) Set(s string) error { f.values = append(f.values, s); return nil }

// IsBoolFlag lets the flag stand without a value.
func (f *cliFlag) IsBoolFlag() bool { return f.isBool }

// on reports whether a boolean flag is set.
func (f *cliFlag) on() bool { return len(f.values) > 0 && f.values[len(f.values)-1] == "true" }

// parseArgs reads the command line and the file it names: defaults, then the
// file, then flags. It returns all faults, in the words of who has to mend them.
func parseArgs(args []string) (Config, cliAction, []error) {
	cfg := DefaultConfig()
	fs := flag.NewFlagSet("indexsrv", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	given := map[string]*cliFlag{}
	add := func(name string, isBool bool) *cliFlag {
		f := &cliFlag{isBool: isBool}
		given[name] = f
		fs.Var(f, name, "")
		return f
	}
	file, worker := add("config", false), add("worker", false)
	check, defaults := add("check-config", true), add("print-defaults", true)
	version, help := add("version", true), add("help", true)
	add("h", true)
	for _, o := range cfg.options() {
		add(o.name, o.isBool())
	}
	if err := fs.Parse(args); err != nil && !errors.Is(err, flag.ErrHelp) {
		return cfg, actServe, []error{errors.New(firstLine(err.Error()) + " (indexsrv --help lists all flags)")}
	}
	switch {
	case help.on() || given["h"].on():
		return cfg, actHelp, nil
	case version.on():
		return cfg, actVersion, nil
	case defaults.on():
		return cfg, actDefaults, nil
	}
	var faults []error
	if fs.NArg() > 0 {
		faults = append(faults, fmt.Errorf("argument %q: indexsrv takes flags only", fs.Arg(0)))
	}
	for i, path := range file.values {
		if i > 0 {
			faults = append(faults, fmt.Errorf("flag --config: given more than once (%s)", path))
			break
		}
		faults = append(faults, cfg.loadFile(path)...)
	}
	for _, o := range cfg.options() {
		for _, s := range given[o.name].values {
			if err := o.set(s); err != nil {
				faults = append(faults, fmt.Errorf("flag --%s: %w", o.name, err))
			}
		}
	}
	if len(worker.values) > 0 {
		cfg.Workers = nil
	}
	for _, s := range worker.values {
		r, err := parseWorker(s)
		if err != nil {
			faults = append(faults, fmt.Errorf("flag --worker: %w", err))
			continue
		}
		cfg.Workers = append(cfg.Workers, r)
	}
	if len(faults) == 0 {
		faults = cfg.Validate()
	}
	if check.on() {
		return cfg, actCheck, faults
	}
	return cfg, actServe, faults
}

const usageHead = `indexsrv answers which engine holds how much of a prompt in its KV cache, from
the engines' own event streams, over HTTP.

usage: indexsrv [flags]
       indexsrv --worker 1=tcp://host:5557,replay=tcp://host:5558,model=m,block=16

  --config FILE
        YAML file; its keys are the flags' names, flags overrule it
  --check-config
        read flags and file, list every fault, exit 0 (none) or 2
  --print-defaults
        print a configuration file with every default
  --worker ` + workerForm + `
        register an engine at start; may be repeated. The keys are /register's
        fields, model, block and replay being short for model_name, block_size
        and replay_endpoint. Workers given here replace the file's.
  --version
  --help
`

const usageTail = `
Exit status: 0 after a clean shutdown (SIGTERM, SIGINT; a second one exits at
once with 1), 1 when the host cannot run, 2 when flags or file are wrong.
`

// writeUsage prints what every flag does and what it is when left out.
func writeUsage(w io.Writer) error {
	var b strings.Builder
	b.WriteString(usageHead)
	cfg := DefaultConfig()
	for _, o := range cfg.options() {
		value := " VALUE"
		if o.isBool() {
			value = ""
		}
		fmt.Fprintf(&b, "  --%s%s\n        %s (default %s)\n", o.name, value, o.usage, o.value())
	}
	b.WriteString(usageTail)
	_, err := io.WriteString(w, b.String())
	return err
}

// writeDefaults prints a configuration file that says what is so anyway.
func writeDefaults(w io.Writer) error {
	var b strings.Builder
	b.WriteString("# indexsrv configuration: every option with its default.\n")
	cfg := DefaultConfig()
	for _, o := range cfg.options() {
		fmt.Fprintf(&b, "\n# %s\n%s: %s\n", o.usage, o.name, o.value())
	}
	b.WriteString(`
# engines registered at start: as --worker takes them, or with /register's names
worker: []
# - 1=tcp://host:5557,replay=tcp://host:5558,model=m,block=16
# - {instance_id: 2, endpoint: "tcp://host2:5557", model_name: m, block_size: 16}
`)
	_, err := io.WriteString(w, b.String())
	return err
}

// buildVersion returns the module's version and the revision it was built from.
func buildVersion() (version, revision string) {
	version, revision = "devel", "unknown"
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return version, revision
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		version = v
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			revision = s.Value
		}
	}
	return version, revision
}
