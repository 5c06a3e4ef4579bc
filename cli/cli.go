// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"

	"kindex/internal/lookup"
	"kindex/internal/settings"
)

// Exit statuses, as grep's and diff's.
const (
	exitOK     = 0
	exitNo     = 1 // it differs, or what was asked about is not there
	exitUsage  = 2
	exitFailed = 3 // no answer: a host not reached, refused, or too late
)

// Env is what a process gives the tool.
type Env struct {
	In       io.Reader
	Out, Err io.Writer
	// Getenv reads the environment; nil: it is empty.
	Getenv func(string) string
	// Screen returns the size of the terminal that Out is, in characters; ok is false
	// where it is none. nil: it is none.
	Screen func() (width, height int, ok bool)
}

// A command is one thing that the tool does.
type command struct {
	name    string
	args    string // of its usage line, "" or in capitals
	flags   []string
	most    int // arguments at most
	least   int
	summary string // one line
	help    string // more lines, "" or ending in a newline
	run     func(ctx context.Context, c *call) error
}

// call is one run of a command.
type call struct {
	*Env
	*options
	cmd  *command
	args []string
}

// commands are all commands, in the order of the help.
func commands() []*command {
	return []*command{workersCommand(), topCommand(), explainCommand(), diffCommand(), dumpCommand(), loadCommand(), tailCommand(), completionCommand()}
}

// usageError is a command line that cannot be right: one line that names the right
// form.
type usageError struct{ text string }

func (e *usageError) Error() string { return e.text }

func usagef(format string, args ...any) error {
	return &usageError{fmt.Sprintf(format, args...)}
}

// errNo is an answer that is no: it has been printed.
var errNo = errors.New("no")

// Run runs the command line args and returns the exit status: 0; 1 where a
// comparison differs or what was asked about is not there; 2 for a command line that
// is wrong; 3 where there is no answer. A signal ends it.
func Run(args []string, env *Env, signals ...os.Signal) int {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	if len(signals) > 0 {
		ctx, stop = signal.NotifyContext(ctx, signals...)
		defer stop()
	}
	return run(ctx, args, env)
}

func run(ctx context.Context, args []string, env *Env) int {
	err := dispatch(ctx, args, env)
	if err == nil {
		return exitOK
	}
	if errors.Is(err, errNo) {
		return exitNo
	}
	text := strings.ReplaceAll(err.Error(), "\n", "; ")
	if errors.Is(err, context.Canceled) {
		text = "interrupted"
	}
	fmt.Fprintln(env.Err, "kindex: "+text)
	return statusOf(err)
}

// statusOf is the exit status of an error.
func statusOf(err error) int {
	var usage *usageError
	switch {
	case errors.As(err, &usage), errors.Is(err, lookup.ErrInvalid):
		return exitUsage
	case errors.Is(err, lookup.ErrNotFound):
		return exitNo
	}
	return exitFailed
}

func dispatch(ctx context.Context, args []string, env *Env) error {
	if env.Getenv == nil {
		env.Getenv = func(string) string { return "" }
	}
	if len(args) == 0 {
		return usagef("no command given: must be one of %s (kindex --help says what they do)", names())
	}
	switch name := args[0]; {
	case name == "help" && len(args) == 2:
		args = []string{args[1], "--help"}
	case slices.Contains([]string{"help", "--help", "-help", "-h"}, name):
		_, err := io.WriteString(env.Out, usage())
		return err
	case name == "--version" || name == "-version":
		version, revision := settings.BuildVersion()
		_, err := fmt.Fprintf(env.Out, "kindex %s (revision %s)\n", version, revision)
		return err
	}
	cmd := commandOf(args[0])
	if cmd == nil {
		return usagef("%q is no command: must be one of %s (flags come after it)", args[0], names())
	}
	c := &call{Env: env, cmd: cmd, options: newOptions(env.Getenv)}
	help, err := c.parse(args[1:])
	if err != nil {
		return err
	}
	if help {
		_, err := io.WriteString(env.Out, cmd.usage())
		return err
	}
	if err := c.check(); err != nil {
		return err
	}
	return cmd.run(ctx, c)
}

func commandOf(name string) *command {
	all := commands()
	i := slices.IndexFunc(all, func(c *command) bool { return c.name == name })
	if i < 0 {
		return nil
	}
	return all[i]
}

func names() string {
	all := []string{}
	for _, c := range commands() {
		all = append(all, c.name)
	}
	return strings.Join(all, ", ")
}

const exitHelp = `
Exit status: 0 it went well; 1 it differs, or what was asked about is not there;
2 the command line is wrong; 3 no answer: a host that cannot be reached, refuses,
or is too late.
`

// usage is the help of the whole.
func usage() string {
	var b strings.Builder
	b.WriteString("kindex asks index hosts, relays and engines.\n\nusage: kindex COMMAND [flags]\n\n")
	for _, c := range commands() {
		fmt.Fprintf(&b, "  %-11s %s\n", c.name, c.summary)
	}
	b.WriteString("\nkindex COMMAND --help lists its flags. " + hostHelp + exitHelp)
	return b.String()
}

const hostHelp = `--host, or KINDEX_HOST, says whom to ask:
  host:port          over gRPC (the host's --grpc-listen)
  http://host:port   over HTTP (its --listen); https:// with TLS
  unix:/path         over shared memory (its --shm-listen): workers and top alone
Several hosts between which workers are split: a,b.
`

// usage is the help of one command.
func (c *command) usage() string {
	var b strings.Builder
	form := "kindex " + c.name
	if c.args != "" {
		form += " " + c.args
	}
	fmt.Fprintf(&b, "%s: %s\n\nusage: %s [flags]\n\n", c.name, c.summary, form)
	if c.help != "" {
		b.WriteString(c.help + "\n")
	}
	for _, name := range c.flags {
		f := flagOf(name)
		head := "--" + name
		if f.value != "" {
			head += " " + f.value
		}
		fmt.Fprintf(&b, "  %s\n        %s\n", head, f.usage)
	}
	if slices.Contains(c.flags, "host") {
		b.WriteString("\n" + hostHelp)
	}
	b.WriteString(exitHelp)
	return b.String()
}
