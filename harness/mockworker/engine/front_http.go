// SPDX-License-Identifier: Apache-2.0

// Before: a client or a gateway that speaks OpenAI's API. After: fleet.go.

package engine

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	maxBody     = 64 << 20 // bytes of a request
	maxID       = 256      // bytes of an id that a client gives
	headTime    = 10 * time.Second
	clientIDKey = "X-Request-Id"
	rankKey     = "X-Data-Parallel-Rank"
)

// HTTPFront answers what vLLM's and SGLang's own servers answer over HTTP: OpenAI's
// API and the engines' additions to it.
type HTTPFront struct {
	Addr string // host:port where it listens

	gate   *gate
	server http.Server
	served sync.WaitGroup

	worker *Worker
	engine *Engine
	words  tokenizer
	bodies sync.Pool // of *[]byte
}

// openHTTP begins to serve w at addr.
func openHTTP(w *Worker, addr string) (*HTTPFront, error) {
	l, err := openGate(addr)
	if err != nil {
		return nil, fmt.Errorf("--http: %w", err)
	}
	f := &HTTPFront{Addr: l.addr, gate: l, worker: w, engine: w.Engine, words: w.Engine.cfg.words()}
	mux := http.NewServeMux()
	for path, handler := range map[string]http.HandlerFunc{
		"POST /v1/completions":      f.completions,
		"POST /v1/chat/completions": f.chat,
		"GET /v1/models":            f.models,
		"GET /v1/models/{id...}":    f.model,
		"POST /v1/embeddings":       f.embeddings,
		"POST /tokenize":            f.tokenize,
		"POST /detokenize":          f.detokenize,
		"GET /health":               f.health,
		"GET /health_generate":      f.health,
		"GET /ping":                 f.health,
		"GET /version":              f.version,
		"GET /metrics":              f.metrics,
		"GET /load":                 f.serverLoad,
		"GET /v1/loads":             f.loads,
		"GET /get_load":             f.oldLoads,
		"GET /server_info":          f.serverInfo,
		"GET /get_server_info":      f.serverInfo,
		"GET /model_info":           f.modelInfo,
		"GET /get_model_info":       f.modelInfo,
		"POST /reset_prefix_cache":  f.flush,
		"POST /flush_cache":         f.flush,
		"/":                         f.unknown,
	} {
		mux.HandleFunc(path, handler)
	}
	if w.Engine.cfg.radix() {
		mux.HandleFunc("POST /generate", f.native)
		mux.HandleFunc("POST /abort_request", f.abortRequest)
	}
	f.server = http.Server{Handler: f.guarded(mux), ReadHeaderTimeout: headTime}
	f.served.Go(func() { _ = f.server.Serve(l) })
	return f, nil
}

// guarded lets nobody in without the key, if there is one, but where the engine does:
// vLLM asks for it below /v1 only, SGLang everywhere but for health and metrics.
func (f *HTTPFront) guarded(next http.Handler) http.Handler {
	c := &f.engine.cfg
	if c.APIKey == "" {
		return next
	}
	want := sha256.Sum256([]byte("Bearer " + c.APIKey))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked := strings.HasPrefix(r.URL.Path, "/v1")
		if c.radix() {
			asked = !strings.HasPrefix(r.URL.Path, "/health") && !strings.HasPrefix(r.URL.Path, "/metrics")
		}
		got := sha256.Sum256([]byte(r.Header.Get("Authorization")))
		if asked && r.Method != http.MethodOptions && subtle.ConstantTimeCompare(got[:], want[:]) != 1 {
			say(w, http.StatusUnauthorized, map[string]string{"error": "Unauthorized"})
			return
		}
		next.ServeHTTP(w, r)
	})
}

// Close ends every call and the socket.
func (f *HTTPFront) Close() {
	_ = f.server.Close()
	_ = f.gate.Close()
	f.served.Wait()
}

// refusal is an answer that is an error, in OpenAI's shape.
type refusal struct {
	code    int // of HTTP
	message string
	param   string // the field that is wrong; "": none
}

func (r *refusal) Error() string { return r.message }

func refuse(param, format string, args ...any) *refusal {
	return &refusal{http.StatusBadRequest, fmt.Sprintf(format, args...), param}
}

// refused returns what a client is told of an error.
func refused(err error) *refusal {
	var r *refusal
	var asked *faultError
	switch {
	case errors.As(err, &r):
		return r
	case errors.As(err, &asked):
		return &refusal{code: asked.status, message: err.Error()}
	case errors.Is(err, errEnded):
		return &refusal{code: http.StatusServiceUnavailable, message: err.Error()}
	}
	return &refusal{code: http.StatusBadRequest, message: err.Error()}
}

// body returns the error as an engine writes it.
func (r *refusal) body() map[string]any {
	kind := "InternalServerError"
	switch r.code {
	case http.StatusNotFound:
		kind = "NotFoundError"
	case http.StatusTooManyRequests:
		kind = "RateLimitError"
	case http.StatusServiceUnavailable:
		kind = "ServiceUnavailableError"
	default:
		if r.code < http.StatusInternalServerError {
			kind = "BadRequestError"
		}
	}
	var param any
	if r.param != "" {
		param = r.param
	}
	return map[string]any{"error": map[string]any{"message": r.message, "type": kind, "param": param, "code": r.code}}
}

func tell(w http.ResponseWriter, err error) {
	r := refused(err)
	say(w, r.code, r.body())
}

