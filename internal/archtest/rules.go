// SPDX-License-Identifier: Apache-2.0

package archtest

import "regexp"

// The budgets. A file within reach of one screenful of outline, a function that
// is read in one go, a main that only joins.
const (
	maxFileLines = 600
	maxFuncLines = 100
	maxMainLines = 40
)

// spdx is the first line of every source file.
const spdx = "// SPDX-License-Identifier: Apache-2.0"

// longFiles and longFuncs (as file:name) excuse what is over budget, with the
// reason it is better in one piece.
var (
	longFiles = map[string]string{}
	longFuncs = map[string]string{}
)

// A door says that some imports are for some folders only.
type door struct {
	imports []string // exact, or ending in /...
	only    []string // folders that may, patterns as in an arrow; nil: none
	within  []string // the folders the door guards; nil: the whole tree
	why     string
}

var doors = []door{
	{
		imports: []string{"syscall", "golang.org/x/sys/unix"},
		only:    []string{"numa/...", "internal/shm/...", "internal/fdwait/...", "internal/hangup/...", "internal/dirlock/...", "cmd/..."},
		why:     "system calls for placement live in numa, for shared memory in internal/shm, for waiting on a C library's descriptor in internal/fdwait, for seeing a client hang up in internal/hangup, for locking a directory in internal/dirlock",
	},
	{
		imports: []string{
			"net/...", "log/...", "flag", "time",
			"google.golang.org/grpc/...", "github.com/valyala/fasthttp", "github.com/pebbe/zmq4",
			"github.com/prometheus/client_golang/...",
		},
		within: []string{"shard/...", "lanes/...", "asm/...", "numa/...", "internal/kv/..."},
		why:    "the core knows no network, logger, flag or wall clock: values in, values and counters out",
	},
	{
		imports: []string{"github.com/pebbe/zmq4"},
		only:    []string{"indexsrv/...", "relay/...", "harness/..."},
		why:     "libzmq stays behind the stream source's interface",
	},
	{
		imports: []string{"os/exec"},
		only:    []string{"harness/..."},
		why:     "a server starts no other programs",
	},
	{
		imports: []string{"github.com/stretchr/testify/...", "gotest.tools/..."},
		only:    []string{},
		why:     "tests use the standard library: got and want in the message",
	},
}

// A ban forbids calls of one package's functions outside tests.
type ban struct {
	pkg    string
	names  *regexp.Regexp
	except []string // folders excused
	why    string
}

var bans = []ban{
	{"time", regexp.MustCompile(`^Sleep$`), nil, "wait on a channel, a timer or a condition that shutdown can end"},
	{"fmt", regexp.MustCompile(`^Print(f|ln)?$`), nil, "write to a writer that was handed in"},
	{"runtime", regexp.MustCompile(`^SetFinalizer$`), nil, "lifetimes are explicit: Close"},
	{
		"flag", regexp.MustCompile(`^(Parse|Args?|Var|Bool|Int|Int64|Uint|Uint64|String|Float64|Duration|Func)(Var)?$`), nil,
		"no package-level flags: a FlagSet of the process's config",
	},
}

// tags are the build constraints in use besides operating systems and machines.
var tags = map[string]bool{
	"purego": true, "invariants": true, "race": true, "asan": true, "cgo": true,
	"linux": true, "unix": true, "amd64": true, "arm64": true,
	"tokenizer": true, // with the library that make tokenizer builds
}

// words may not stand in any text of the tree: it speaks of itself alone. The
// brackets keep the patterns from matching their own source.
var words = []struct {
	pattern *regexp.Regexp
	why     string
}{
	{regexp.MustCompile(`/wor[k]/|/hom[e]/[a-z]+/|/tm[p]/bash_|/roo[t]/`), "a path of one machine"},
	{regexp.MustCompile(`\b[Ii]ssu[e] #?[0-9]+\b`), "a number of some tracker: say what it is about"},
	{regexp.MustCompile(`(?i)\bsub-?agen[t]s?\b`), "how it was made, not what it is"},
}
