package main

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"testing"

	runlog "apr/run/log"
)

// servedRun makes a folder with a run at work, whose directory is returned open.
func servedRun(t *testing.T) (dir string, d *runlog.Dir) {
	t.Helper()
	dir = t.TempDir()
	d, err := runlog.Open(filepath.Join(dir, "run 1"), false, false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	for _, err := range []error{
		d.WriteManifest(runlog.Manifest{RunID: "one"}),
		d.Event("record", "leg", map[string]any{"leg": "student", "steps": 8}, ""),
		d.Step(runlog.Step{Leg: "student", Step: 0, Loss: 2.5, Finite: true, Tokens: 16}), d.Flush(),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir, d
}

// served starts a dashboard on a test server.
func served(t *testing.T, dir string) *dashboard {
	t.Helper()
	s := httptest.NewUnstartedServer(nil)
	d := newDashboard(dir, s.Listener.Addr().String())
	s.Config.Handler = d.handler()
	s.Start()
	t.Cleanup(s.Close)
	return d
}

// ask sends a request as it is and follows no redirection.
func ask(t *testing.T, method, target, host string, header http.Header) (int, string, http.Header) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, target, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header = header.Clone()
	if host != "" {
		req.Host = host
	}
	c := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	res, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(body), res.Header
}

// Whoever asks from elsewhere, or without the cookie, gets nothing, whatever the headers say.
func TestDashboardHeaders(t *testing.T) {
	dir, _ := servedRun(t)
	d := served(t, dir)
	self, port := "http://"+d.address, d.address[strings.LastIndexByte(d.address, ':'):]
	cookie := d.cookieName() + "=" + d.session
	for name, c := range map[string]struct {
		method, path, host string
		header             map[string]string
		want               int
	}{
		"browser":                         {"GET", "/", "", map[string]string{"Cookie": cookie}, 200},
		"browser, typed":                  {"GET", "/", "", map[string]string{"Cookie": cookie, "Sec-Fetch-Site": "none"}, 200},
		"own script":                      {"GET", "/runs/run%201/data.json", "", map[string]string{"Cookie": cookie, "Sec-Fetch-Site": "same-origin"}, 200},
		"own script with origin":          {"GET", "/runs/run%201/data.json", "", map[string]string{"Cookie": cookie, "Origin": self}, 200},
		"another cookie beside":           {"GET", "/", "", map[string]string{"Cookie": "a=b; " + cookie + "; c=d"}, 200},
		"no cookie":                       {"GET", "/", "", nil, 403},
		"wrong cookie":                    {"GET", "/", "", map[string]string{"Cookie": d.cookieName() + "=" + strings.Repeat("0", 64)}, 403},
		"cut cookie":                      {"GET", "/", "", map[string]string{"Cookie": cookie[:len(cookie)-1]}, 403},
		"empty cookie":                    {"GET", "/", "", map[string]string{"Cookie": d.cookieName() + "="}, 403},
		"cookie of another port":          {"GET", "/", "", map[string]string{"Cookie": "apr-127.0.0.1-1=" + d.session}, 403},
		"the token as cookie":             {"GET", "/", "", map[string]string{"Cookie": d.cookieName() + "=" + d.token}, 403},
		"bearer on a page":                {"GET", "/", "", map[string]string{"Authorization": "Bearer " + d.session}, 403},
		"localhost":                       {"GET", "/", "localhost" + port, map[string]string{"Cookie": cookie}, 403},
		"rebound name":                    {"GET", "/", "evil.example" + port, map[string]string{"Cookie": cookie}, 403},
		"name that begins so":             {"GET", "/", d.address + ".evil.example", map[string]string{"Cookie": cookie}, 403},
		"without port":                    {"GET", "/", "127.0.0.1", map[string]string{"Cookie": cookie}, 403},
		"another port":                    {"GET", "/", "127.0.0.1:1", map[string]string{"Cookie": cookie}, 403},
		"another loopback address":        {"GET", "/", "127.0.0.2" + port, map[string]string{"Cookie": cookie}, 403},
		"IPv6 loopback":                   {"GET", "/", "[::1]" + port, map[string]string{"Cookie": cookie}, 403},
		"any address":                     {"GET", "/", "0.0.0.0" + port, map[string]string{"Cookie": cookie}, 403},
		"final dot":                       {"GET", "/", "127.0.0.1." + port, map[string]string{"Cookie": cookie}, 403},
		"origin elsewhere":                {"GET", "/", "", map[string]string{"Cookie": cookie, "Origin": "http://evil.example"}, 403},
		"origin null":                     {"GET", "/", "", map[string]string{"Cookie": cookie, "Origin": "null"}, 403},
		"origin of another port":          {"GET", "/", "", map[string]string{"Cookie": cookie, "Origin": "http://127.0.0.1:1"}, 403},
		"origin with https":               {"GET", "/", "", map[string]string{"Cookie": cookie, "Origin": "https://" + d.address}, 403},
		"empty origin":                    {"GET", "/", "", map[string]string{"Cookie": cookie, "Origin": ""}, 403},
		"cross-site":                      {"GET", "/", "", map[string]string{"Cookie": cookie, "Sec-Fetch-Site": "cross-site"}, 403},
		"same-site":                       {"GET", "/", "", map[string]string{"Cookie": cookie, "Sec-Fetch-Site": "same-site"}, 403},
		"POST":                            {"POST", "/", "", map[string]string{"Cookie": cookie}, 405},
		"PUT":                             {"PUT", "/runs/run%201/data.json", "", map[string]string{"Cookie": cookie}, 405},
		"DELETE":                          {"DELETE", "/runs/run%201/", "", map[string]string{"Cookie": cookie}, 405},
		"HEAD":                            {"HEAD", "/", "", map[string]string{"Cookie": cookie}, 405},
		"OPTIONS, preflight":              {"OPTIONS", "/", "", map[string]string{"Origin": "http://evil.example", "Access-Control-Request-Method": "GET"}, 403},
		"POST to login":                   {"POST", "/login?token=" + d.token, "", nil, 405},
		"login from elsewhere":            {"GET", "/login?token=" + d.token, "", map[string]string{"Sec-Fetch-Site": "cross-site"}, 403},
		"login, wrong token":              {"GET", "/login?token=" + d.session, "", nil, 403},
		"login without token":             {"GET", "/login", "", nil, 403},
		"metrics without token":           {"GET", "/metrics", "", nil, 401},
		"metrics with a wrong token":      {"GET", "/metrics", "", map[string]string{"Authorization": "Bearer " + d.token}, 401},
		"metrics with the token":          {"GET", "/metrics", "", map[string]string{"Authorization": "Bearer " + d.session}, 200},
		"metrics with the cookie":         {"GET", "/metrics", "", map[string]string{"Cookie": cookie}, 200},
		"metrics from elsewhere":          {"GET", "/metrics", "evil.example" + port, map[string]string{"Authorization": "Bearer " + d.session}, 403},
		"a run that is not there":         {"GET", "/runs/x/", "", map[string]string{"Cookie": cookie}, 404},
		"a way out":                       {"GET", "/runs/%2e%2e/", "", map[string]string{"Cookie": cookie}, 404},
		"a way out with a slash":          {"GET", "/runs/..%2f..%2fetc/data.json", "", map[string]string{"Cookie": cookie}, 404},
		"a file of a run":                 {"GET", "/runs/run%201/manifest.json", "", map[string]string{"Cookie": cookie}, 404},
		"somebody's page, without cookie": {"GET", "/runs/run%201/", "", nil, 403},
	} {
		t.Run(name, func(t *testing.T) {
			h := http.Header{}
			for k, v := range c.header {
				h[http.CanonicalHeaderKey(k)] = []string{v}
			}
			got, body, answer := ask(t, c.method, self+c.path, c.host, h)
			if got != c.want {
				t.Fatalf("%d, want %d: %s", got, c.want, body)
			}
			if got != 200 && (strings.Contains(body, "2.5") || strings.Contains(body, "run 1")) {
				t.Errorf("a refusal tells something: %s", body)
			}
			if answer.Get("Access-Control-Allow-Origin") != "" || answer.Get("X-Content-Type-Options") != "nosniff" || answer.Get("Cache-Control") != "no-store" ||
				!strings.Contains(answer.Get("Content-Security-Policy"), "frame-ancestors 'none'") {
				t.Errorf("headers %v", answer)
			}
		})
	}
}

// The link works in every browser, as often as it is opened, gives a cookie that scripts cannot read, and the token is
// in no page. Another server has another link.
func TestDashboardLogin(t *testing.T) {
	dir, _ := servedRun(t)
	d := served(t, dir)
	link := d.link()
	code, _, header := ask(t, "GET", link, "", nil)
	set := header.Get("Set-Cookie")
	if code != http.StatusSeeOther || header.Get("Location") != "/" || !strings.Contains(set, "HttpOnly") || !strings.Contains(set, "SameSite=Strict") {
		t.Fatalf("login: %d, %v", code, header)
	}
	cookie := http.Header{"Cookie": {strings.Split(set, ";")[0]}}
	for name, header := range map[string]http.Header{"another browser": nil, "the same browser": cookie} {
		if code, _, answer := ask(t, "GET", link, "", header); code != http.StatusSeeOther || answer.Get("Set-Cookie") != set {
			t.Errorf("the link again, %s: %d, %v", name, code, answer)
		}
	}
	other := newDashboard(dir, d.address)
	for name, wrong := range map[string]string{"another server's": other.link(), "cut": link[:len(link)-1], "without": strings.TrimSuffix(link, d.token)} {
		if code, _, answer := ask(t, "GET", wrong, "", nil); code != 403 || answer.Get("Set-Cookie") != "" {
			t.Errorf("link, token %s: %d, %v", name, code, answer)
		}
	}
	token, _ := url.Parse(link)
	for _, path := range []string{"/", "/runs/run%201/", "/metrics"} {
		code, body, _ := ask(t, "GET", "http://"+d.address+path, "", cookie)
		if code != 200 || strings.Contains(body, d.session) || strings.Contains(body, token.Query().Get("token")) {
			t.Errorf("%s: %d, or it holds a secret", path, code)
		}
	}
}

// data.json answers with what is new, and with 204 while nothing is.
func TestDashboardUpdates(t *testing.T) {
	dir, run := servedRun(t)
	d := served(t, dir)
	cookie := http.Header{"Cookie": {d.cookieName() + "=" + d.session}}
	since := ""
	next := func(want int) (u struct {
		Version string
		Status  string
		Data    struct {
			Charts []struct {
				ID string
				X  []int
			}
		}
	}) {
		t.Helper()
		code, body, _ := ask(t, "GET", "http://"+d.address+"/runs/run%201/data.json?since="+url.QueryEscape(since), "", cookie)
		if code != want {
			t.Fatalf("%d, want %d: %s", code, want, body)
		}
		if code == 200 {
			if err := json.Unmarshal([]byte(body), &u); err != nil {
				t.Fatal(err)
			}
			since = u.Version
		}
		return u
	}
	if u := next(200); u.Status != runlog.Running || len(u.Data.Charts[0].X) != 1 {
		t.Errorf("first: %+v", u)
	}
	next(204)
	for _, err := range []error{run.Step(runlog.Step{Leg: "student", Step: 1, Loss: 2.25, Finite: true}), run.Flush()} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if u := next(200); len(u.Data.Charts[0].X) != 2 {
		t.Errorf("after a step: %+v", u)
	}
	next(204)
	if err := run.Close(); err != nil {
		t.Fatal(err)
	}
	if u := next(200); u.Status != runlog.Failed {
		t.Errorf("after the process ended without a receipt: %s", u.Status)
	}
}

// The link fits a terminal of 80 columns, and so does the way to it from another machine, which uses the port that the server answers to.
func TestDashboardLinkIsShort(t *testing.T) {
	d := newDashboard(t.TempDir(), "127.0.0.1:65535")
	if link := d.link(); len(link) >= 80 {
		t.Errorf("%d columns: %s", len(link), link)
	}
	if got, want := d.tunnel("host"), "ssh -N -L 65535:127.0.0.1:65535 host"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if host := hostname(); host == "" || strings.HasPrefix(host, "-") || len("from another machine: "+d.tunnel(host)) >= 80 {
		t.Errorf("from another machine: %s", d.tunnel(host))
	}
}