// read decodes a body of JSON.
func (f *HTTPFront) read(w http.ResponseWriter, r *http.Request, into any) error {
	large := &refusal{code: http.StatusRequestEntityTooLarge, message: fmt.Sprintf("the body has more than %d bytes", maxBody)}
	if r.ContentLength > maxBody {
		return large
	}
	buf, ok := f.bodies.Get().(*[]byte)
	if !ok {
		buf = new([]byte)
	}
	defer f.bodies.Put(buf)
	from := http.MaxBytesReader(w, r.Body, maxBody)
	data := slices.Grow((*buf)[:0], int(max(r.ContentLength, 0))+1)
	for {
		n, err := from.Read(data[len(data):cap(data)])
		data = data[:len(data)+n]
		if errors.Is(err, io.EOF) {
			break
		}
		if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
			return large
		}
		if err != nil {
			return refuse("", "the body: %v", err)
		}
		if len(data) == cap(data) {
			data = slices.Grow(data, len(data)+512)
		}
	}
	*buf = data
	if err := json.Unmarshal(data, into); err != nil {
		return refuse(fieldOf(err), "the body: %v", err)
	}
	return nil
}

// fieldOf names the field that an error of encoding/json is of.
func fieldOf(err error) string {
	if kind, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return kind.Field
	}
	return ""
}

// adapter returns the adapter that a model's name means, "" for the base model.
func (f *HTTPFront) adapter(model string) (lora, served string, err error) {
	c := &f.engine.cfg
	switch {
	case model == "" || model == c.Model:
		return "", c.Model, nil
	case slices.Contains(c.LoRA, model):
		return model, model, nil
	}
	return "", "", &refusal{http.StatusNotFound, fmt.Sprintf("The model `%s` does not exist.", model), "model"}
}

// ids returns the id that an answer gets, and what the client gave.
func ids(r *http.Request, prefix string) (id, client string) {
	client = r.Header.Get(clientIDKey)
	if client == "" || len(client) > maxID || strings.ContainsFunc(client, func(c rune) bool { return c <= ' ' || c > '~' }) {
		return prefix + random(), ""
	}
	return prefix + client, client
}

func random() string {
	var b [16]byte
	for i := range b {
		b[i] = byte(rand.Uint32())
	}
	return hex.EncodeToString(b[:])
}

// pinned returns the rank that a request's header names, below 0 where it names
// none.
func (f *HTTPFront) pinned(r *http.Request, body *int) (int, error) {
	v := r.Header.Get(rankKey)
	var n int
	switch {
	case v != "":
		var err error
		if n, err = strconv.Atoi(v); err != nil {
			n = -1
		}
	case body != nil:
		n, v = *body, strconv.Itoa(*body)
	default:
		return -1, nil
	}
	if n < 0 || n >= f.engine.cfg.Ranks {
		return 0, refuse(rankKey, "%s: %q: must be a rank from 0 to %d", rankKey, v, f.engine.cfg.Ranks-1)
	}
	return n, nil
}

func (f *HTTPFront) health(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) }

func (f *HTTPFront) version(w http.ResponseWriter, _ *http.Request) {
	say(w, http.StatusOK, map[string]string{"version": f.engine.cfg.Version})
}

func (f *HTTPFront) unknown(w http.ResponseWriter, r *http.Request) {
	tell(w, &refusal{code: http.StatusNotFound, message: "no " + r.Method + " " + r.URL.Path})
}

func (f *HTTPFront) flush(w http.ResponseWriter, _ *http.Request) {
	if ok, message := f.engine.flush(); !ok {
		tell(w, &refusal{code: http.StatusConflict, message: message})
		return
	}
	w.WriteHeader(http.StatusOK)
}

func (f *HTTPFront) tokenize(w http.ResponseWriter, r *http.Request) {
	var q struct {
		Model    string        `json:"model"`
		Prompt   *string       `json:"prompt"`
		Messages []chatMessage `json:"messages"`
		Answer   *bool         `json:"add_generation_prompt"`
		Strings  bool          `json:"return_token_strs"`
	}
	err := f.read(w, r, &q)
	if err == nil {
		_, _, err = f.adapter(q.Model)
	}
	var tokens []uint32
	switch {
	case err != nil:
	case q.Messages != nil:
		var all []message
		if all, err = plainMessages(q.Messages); err == nil {
			tokens, _ = f.words.chat(all, q.Answer == nil || *q.Answer)
		}
	case q.Prompt != nil:
		tokens = f.words.append([]uint32{}, *q.Prompt)
	default:
		err = refuse("prompt", "prompt: missing: give a text, or messages")
	}
	if err != nil {
		tell(w, err)
		return
	}
	out := map[string]any{"count": len(tokens), "max_model_len": f.engine.cfg.ContextLength, "tokens": tokens, "token_strs": nil}
	if q.Strings {
		texts := make([]string, len(tokens))
		for i, t := range tokens {
			texts[i] = word(t)
		}
		out["token_strs"] = texts
	}
	say(w, http.StatusOK, out)
}

func (f *HTTPFront) detokenize(w http.ResponseWriter, r *http.Request) {
	var q struct {
		Model  string   `json:"model"`
		Tokens []uint32 `json:"tokens"`
	}
	err := f.read(w, r, &q)
	if err == nil {
		_, _, err = f.adapter(q.Model)
	}
	if err == nil && q.Tokens == nil {
		err = refuse("tokens", "tokens: missing: give a list of token ids")
	}
	if err != nil {
		tell(w, err)
		return
	}
	say(w, http.StatusOK, map[string]string{"prompt": f.words.text(q.Tokens)})
}
