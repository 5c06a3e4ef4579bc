// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"kindex/internal/lookup"
)

// options are the values of all flags; a command has those that it names.
type options struct {
	host, tokenFile, tlsCA, tlsCert, tlsKey string
	timeout                                 time.Duration
	json                                    bool
	model, group, tenant, instance          string
	rank                                    int

	once     bool
	interval time.Duration

	tokens, hashes, lora, salt string
	limit                      int

	engine, relay, relayEngine, with, dump string
	show                                   int

	fromStart, showTokens bool
	count                 int
}

func newOptions(getenv func(string) string) *options {
	o := &options{host: defaultHost, timeout: 10 * time.Second, interval: 2 * time.Second, show: 20}
	if h := getenv("KINDEX_HOST"); h != "" {
		o.host = h
	}
	return o
}

// defaultHost is where an index host serves that was told nothing.
const defaultHost = "http://127.0.0.1:8090"

// aFlag is one flag.
type aFlag struct {
	name, value, usage string
	set                func(o *options, s string) error
	file               bool // it names one: for completion
}

// The flags that commands share.
var (
	hostFlags   = []string{"host", "token-file", "tls-ca", "tls-cert", "tls-key", "timeout", "json"}
	chooseFlags = []string{"model", "group", "tenant"}
)

func text(p func(*options) *string) func(*options, string) error {
	return func(o *options, s string) error { *p(o) = s; return nil }
}

// flags are all flags, in no order.
var flags = []aFlag{
	{name: "host", value: "TARGET", usage: "whom to ask (default KINDEX_HOST, or " + defaultHost + ")", set: text(func(o *options) *string { return &o.host })},
	{name: "token-file", value: "FILE", usage: "file of the bearer token, one line", file: true, set: text(func(o *options) *string { return &o.tokenFile })},
	{name: "tls-ca", value: "FILE", usage: "PEM file of the authorities that hosts are checked against; with it TLS is spoken", file: true, set: text(func(o *options) *string { return &o.tlsCA })},
	{name: "tls-cert", value: "FILE", usage: "PEM file of the certificate to show", file: true, set: text(func(o *options) *string { return &o.tlsCert })},
	{name: "tls-key", value: "FILE", usage: "PEM file of its key", file: true, set: text(func(o *options) *string { return &o.tlsKey })},
	{name: "timeout", value: "DURATION", usage: "how long to wait for an answer, such as 500ms or 1m (default 10s)", set: duration(func(o *options) *time.Duration { return &o.timeout })},
	{name: "json", usage: "values for programs (docs/cli.md gives their shapes)", set: toggle(func(o *options) *bool { return &o.json })},
	{name: "model", value: "NAME", usage: "model name; left out: all, or the only one there is", set: text(func(o *options) *string { return &o.model })},
	{name: "group", value: "NAME", usage: "routing group; left out: all, or default", set: text(func(o *options) *string { return &o.group })},
	{name: "tenant", value: "NAME", usage: "tenant; left out: all, or default", set: text(func(o *options) *string { return &o.tenant })},
	{name: "instance", value: "ID", usage: "one instance; left out: all", set: text(func(o *options) *string { return &o.instance })},
	{name: "rank", value: "N", usage: "data-parallel rank (default 0)", set: number(func(o *options) *int { return &o.rank }, 0, 65_535)},
	{name: "once", usage: "one picture, and no more", set: toggle(func(o *options) *bool { return &o.once })},
	{name: "interval", value: "DURATION", usage: "from one picture to the next (default 2s)", set: duration(func(o *options) *time.Duration { return &o.interval })},
	{name: "tokens", value: "FILE", usage: "token ids of the prompt, a JSON array or separated by blanks; -: standard input", file: true, set: text(func(o *options) *string { return &o.tokens })},
	{name: "hashes", value: "FILE", usage: "content hashes of its blocks in place of tokens, the same way", file: true, set: text(func(o *options) *string { return &o.hashes })},
	{name: "lora", value: "NAME", usage: "LoRA adapter that the prompt is for", set: text(func(o *options) *string { return &o.lora })},
	{name: "salt", value: "TEXT", usage: "cache salt of the prompt", set: text(func(o *options) *string { return &o.salt })},
	{name: "limit", value: "N", usage: "only the N (instance, rank) that hold most", set: number(func(o *options) *int { return &o.limit }, 1, lookup.MaxResults)},
	{name: "engine", value: "SPEC", usage: "an engine's sockets: " + engineForm, set: text(func(o *options) *string { return &o.engine })},
	{name: "relay", value: "HOST:PORT", usage: "a relay's gRPC address", set: text(func(o *options) *string { return &o.relay })},
	{name: "relay-engine", value: "NAME", usage: "which engine of the relay, where it has several", set: text(func(o *options) *string { return &o.relayEngine })},
	{name: "with", value: "TARGET", usage: "another index host, in any form of --host", set: text(func(o *options) *string { return &o.with })},
	{name: "dump", value: "FILE", usage: "a dump, as kindex dump writes it; -: standard input", file: true, set: text(func(o *options) *string { return &o.dump })},
	{name: "show", value: "N", usage: "differences shown at most, of each kind (default 20)", set: number(func(o *options) *int { return &o.show }, 0, 1<<20)},
	{name: "from-start", usage: "all that the source still has, not only what comes", set: toggle(func(o *options) *bool { return &o.fromStart })},
	{name: "show-tokens", usage: "token ids too: whoever sees the output sees prompts", set: toggle(func(o *options) *bool { return &o.showTokens })},
	{name: "count", value: "N", usage: "end after N batches", set: number(func(o *options) *int { return &o.count }, 1, 1<<31-1)},
}

