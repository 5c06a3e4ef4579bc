// SPDX-License-Identifier: Apache-2.0

package indexsrv

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"kindex/internal/secure"
	"kindex/internal/secure/securetest"
)

// secureHost is a host whose log and answers are looked at.
type secureHost struct {
	*testHost
	logged *lockedBuffer
	client *http.Client
}

// startSecure starts a host over a fake source; change sets what it asks of its
// callers.
func startSecure(t *testing.T, change func(*Config)) *secureHost {
	t.Helper()
	cfg := DefaultConfig()
	cfg.Listen = "127.0.0.1:0"
	cfg.CleanupTimeout = 5 * time.Second
	cfg.DrainTimeout = 5 * time.Second
	change(&cfg)
	if faults := cfg.Validate(); len(faults) > 0 {
		t.Fatal(faults)
	}
	logged := &lockedBuffer{}
	src := &fakeSource{}
	h, err := newHost(cfg, src, slog.New(slog.NewJSONHandler(logged, &slog.HandlerOptions{Level: slog.LevelDebug})))
	if err != nil {
		t.Fatal(err)
	}
	return &secureHost{serveTestHost(t, h, src), logged, &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
}

// answer is what a caller gets.
type answer struct {
	code   int
	text   string // of the error, or the body
	header http.Header
}

// send asks with a token ("": none), at the data address or another.
func (g *secureHost) send(at, method, path, token, body string) answer {
	g.t.Helper()
	req, err := http.NewRequestWithContext(g.t.Context(), method, at+path, strings.NewReader(body))
	if err != nil {
		g.t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := g.client.Do(req)
	if err != nil {
		g.t.Fatalf("%s %s: %v", method, path, err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		g.t.Fatal(err)
	}
	a := answer{resp.StatusCode, string(b), resp.Header}
	var e struct{ Error string }
	if json.Unmarshal(b, &e) == nil && e.Error != "" {
		a.text = e.Error
	}
	return a
}

// auditLine is a line of the log that audits.
type auditLine struct {
	Level, Who, Via, Remote, Certificate, Action, Result, Reason, Detail string
	Instance                                                             string `json:"instance_id"`
	Model                                                                string `json:"model_name"`
	Endpoint                                                             string
	Suppressed                                                           uint64
}

// audits returns the audit lines so far.
func (g *secureHost) audits() []auditLine {
	g.t.Helper()
	var lines []auditLine
	for line := range strings.Lines(g.logged.String()) {
		var l struct {
			Msg string
			auditLine
		}
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			g.t.Fatalf("%q: %v", line, err)
		}
		if l.Msg == "audit" {
			lines = append(lines, l.auditLine)
		}
	}
	return lines
}

// lastAudit returns the newest audit line.
func (g *secureHost) lastAudit() auditLine {
	g.t.Helper()
	lines := g.audits()
	if len(lines) == 0 {
		g.t.Fatal("no audit line")
	}
	return lines[len(lines)-1]
}

// forgive gives the limiter its room back, so that a test sees each line.
func (g *secureHost) forgive() { g.gate.audit.lines.Forgive() }

func (g *secureHost) refusals(why refusalReason) uint64 { return g.gate.audit.refusals[why].Load() }

const tokenText = `read  reader-token   gateway
write writer-token   deployer
admin admin-token-1  ops
`

func tokenFile(t *testing.T) string {
	t.Helper()
	return securetest.WriteFile(t, filepath.Join(t.TempDir(), "tokens"), []byte(tokenText))
}

var roleTokens = map[string]secure.Role{
	"": secure.RoleNone, "wrong-token": secure.RoleNone,
	"reader-token": secure.RoleRead, "writer-token": secure.RoleWrite, "admin-token-1": secure.RoleAdmin,
}

// TestRoles asks every route with no token, a wrong one, and one of each role.
func TestRoles(t *testing.T) {
	g := startSecure(t, func(c *Config) { c.TokenFile = tokenFile(t) })
	want := map[string]secure.Role{
		"/health": secure.RoleNone, "/livez": secure.RoleNone, "/readyz": secure.RoleNone,
		"/query": secure.RoleRead, "/query_by_hash": secure.RoleRead, "/explain": secure.RoleRead, "/workers": secure.RoleRead, "/dump": secure.RoleRead,
		"/digest": secure.RoleRead, "/metrics": secure.RoleRead, "/peers": secure.RoleRead,
		"/register": secure.RoleWrite, "/unregister": secure.RoleWrite, "/register_peer": secure.RoleWrite, "/deregister_peer": secure.RoleWrite,
		"/debug/pprof/": secure.RoleAdmin, "/state": secure.RoleAdmin,
		"/ui": secure.RoleNone, "/ui/": secure.RoleNone, "/ui/data": secure.RoleRead,
	}
	for _, r := range routes {
		need, ok := want[r.path]
		if !ok {
			t.Errorf("%s: this test does not know which role it asks for", r.path)
		}
		for token, has := range roleTokens {
			g.forgive()
			lines := len(g.audits())
			a := g.send(g.url, r.method, r.path, token, "{}")
			switch {
			case has >= need:
				if a.code == 401 || a.code == 403 {
					t.Errorf("%s with %q: %d %s, want it let in", r.path, token, a.code, a.text)
				}
				continue
			case token == "":
				g.wantRefusal(r.path, a, 401, `"Bearer TOKEN"`, `Bearer realm="kindex"`, auditLine{Who: anonymous, Reason: "no_token"})
			case has == secure.RoleNone:
				g.wantRefusal(r.path, a, 401, "not one of this host's", `Bearer realm="kindex", error="invalid_token"`, auditLine{Who: anonymous, Reason: "wrong_token"})
			default:
				who := map[secure.Role]string{secure.RoleRead: "gateway", secure.RoleWrite: "deployer"}[has]
				g.wantRefusal(r.path, a, 403, "asks for a token of role "+need.String()+", this one has "+has.String(),
					`Bearer realm="kindex", error="insufficient_scope", scope="`+need.String()+`"`, auditLine{Who: who, Reason: "role"})
			}
			if n := len(g.audits()); n != lines+1 {
				t.Errorf("%s with %q: %d audit lines, want one", r.path, token, n-lines)
			}
		}
	}
	text := g.send(g.url, "GET", "/metrics", "reader-token", "").text
	for _, why := range []refusalReason{reasonNoToken, reasonWrongToken, reasonRole} {
		line := `kindex_refused_requests_total{reason="` + why.String() + `"} ` + strconv.FormatUint(g.refusals(why), 10)
		if g.refusals(why) == 0 || !strings.Contains(text, line) {
			t.Errorf("/metrics has no line %s", line)
		}
	}
	for token := range roleTokens {
		if token != "" && strings.Contains(g.logged.String()+text, token) {
			t.Errorf("%s stands in the log or the metrics", token)
		}
	}
	// Whoever asks for what is not there is told so without a token: that reveals nothing.
	if a := g.send(g.url, "GET", "/nothing", "", ""); a.code != 404 {
		t.Errorf("an unknown path: %d", a.code)
	}
}

// wantRefusal checks an answer and the last audit line.
func (g *secureHost) wantRefusal(what string, a answer, code int, words, challenge string, line auditLine) {
	g.t.Helper()
	if a.code != code || !strings.Contains(a.text, words) || strings.ContainsAny(a.text, "\n") || a.header.Get("WWW-Authenticate") != challenge {
		g.t.Errorf("%s: got %d %q, WWW-Authenticate %q, want %d with %q and %q", what, a.code, a.text, a.header.Get("WWW-Authenticate"), code, words, challenge)
	}
	got := g.lastAudit()
	if got.Who != line.Who || got.Reason != line.Reason || got.Action != what || got.Result != "refused" || got.Via != "http" || !strings.HasPrefix(got.Remote, "127.0.0.1:") || got.Level != "WARN" {
		g.t.Errorf("%s: audited as %+v, want %+v", what, got, line)
	}
}

// TestMutationsAudited: one line for each change, one for each that failed.
func TestMutationsAudited(t *testing.T) {
	g := startSecure(t, func(c *Config) {
		c.TokenFile = tokenFile(t)
		c.Workers = []Registration{{Instance: NumberID(7), Endpoint: "tcp://127.0.0.1:20007", Model: "m", BlockSize: 4}}
	})
	waitFor(t, "the configured worker", func() bool { return len(g.audits()) == 1 })
	if got := g.lastAudit(); got.Who != "configuration" || got.Action != "register" || got.Instance != "7" || got.Model != "m" || got.Result != "ok" || got.Level != "INFO" {
		t.Errorf("the configured worker: %+v", got)
	}
	for _, c := range []struct {
		path, token, body string
		code              int
		want              auditLine
	}{
		{"/register", "writer-token", reg("1", "m", ""), 201, auditLine{Who: "deployer", Action: "register", Instance: "1", Model: "m", Endpoint: "tcp://127.0.0.1:21001", Result: "ok"}},
		{"/register", "admin-token-1", reg("1", "m", ""), 409, auditLine{Who: "ops", Action: "register", Instance: "1", Model: "m", Endpoint: "tcp://127.0.0.1:21001", Result: "conflict"}},
		{"/register", "writer-token", `{"instance_id":3}`, 400, auditLine{Who: "deployer", Action: "register", Instance: "3", Result: "invalid"}},
		{"/unregister", "writer-token", `{"instance_id":1,"model_name":"m"}`, 200, auditLine{Who: "deployer", Action: "unregister", Instance: "1", Model: "m", Result: "ok"}},
		{"/unregister", "writer-token", `{"instance_id":1,"model_name":"m"}`, 404, auditLine{Who: "deployer", Action: "unregister", Instance: "1", Model: "m", Result: "not found"}},
		{"/unregister", "writer-token", `nonsense`, 400, auditLine{Who: "deployer", Action: "unregister", Result: "invalid"}},
		{"/register", "writer-token", reg(`"`+strings.Repeat("i", 500)+`"`, "m", ""), 201, auditLine{Who: "deployer", Action: "register", Instance: strings.Repeat("i", maxAuditText) + "...", Model: "m", Endpoint: "tcp://127.0.0.1:21001", Result: "ok"}},
	} {
		g.forgive()
		lines := len(g.audits())
		if a := g.send(g.url, "POST", c.path, c.token, c.body); a.code != c.code {
			t.Fatalf("%s %s: %d %s, want %d", c.path, c.body, a.code, a.text, c.code)
		}
		got := g.lastAudit()
		c.want.Via, c.want.Level, c.want.Remote, c.want.Detail = "http", "INFO", got.Remote, got.Detail
		if c.want.Result != "ok" {
			c.want.Level = "WARN"
		}
		if got != c.want || (got.Detail == "") != (got.Result == "ok") || len(g.audits()) != lines+1 {
			t.Errorf("%s %.100s: audited as %+v, want %+v", c.path, c.body, got, c.want)
		}
	}
	// Nothing that only asks leaves a line.
	lines := len(g.audits())
	for _, r := range routes {
		if r.access.role <= secure.RoleRead {
			g.send(g.url, r.method, r.path, "reader-token", "{}")
		}
	}
	if n := len(g.audits()); n != lines {
		t.Errorf("%d audit lines of requests that only ask: %+v", n-lines, g.lastAudit())
	}
}

// TestAdminAddress: what changes something, metrics and profiles stand at the admin
// address alone, where there is one.
func TestAdminAddress(t *testing.T) {
	g := startSecure(t, func(c *Config) { c.AdminListen = "127.0.0.1:0" })
	adminURL := "http://" + g.gate.adminAddr()
	for _, r := range routes {
		elsewhere := r.access.place != placeAny
		at := g.send(g.url, r.method, r.path, "", "{}")
		if refused := at.code == 403; refused != elsewhere {
			t.Errorf("%s at the data address: %d %s, want it refused: %v", r.path, at.code, at.text, elsewhere)
		}
		if elsewhere && (!strings.Contains(at.text, g.gate.adminAddr()) || !strings.HasPrefix(at.text, r.path+" ")) {
			t.Errorf("%s at the data address: %q, want the admin address named", r.path, at.text)
		}
		if a := g.send(adminURL, r.method, r.path, "", "{}"); a.code == 403 || a.code == 401 {
			t.Errorf("%s at the admin address: %d %s", r.path, a.code, a.text)
		}
	}
	if n := g.refusals(reasonAdminOnly); n != 9 {
		t.Errorf("%d refusals are counted, want 9", n)
	}
	g.forgive()
	g.send(g.url, "POST", "/register", "", reg("1", "m", ""))
	if got := g.lastAudit(); got.Who != anonymous || got.Action != "/register" || got.Reason != "admin_only" {
		t.Errorf("audited as %+v", got)
	}
	if a := g.send(adminURL, "POST", "/register", "", reg("1", "m", "")); a.code != 201 {
		t.Errorf("registering at the admin address: %d %s", a.code, a.text)
	}

	// With tokens, a stranger does not learn where it is.
	g = startSecure(t, func(c *Config) { c.AdminListen, c.TokenFile = "127.0.0.1:0", tokenFile(t) })
	if a := g.send(g.url, "POST", "/register", "", "{}"); a.code != 401 || strings.Contains(a.text, g.gate.adminAddr()) {
		t.Errorf("a stranger: %d %s", a.code, a.text)
	}
	if a := g.send(g.url, "GET", "/ui", "", ""); a.code != 403 || strings.Contains(a.text, g.gate.adminAddr()) {
		t.Errorf("a stranger who asks for the page: %d %s", a.code, a.text)
	}
	if a := g.send(g.url, "POST", "/register", "writer-token", "{}"); a.code != 403 || !strings.Contains(a.text, g.gate.adminAddr()) {
		t.Errorf("a writer at the data address: %d %s", a.code, a.text)
	}
	if a := g.send("http://"+g.gate.adminAddr(), "POST", "/register", "reader-token", "{}"); a.code != 403 || !strings.Contains(a.text, "role write") {
		t.Errorf("a reader at the admin address: %d %s", a.code, a.text)
	}
}

// TestBeyondLoopback: an address that others can reach changes nothing for those who
// do not say who they are, unless it was opened knowingly.
func TestBeyondLoopback(t *testing.T) {
	// For strangers: what answers and what watches, nothing that shows the whole host or
	// changes it. /state is for peers, which ask at this address.
	forAll := []string{
		"/query", "/query_by_hash", "/explain", "/workers", "/dump", "/digest", "/health", "/livez", "/readyz", "/metrics", "/peers", "/state",
	}
	for _, c := range []struct {
		name   string
		change func(*Config)
		token  string
		open   bool   // all routes
		warns  string // in the log
	}{
		{"nothing", func(*Config) {}, "", false, "registrations, profiles and the page are refused there"},
		{"open-admin", func(c *Config) { c.OpenAdmin = true }, "", true, "open-admin is set"},
		{"tokens", func(c *Config) { c.TokenFile = tokenFile(t) }, "admin-token-1", true, "without TLS: tokens can be read"},
	} {
		g := startSecure(t, func(cfg *Config) { cfg.Listen = "0.0.0.0:0"; c.change(cfg) })
		_, port, err := net.SplitHostPort(g.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		url := "http://127.0.0.1:" + port
		for _, r := range routes {
			a := g.send(url, r.method, r.path, c.token, "{}")
			refused := !c.open && !slices.Contains(forAll, r.path)
			if (a.code == 403) != refused || a.code == 401 {
				t.Errorf("%s: %s: %d %s, want it refused: %v", c.name, r.path, a.code, a.text, refused)
			}
			if refused && !strings.Contains(a.text, "set token-file or tls-client-ca, or admin-listen") {
				t.Errorf("%s: %s: %q, want what to set", c.name, r.path, a.text)
			}
		}
		if !strings.Contains(g.logged.String(), c.warns) {
			t.Errorf("%s: the log does not warn with %q:\n%s", c.name, c.warns, g.logged)
		}
	}
	// An admin address beyond loopback is no better.
	g := startSecure(t, func(c *Config) { c.AdminListen = "0.0.0.0:0" })
	_, port, err := net.SplitHostPort(g.gate.adminAddr())
	if err != nil {
		t.Fatal(err)
	}
	if a := g.send("http://127.0.0.1:"+port, "POST", "/register", "", reg("1", "m", "")); a.code != 403 || g.refusals(reasonExposed) != 1 {
		t.Errorf("an exposed admin address: %d %s", a.code, a.text)
	}
	if a := g.send("http://127.0.0.1:"+port, "GET", "/ui/data", "", ""); a.code != 403 {
		t.Errorf("an exposed admin address: the page: %d %s", a.code, a.text)
	}
	if a := g.send("http://127.0.0.1:"+port, "GET", "/metrics", "", ""); a.code != 200 {
		t.Errorf("an exposed admin address: metrics: %d %s", a.code, a.text)
	}
}

// TestTokensRotate: a changed file counts without a restart, a broken one does not,
// and is told of once.
func TestTokensRotate(t *testing.T) {
	path := tokenFile(t)
	g := startSecure(t, func(c *Config) { c.TokenFile = path })
	code := func(token string) int { return g.send(g.url, "GET", "/workers", token, "").code }
	if code("reader-token") != 200 || code("newer-token") != 401 {
		t.Fatal("before the change")
	}
	securetest.WriteFile(t, path, []byte("read newer-token gateway\n"))
	waitFor(t, "the new token", func() bool { return code("newer-token") == 200 })
	if got := code("reader-token"); got != 401 {
		t.Errorf("the old token: %d", got)
	}
	securetest.WriteFile(t, path, []byte("newer-token\n"))
	waitFor(t, "the fault to be told", func() bool {
		if got := code("newer-token"); got != 200 {
			t.Fatalf("with a broken file: %d", got)
		}
		return strings.Contains(g.logged.String(), "tokens cannot be read again")
	})
	if n := strings.Count(g.logged.String(), "tokens cannot be read again"); n != 1 || strings.Contains(g.logged.String(), "newer-token") {
		t.Errorf("told %d times, or with the token:\n%s", n, g.logged)
	}
}

// TestSecureConfig: what is refused before anything is served.
func TestSecureConfig(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"--token-file=/nonexistent", "token-file: open /nonexistent"},
		{"--token-file=" + securetest.WriteFile(t, filepath.Join(t.TempDir(), "t"), []byte("a-secret-token\n")), ":1: a line must be ROLE TOKEN [NAME]"},
		{"--tls-cert=/nonexistent", "tls-cert and tls-key: both"},
		{"--tls-cert=/nonexistent --tls-key=/nonexistent", "tls: open /nonexistent"},
		{"--tls-client-ca=/nonexistent", "tls-client-ca: it needs tls-cert"},
		{"--admin-listen=nowhere", `flag --admin-listen: "nowhere" must be host:port`},
		{"--listen=127.0.0.1:8090 --admin-listen=127.0.0.1:8090", "admin-listen: must be another address than listen"},
		{"--open-admin=maybe", `flag --open-admin: "maybe" must be true or false`},
	} {
		_, _, faults := parseArgs(strings.Fields(c.args))
		text := ""
		for _, err := range faults {
			text += err.Error() + "\n"
		}
		if !strings.Contains(text, c.want) || strings.Contains(text, "a-secret") {
			t.Errorf("%s: got %q, want %q", c.args, text, c.want)
		}
	}
}

// TestProfiles: what /debug/pprof/ answers, well and badly asked.
func TestProfiles(t *testing.T) {
	h := startTestHost(t, nil)
	for path, want := range map[string]string{
		"":                        "goroutine ",
		"goroutine?debug=2":       "goroutine 1 ",
		"goroutine":               "\x1f\x8b",
		"heap?gc=1":               "\x1f\x8b",
		"allocs?debug=1":          "heap profile",
		"profile?seconds=1":       "\x1f\x8b",
		"trace?seconds=1":         "go 1.",
		"mutex?seconds=1":         "\x1f\x8b",
		"block?seconds=1&debug=1": "--- contention",
	} {
		if got := h.must(200, "GET", "/debug/pprof/"+path, ""); !strings.Contains(got, want) {
			t.Errorf("%s: got %.60q, want %q in it", path, got, want)
		}
	}
	h.error("GET", "/debug/pprof/nothing", "", 404)
	h.error("GET", "/debug/pprof", "", 404)
	for _, path := range []string{"profile?seconds=0", "profile?seconds=121", "trace?seconds=11", "trace?seconds=x", "heap?seconds=1", "heap?debug=3"} {
		if got := h.error("GET", "/debug/pprof/"+path, "", 400); !strings.HasPrefix(got, "seconds: ") && !strings.HasPrefix(got, "debug: ") {
			t.Errorf("%s: got %q", path, got)
		}
	}
	h.profiling.Store(true)
	h.error("GET", "/debug/pprof/profile", "", 503)
	h.profiling.Store(false)
	if code, _ := h.do("HEAD", "/debug/pprof/profile", ""); code != 200 {
		t.Errorf("HEAD: %d", code)
	}
	// One that is under way ends with the host.
	ended := make(chan int, 1)
	go func() {
		resp, err := http.Get(h.url + "/debug/pprof/profile?seconds=120") //nolint:noctx // ends with the host
		if err != nil {
			ended <- 0
			return
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
		ended <- resp.StatusCode
	}()
	waitFor(t, "the profile", h.profiling.Load)
	if err := h.stop(); err != nil {
		t.Error(err)
	}
	if got := <-ended; got != 200 {
		t.Errorf("a profile that the drain ended: %d", got)
	}
}

// rawAnswer sends bytes and returns all that comes back.
func rawAnswer(t *testing.T, addr, text string) string {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
	if err := c.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	_, _ = io.Copy(&b, c)
	return b.String()
}

// tlsClient returns an HTTP client of its own connections.
func tlsClient(c *tls.Config) *http.Client {
	return &http.Client{Transport: &http.Transport{TLSClientConfig: c, DisableKeepAlives: true}, Timeout: 10 * time.Second}
}

// TestForeignUser: a user who is not on the list gets nothing of the shared-memory
// socket, and is audited.
func TestForeignUser(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	g := startSecure(t, func(c *Config) {
		c.Shm.Listen, c.Shm.Allow = path, "uid:"+strconv.Itoa(os.Geteuid()+1)
	})
	waitFor(t, "the refusal", func() bool {
		c, err := net.Dial("unix", path)
		if err != nil {
			return false
		}
		defer c.Close()
		_ = c.SetReadDeadline(time.Now().Add(time.Second))
		_, _ = io.Copy(io.Discard, c)
		return g.refusals(reasonPeer) > 0
	})
	if l := g.lastAudit(); l.Who != "uid:"+strconv.Itoa(os.Geteuid()) || l.Via != "shm" || l.Reason != "peer" || l.Result != "refused" {
		t.Errorf("audited as %+v", l)
	}
}
