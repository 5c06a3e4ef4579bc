// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"io"
	"strings"
)

func completionCommand() *command {
	return &command{
		name: "completion", args: "bash|zsh|fish", least: 1, most: 1,
		summary: "what a shell needs to complete kindex's words",
		help: `bash:  source <(kindex completion bash)
zsh:   source <(kindex completion zsh)
fish:  kindex completion fish | source
`,
		run: func(_ context.Context, c *call) error {
			write := map[string]func() string{"bash": bashScript, "zsh": zshScript, "fish": fishScript}[c.args[0]]
			if write == nil {
				return usagef("completion: %.50q must be bash, zsh or fish", c.args[0])
			}
			_, err := io.WriteString(c.Out, write())
			return err
		},
	}
}

// bashScript completes commands, the flags of each, and files where a flag names one.
func bashScript() string {
	var b strings.Builder
	b.WriteString("# bash completion for kindex\n_kindex() {\n" +
		"  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}\n  COMPREPLY=()\n" +
		"  if [[ $COMP_CWORD -eq 1 ]]; then\n")
	fmt.Fprintf(&b, "    COMPREPLY=($(compgen -W '%s' -- \"$cur\"))\n    return\n  fi\n", commandWords())
	fmt.Fprintf(&b, "  case $prev in\n    %s)\n      COMPREPLY=($(compgen -f -- \"$cur\"))\n      return ;;\n", fileFlags())
	fmt.Fprintf(&b, "    %s)\n      return ;;\n  esac\n  case ${COMP_WORDS[1]} in\n", valueFlags())
	for _, c := range commands() {
		words := c.flagWords()
		files := ""
		switch c.name {
		case "completion":
			words = "bash zsh fish " + words
		case "load":
			files = "    [[ $cur != -* ]] && COMPREPLY=($(compgen -f -- \"$cur\")) && return\n"
		}
		fmt.Fprintf(&b, "  %s)\n%s    COMPREPLY=($(compgen -W '%s' -- \"$cur\")) ;;\n", c.name, files, strings.TrimSpace(words))
	}
	b.WriteString("  esac\n}\ncomplete -F _kindex kindex\n")
	return b.String()
}

// commandWords are the commands' names.
func commandWords() string { return strings.ReplaceAll(names(), ",", "") }

// flagWords are c's flags.
func (c *command) flagWords() string {
	words := []string{}
	for _, f := range c.flags {
		words = append(words, "--"+f)
	}
	return strings.Join(append(words, "--help"), " ")
}

// fileFlags and valueFlags are those that name a file, and that take something else,
// as a shell's case has them.
func fileFlags() string { return caseOf(func(f *aFlag) bool { return f.file }) }

func valueFlags() string { return caseOf(func(f *aFlag) bool { return !f.file && f.value != "" }) }

func caseOf(want func(*aFlag) bool) string {
	words := []string{}
	for i := range flags {
		if want(&flags[i]) {
			words = append(words, "--"+flags[i].name)
		}
	}
	return strings.Join(words, "|")
}

func zshScript() string {
	var b strings.Builder
	b.WriteString("#compdef kindex\n# zsh completion for kindex\n_kindex() {\n  local -a words_of\n  if (( CURRENT == 2 )); then\n    words_of=(\n")
	for _, c := range commands() {
		fmt.Fprintf(&b, "      %s\n", quoted(c.name+":"+strings.ReplaceAll(c.summary, ":", "\\:")))
	}
	b.WriteString("    )\n    _describe command words_of\n    return\n  fi\n  case ${words[2]} in\n")
	for _, c := range commands() {
		fmt.Fprintf(&b, "    %s)\n      _arguments", c.name)
		for _, name := range c.flags {
			f := flagOf(name)
			spec := "--" + name + "[" + zshText(f.usage) + "]"
			switch {
			case f.file:
				spec += ":file:_files"
			case f.value != "":
				spec += ":" + strings.ToLower(f.value) + ":"
			}
			b.WriteString(" \\\n        " + quoted(spec))
		}
		b.WriteString(" \\\n        '--help[what it does]'")
		switch c.name {
		case "completion":
			b.WriteString(" \\\n        '*:shell:(bash zsh fish)'")
		case "load":
			b.WriteString(" \\\n        '*:file:_files'")
		}
		b.WriteString(" ;;\n")
	}
	b.WriteString("  esac\n}\n(( $+functions[compdef] )) && compdef _kindex kindex\n")
	return b.String()
}

// zshText is a description within brackets.
func zshText(s string) string {
	return strings.NewReplacer("[", "(", "]", ")", ":", " ", "\\", "").Replace(s)
}

// quoted is s as one word of a shell.
func quoted(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

func fishScript() string {
	var b strings.Builder
	b.WriteString("# fish completion for kindex\ncomplete -c kindex -f\n")
	for _, c := range commands() {
		fmt.Fprintf(&b, "complete -c kindex -n __fish_use_subcommand -a %s -d %s\n", c.name, quoted(c.summary))
	}
	for _, c := range commands() {
		on := fmt.Sprintf("complete -c kindex -n '__fish_seen_subcommand_from %s'", c.name)
		for _, name := range c.flags {
			f := flagOf(name)
			more := ""
			switch {
			case f.file:
				more = " -r -F"
			case f.value != "":
				more = " -x"
			}
			fmt.Fprintf(&b, "%s -l %s%s -d %s\n", on, name, more, quoted(f.usage))
		}
		switch c.name {
		case "completion":
			fmt.Fprintf(&b, "%s -a 'bash zsh fish'\n", on)
		case "load":
			fmt.Fprintf(&b, "%s -F\n", on)
		}
	}
	return b.String()
}