func flagOf(name string) *aFlag {
	i := slices.IndexFunc(flags, func(f aFlag) bool { return f.name == name })
	if i < 0 {
		panic("BUG: cli: no flag " + name)
	}
	return &flags[i]
}

func duration(p func(*options) *time.Duration) func(*options, string) error {
	return func(o *options, s string) error {
		d, err := time.ParseDuration(s)
		if err != nil || d < time.Millisecond || d > 24*time.Hour {
			return fmt.Errorf("%.50q must be a time from 1ms to 24h, such as 500ms or 1m", s)
		}
		*p(o) = d
		return nil
	}
}

func toggle(p func(*options) *bool) func(*options, string) error {
	return func(o *options, s string) error {
		on, err := strconv.ParseBool(s)
		if err != nil {
			return fmt.Errorf("%.50q must be true or false", s)
		}
		*p(o) = on
		return nil
	}
}

func number(p func(*options) *int, lo, hi int) func(*options, string) error {
	return func(o *options, s string) error {
		n, err := strconv.Atoi(s)
		if err != nil || n < lo || n > hi {
			return fmt.Errorf("%.50q must be an integer from %d to %d", s, lo, hi)
		}
		*p(o) = n
		return nil
	}
}

// bound is one flag of one call.
type bound struct {
	*aFlag
	o     *options
	given int
	fault error
}

// String implements flag.Value.
func (b *bound) String() string { return "" }

// Set implements flag.Value.
func (b *bound) Set(s string) error {
	if b.given++; b.given > 1 && b.fault == nil {
		b.fault = errors.New("given twice")
	}
	if err := b.set(b.o, s); err != nil && b.fault == nil {
		b.fault = err
	}
	return nil
}

// IsBoolFlag lets the flag stand without a value.
func (b *bound) IsBoolFlag() bool { return b.value == "" }

// parse reads the arguments of c's command, flags and others in any order.
func (c *call) parse(args []string) (help bool, err error) {
	fs := flag.NewFlagSet(c.cmd.name, flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	var all []*bound
	for _, name := range c.cmd.flags {
		b := &bound{aFlag: flagOf(name), o: c.options}
		all = append(all, b)
		fs.Var(b, name, "")
	}
	for {
		if err := fs.Parse(args); errors.Is(err, flag.ErrHelp) {
			return true, nil
		} else if err != nil {
			return false, c.cmd.misread(err)
		}
		if fs.NArg() == 0 {
			break
		}
		c.args = append(c.args, fs.Arg(0))
		args = fs.Args()[1:]
	}
	for _, b := range all {
		if b.fault != nil {
			return false, usagef("--%s: %v", b.name, b.fault)
		}
	}
	switch {
	case len(c.args) > c.cmd.most && c.cmd.most == 0:
		return false, usagef("%s takes flags only, and not %.100q (kindex %s --help lists them)", c.cmd.name, c.args[0], c.cmd.name)
	case len(c.args) > c.cmd.most || len(c.args) < c.cmd.least:
		return false, usagef("%s: must be kindex %s %s", c.cmd.name, c.cmd.name, c.cmd.args)
	}
	return false, nil
}

// misread turns what package flag says into a line of ours.
func (c *command) misread(err error) error {
	text, _, _ := strings.Cut(err.Error(), "\n")
	if name, ok := strings.CutPrefix(text, "flag provided but not defined: -"); ok {
		name = strings.TrimLeft(name, "-")
		if slices.ContainsFunc(flags, func(f aFlag) bool { return f.name == name }) {
			return usagef("%s takes no --%s (kindex %s --help lists its flags)", c.name, name, c.name)
		}
		return usagef("--%s is no flag (kindex %s --help lists those of %s)", name, c.name, c.name)
	}
	if name, ok := strings.CutPrefix(text, "flag needs an argument: -"); ok {
		name = strings.TrimLeft(name, "-")
		return usagef("--%s: must be --%s %s", name, name, flagOf(name).value)
	}
	return usagef("%s (kindex %s --help lists the flags)", text, c.name)
}

// check returns what is wrong with c's flags together.
func (c *call) check() error {
	if (c.tlsCert == "") != (c.tlsKey == "") {
		return usagef("--tls-cert and --tls-key: both must be given, or neither")
	}
	for _, v := range []struct{ name, text string }{
		{"model", c.model},
		{"group", c.group},
		{"tenant", c.tenant},
		{"instance", c.instance},
		{"lora", c.lora},
		{"salt", c.salt},
	} {
		if len(v.text) > lookup.MaxName {
			return usagef("--%s: must be at most %d bytes", v.name, lookup.MaxName)
		}
	}
	return nil
}
