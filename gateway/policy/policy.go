// SPDX-License-Identifier: Apache-2.0

// Before: the router, which knows the prompt and who has it. After: the lease on the
// holder that was named.

package policy

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"kindex/gateway/fleet"
)

// Why there is no decision. All of them are final for the question as it was asked.
var (
	ErrNoWorker = errors.New("no worker of the model is ready")
	ErrPinned   = errors.New("the worker asked for is not one of the model's")
	ErrNotReady = errors.New("the worker asked for is not ready")
	ErrRank     = errors.New("no worker that is ready has the rank asked for")
)

// A Match is what a holder has of a prompt: leading blocks, counted, never weighed.
type Match struct {
	Holder    *fleet.Holder
	Blocks    uint32 // in any tier
	Device    uint32 // of them, those that lie on the device
	Predicted bool   // expected of requests under way, not told by the engine
	Degraded  bool   // its stream may have missed something: counts, and is marked
}

// A Question is all that a decision may depend on. Decide changes nothing in it.
type Question struct {
	Pool      *fleet.Pool
	Prompt    int64 // tokens; 0: not known
	BlockSize int   // tokens; 0: not known
	Blocks    int   // of the prompt, whole ones; 0: not known

	// Matches is who has some of it: by Blocks, the most first. Only holders of Pool.
	Matches []Match

	// More: Matches are the deepest of more. Who is not among them may have as much as
	// the last of them.
	More bool

	Key     uint64          // what consistent_hashing keeps together
	Worker  string          // pinned: an id, URL or instance; "": free
	Rank    int             // pinned; -1: free
	Exclude []*fleet.Worker // tried already
	Now     int64           // by [fleet.Now]
}

// A Decision is where a request goes and how that came about. The caller may set
// Record before; Decide sets the rest.
type Decision struct {
	Holder *fleet.Holder
	Cached int64 // tokens of the prompt that the holder need not compute
	Branch Branch

	// Tried reports that Holder is one of Exclude: no other worker is ready.
	Tried bool

	// Guess reports that nobody looked what Holder has, as Question.More is set: Cached
	// is the most that it may be.
	Guess bool

	// Record is filled where it is not nil.
	Record *Record
}

// Branch is the way by which a decision came about.
type Branch uint8

// The branches.
const (
	Plain    Branch = iota // by a policy that does not ask who has the prompt
	Hit                    // one of the deepest holders
	Miss                   // nobody has enough of it
	Spill                  // all deepest holders were under pressure
	WarmMiss               // a miss, given to a worker that warms up
	WarmHit                // a hit, given to a worker that warms up
	Vetoed                 // no worker is usable: the least loaded of those that are ready
	Again                  // all that are ready were tried: one of them once more
	Pinned                 // the caller named the worker
)

var branchNames = [...]string{"plain", "hit", "miss", "spill", "warm_miss", "warm_hit", "vetoed", "again", "pinned"}

// Branches is the number of branches; names of all: [Branch.String].
const Branches = len(branchNames)

// String returns the branch's name in records and metrics.
func (b Branch) String() string { return branchNames[b] }

// A Policy decides. Any goroutine may call it, many at once.
type Policy interface {
	Name() string

	// NeedsMatches reports whether Question.Matches bears on the decision: where it
	// does not, nobody need look them up.
	NeedsMatches() bool

	// Decide names the holder for q in d. Its errors are this package's. It never
	// refuses for a veto: where nobody is usable, the least loaded worker that is
	// ready is named, those not tried first; a worker that was tried only where no
	// other one is ready, and d.Tried says so.
	Decide(q *Question, d *Decision) error
}

// The names of the policies.
const (
	CacheAware        = "cache_aware"
	LeastLoad         = "least_load"
	RoundRobin        = "round_robin"
	Random            = "random"
	PowerOfTwo        = "power_of_two"
	ConsistentHashing = "consistent_hashing"
)

var names = [...]string{CacheAware, LeastLoad, RoundRobin, Random, PowerOfTwo, ConsistentHashing}

// Names are all policies, the default first.
func Names() []string { return slices.Clone(names[:]) }

// New returns the policy of that name, or what is wrong with name or o.
func New(name string, o Options) (Policy, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	kind := slices.Index(names[:], name)
	if kind < 0 {
		return nil, fmt.Errorf("policy %q: must be one of %s", name, strings.Join(Names(), ", "))
	}
	return newPolicy(kind, o), nil
}
