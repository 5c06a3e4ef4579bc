// SPDX-License-Identifier: Apache-2.0

package settings

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
)

// Action is what a command line asks for.
type Action int

// The actions of every server.
const (
	Serve Action = iota
	Check
	Defaults
	Show // what flags and file say, as a file; only where [List] can be written
	Help
	Version
)

// List is a setting that may be given more than once, such as the engines that a
// server is to follow.
type List struct {
	Name string
	// Clear forgets what was given before: flags replace what the file says.
	Clear func()
	// Add takes one as the command line writes it.
	Add func(string) error
	// Begin takes one as a mapping of the file writes it: set is called for each
	// key, quoted where the file has a text in the place of a number, and end where
	// set refused none.
	Begin func() (set func(key, value string, quoted bool) error, end func() error)
	// Items returns what is given, each as the mapping that Begin takes, the keys in
	// the order in which they are to be shown; nil: the program has no --print-config.
	Items func() [][]Pair
}

// Pair is one key of an item with its value.
type Pair struct{ Key, Value string }

// Command is the command line of a server that takes only flags.
type Command struct {
	Name    string
	Options []Option
	List    List
	// Validate is asked when each setting by itself is right.
	Validate func() []error
	// Head and Tail are the help's text before and after the options; Sample ends
	// the file that --print-defaults prints.
	Head, Tail, Sample string

	// File is the path of the file that Parse read; "": none.
	File string
}

// given keeps what one flag was given; it is applied after the file, which it
// overrules.
type given struct {
	values []string
	isBool bool
}

func (f *given) String() string     { return "" }
func (f *given) Set(s string) error { f.values = append(f.values, s); return nil }

// IsBoolFlag lets the flag stand without a value.
func (f *given) IsBoolFlag() bool { return f.isBool }

// on reports whether a boolean flag is set.
func (f *given) on() bool { return len(f.values) > 0 && f.values[len(f.values)-1] == "true" }

// Parse reads the command line and the file it names: the file overrules the
// defaults, flags overrule the file. It returns all faults, in the words of who
// has to mend them.
func (c *Command) Parse(args []string) (Action, []error) {
	fs := flag.NewFlagSet(c.Name, flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	flags := map[string]*given{}
	add := func(name string, isBool bool) *given {
		f := &given{isBool: isBool}
		flags[name] = f
		fs.Var(f, name, "")
		return f
	}
	file, list := add("config", false), add(c.List.Name, false)
	check, defaults := add("check-config", true), add("print-defaults", true)
	show := new(given)
	if c.List.Items != nil {
		show = add("print-config", true)
	}
	version, help := add("version", true), add("help", true)
	add("h", true)
	for _, o := range c.Options {
		add(o.Name, o.IsBool())
	}
	if err := fs.Parse(args); err != nil && !errors.Is(err, flag.ErrHelp) {
		return Serve, []error{fmt.Errorf("%s (%s --help lists all flags)", firstLine(err.Error()), c.Name)}
	}
	switch {
	case help.on() || flags["h"].on():
		return Help, nil
	case version.on():
		return Version, nil
	case defaults.on():
		return Defaults, nil
	}
	var faults []error
	if fs.NArg() > 0 {
		faults = append(faults, fmt.Errorf("argument %q: %s takes flags only", fs.Arg(0), c.Name))
	}
	for i, path := range file.values {
		if i > 0 {
			faults = append(faults, fmt.Errorf("flag --config: given more than once (%s)", path))
			break
		}
		c.File = path
		faults = append(faults, c.loadFile(path)...)
	}
	faults = append(faults, c.apply(flags, list.values)...)
	if len(faults) == 0 {
		faults = c.Validate()
	}
	switch {
	case check.on():
		return Check, faults
	case show.on():
		return Show, faults
	}
	return Serve, faults
}

// apply sets what flags were given.
func (c *Command) apply(flags map[string]*given, list []string) []error {
	var faults []error
	for _, o := range c.Options {
		if n := len(flags[o.Name].values); n > 1 {
			faults = append(faults, fmt.Errorf("flag --%s: given %d times: give it once", o.Name, n))
			continue
		}
		for _, s := range flags[o.Name].values {
			if err := o.Set(s); err != nil {
				faults = append(faults, fmt.Errorf("flag --%s: %w", o.Name, err))
			}
		}
	}
	if len(list) > 0 {
		c.List.Clear()
	}
	for _, s := range list {
		if err := c.List.Add(s); err != nil {
			faults = append(faults, fmt.Errorf("flag --%s: %w", c.List.Name, err))
		}
	}
	return faults
}

// WriteUsage prints what every flag does and what it is when left out. The
// options must be those of the defaults.
func (c *Command) WriteUsage(w io.Writer) error {
	var b strings.Builder
	b.WriteString(c.Head)
	for _, o := range c.Options {
		value := " VALUE"
		if o.IsBool() {
			value = ""
		}
		fmt.Fprintf(&b, "  --%s%s\n        %s (default %s)\n", o.Name, value, o.Usage, shown(&o))
	}
	b.WriteString(c.Tail)
	_, err := io.WriteString(w, b.String())
	return err
}

// WriteDefaults prints a configuration file that says what is so anyway.
func (c *Command) WriteDefaults(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "# %s configuration: every option with its default.\n", c.Name)
	c.writeOptions(&b)
	b.WriteString(c.Sample)
	_, err := io.WriteString(w, b.String())
	return err
}

// WriteConfig prints what is set as a file that sets the same. The list must have
// Items.
func (c *Command) WriteConfig(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "# %s configuration: what is set.\n", c.Name)
	c.writeOptions(&b)
	items := c.List.Items()
	if len(items) == 0 {
		fmt.Fprintf(&b, "\n%s: []\n", c.List.Name)
	} else {
		fmt.Fprintf(&b, "\n%s:\n", c.List.Name)
	}
	for _, item := range items {
		lead := "-"
		for _, p := range item {
			fmt.Fprintf(&b, "%s %s: %s\n", lead, p.Key, yamlScalar(p.Value))
			lead = " "
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (c *Command) writeOptions(b *strings.Builder) {
	for _, o := range c.Options {
		fmt.Fprintf(b, "\n# %s\n%s: %s\n", o.Usage, o.Name, yamlScalar(o.Value()))
	}
}

func shown(o *Option) string {
	if v := o.Value(); v != "" {
		return v
	}
	return "none"
}
