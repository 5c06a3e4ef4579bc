// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"errors"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"kindex/internal/settings"
	"kindex/relay/feed"
	"kindex/relay/load"
)

// EngineSpec is an engine as the configuration names it.
type EngineSpec struct {
	Kind     string // one of engineKinds
	Endpoint string // where rank 0 publishes; rank r's port is r higher
	Replay   string // its replay socket; "": there is none
	Ranks    int    // 0: one
	Metrics  string // URL of its HTTP server; "": its load is not read there
	GRPC     string // host:port of its own gRPC server; "": nothing is passed through
	Loads    string // SGLang's load socket; ""
	Name     string // "": by kind and place
	Block    int    // tokens a block; 0: the stream tells
	Listen   string // host:port; "": by the relay's listen and the engine's place
}

var engineKinds = []string{"vllm", "sglang"}

// engineForm is what --engine takes, for messages.
const engineForm = "vllm|sglang=ENDPOINT[,replay=ENDPOINT][,ranks=N][,metrics=URL][,grpc=HOST:PORT][,loads=ENDPOINT][,name=NAME][,block=TOKENS][,listen=HOST:PORT]"

// maxBlock bounds a block, in tokens.
const maxBlock = 1 << 16

// engineFields set one field of an engine from text, by the keys of --engine.
var engineFields = map[string]func(*EngineSpec, string) error{
	"replay":  func(e *EngineSpec, s string) error { e.Replay = s; return nil },
	"ranks":   func(e *EngineSpec, s string) error { return setInt(&e.Ranks, s, 1, MaxRanks) },
	"metrics": func(e *EngineSpec, s string) error { e.Metrics = s; return nil },
	"grpc":    func(e *EngineSpec, s string) error { e.GRPC = s; return nil },
	"loads":   func(e *EngineSpec, s string) error { e.Loads = s; return nil },
	"name":    func(e *EngineSpec, s string) error { e.Name = s; return nil },
	"block":   func(e *EngineSpec, s string) error { return setInt(&e.Block, s, 1, maxBlock) },
	"listen":  func(e *EngineSpec, s string) error { e.Listen = s; return nil },
}

func setInt(p *int, s string, lo, hi int) error {
	n, err := strconv.Atoi(s)
	if err != nil || n < lo || n > hi {
		return fmt.Errorf("%.100q must be an integer from %d to %d", s, lo, hi)
	}
	*p = n
	return nil
}

// engineReader sets the fields of one engine, each once.
type engineReader struct {
	spec  EngineSpec
	given []string
}

func (r *engineReader) set(key, value string) error {
	set := engineFields[key]
	if slices.Contains(engineKinds, key) {
		if r.spec.Kind != "" {
			return errors.New("an engine is one of vllm and sglang, once")
		}
		set = func(e *EngineSpec, s string) error { e.Kind, e.Endpoint = key, s; return nil }
	}
	if set == nil {
		return fmt.Errorf("unknown key %.100q: an engine has %s", key, strings.Join(engineKeys(), ", "))
	}
	if slices.Contains(r.given, key) {
		return fmt.Errorf("%s is given twice", key)
	}
	r.given = append(r.given, key)
	if value == "" {
		return fmt.Errorf("%s is empty", key)
	}
	if err := set(&r.spec, value); err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	return nil
}

func (r *engineReader) end() error {
	if r.spec.Kind == "" {
		return fmt.Errorf("vllm=ENDPOINT or sglang=ENDPOINT is missing: it must be %s", engineForm)
	}
	return r.spec.validate()
}

func engineKeys() []string {
	keys := slices.Clone(engineKinds)
	var more []string
	for key := range engineFields {
		more = append(more, key)
	}
	slices.Sort(more)
	return append(keys, more...)
}

// addEngine takes an engine as the command line writes it.
func (c *Config) addEngine(s string) error {
	var r engineReader
	for part := range strings.SplitSeq(s, ",") {
		key, value, ok := strings.Cut(part, "=")
		if !ok {
			return fmt.Errorf("%.200q: it must be %s", s, engineForm)
		}
		if err := r.set(key, value); err != nil {
			return err
		}
	}
	err := r.end()
	if err == nil {
		c.Engines = append(c.Engines, r.spec)
	}
	return err
}

// beginEngine takes an engine as a mapping of the file.
func (c *Config) beginEngine() (set func(key, value string, quoted bool) error, end func() error) {
	var r engineReader
	set = func(key, value string, _ bool) error { return r.set(key, value) }
	return set, func() error {
		err := r.end()
		if err == nil {
			c.Engines = append(c.Engines, r.spec)
		}
		return err
	}
}

// engineName is a name that labels, URLs and logs take as it is.
var engineName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// validate returns the first fault of e.
func (e *EngineSpec) validate() error {
	if !slices.Contains(engineKinds, e.Kind) {
		return fmt.Errorf("kind %.100q: must be one of %s", e.Kind, strings.Join(engineKinds, ", "))
	}
	if err := feed.CheckEndpoint(e.Endpoint, false); err != nil {
		return fmt.Errorf("%s: %w", e.Kind, err)
	}
	if _, err := feed.RankEndpoint(e.Endpoint, max(e.Ranks, 1)-1); err != nil {
		return fmt.Errorf("%s: %w", e.Kind, err)
	}
	if e.Replay != "" {
		if err := feed.CheckEndpoint(e.Replay, true); err != nil {
			return fmt.Errorf("replay: %w", err)
		}
		if _, err := feed.RankEndpoint(e.Replay, max(e.Ranks, 1)-1); err != nil {
			return fmt.Errorf("replay: %w", err)
		}
	}
	if e.Loads != "" && e.Kind != "sglang" {
		return fmt.Errorf("loads: %s has no load socket, only sglang has: give metrics=URL or grpc=HOST:PORT", e.Kind)
	}
	if e.Metrics != "" || e.Loads != "" {
		l := e.loadConfig()
		if err := l.Validate(); err != nil {
			return err
		}
	}
	if e.GRPC != "" {
		if err := checkTarget(e.GRPC); err != nil {
			return fmt.Errorf("grpc: %w", err)
		}
	}
	if e.Name != "" && !engineName.MatchString(e.Name) {
		return fmt.Errorf("name: %.100q must be 1 to 64 letters, digits, dots, dashes and underscores, and begin with a letter or digit", e.Name)
	}
	if e.Listen != "" {
		if err := settings.CheckAddress(e.Listen); err != nil {
			return fmt.Errorf("listen: %w", err)
		}
	}
	return nil
}

// loadConfig says where the engine's load is read.
func (e *EngineSpec) loadConfig() load.Config {
	return load.Config{Engine: e.Kind, Ranks: max(e.Ranks, 1), Metrics: e.Metrics, Loads: e.Loads}
}

// checkTarget returns why s is no host:port to connect to.
func checkTarget(s string) error {
	host, port, err := net.SplitHostPort(s)
	if err != nil || host == "" || strings.ContainsAny(s, "/ \t\r\n") {
		return fmt.Errorf("%.200q must be host:port", s)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return fmt.Errorf("%.200q: the port must be 1 to 65535", s)
	}
	return nil
}
