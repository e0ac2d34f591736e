package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"apr/internal/atomicfile"
	"apr/internal/cli"
	"apr/internal/fault"
	runs "apr/run/list"
	runlog "apr/run/log"
	"apr/run/report"
)

// runsServeResult is the JSON of apr runs serve, when it ends.
type runsServeResult struct {
	Address string `json:"address"`
	Dir     string `json:"dir"`
}

// Text prints nothing: the address was printed at the beginning.
func (r runsServeResult) Text(*cli.Page) {}

func runsServeCommand() *cli.Command {
	var dir, tokenFile string
	var port int
	return &cli.Command{
		Name: "serve", Short: "Show runs in a browser, live and read-only, on this machine alone",
		Long: "Serves the reports of all runs of a folder on 127.0.0.1, up to date while runs are at work, and /metrics for\n" +
			"Prometheus. The link that is printed opens any browser of this machine for as long as the server runs: keep it to\n" +
			"yourself. Ctrl-C ends the server; the next one has another link.",
		Example: "apr runs serve\napr runs serve --port 8080 --metrics-token metrics.token",
		Exits:   []fault.Kind{fault.NotFound, fault.Invalid, fault.IO},
		Options: []cli.Option{
			runsDirOption(&dir),
			{Name: "port", Foreign: []string{"listen", "address", "bind"}, Value: cli.Int(&port, 0).In(0, 65535),
				Default: "a free one", Help: "port on 127.0.0.1"},
			{Name: "metrics-token", Path: true, Value: cli.String(&tokenFile, ""),
				Help: "write the bearer token for /metrics to this file, readable by you alone (Prometheus: credentials_file)"},
		},
		Run: func(ctx context.Context, e *cli.Env) (cli.Result, error) {
			if err := runsFolder(e.Settings, dir); err != nil {
				return nil, err
			}
			if _, err := runs.Paths(dir); err != nil {
				return nil, err
			}
			return serve(ctx, e, dir, port, tokenFile)
		},
	}
}

// serve answers until ctx ends.
func serve(ctx context.Context, e *cli.Env, dir string, port int, tokenFile string) (cli.Result, error) {
	l, err := net.Listen("tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return nil, fault.New(fault.IO, "cannot listen on 127.0.0.1:%d", port).Because(err).WithHint("--port 0 takes a free port")
	}
	d := newDashboard(dir, l.Addr().String())
	if tokenFile != "" {
		if err := atomicfile.WritePrivate(tokenFile, []byte(d.session), false); err != nil {
			return nil, errors.Join(err, l.Close())
		}
	}
	out := e.Out
	if e.JSON { // stdout is for the one object
		out = e.Err
	}
	fmt.Fprintf(out, "%s\n", d.link())
	if err := flush(out); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	e.Log.Info("the link works in any browser here until Ctrl-C ends the server; a new start has a new link")
	e.Log.Info("from another machine: " + d.tunnel(hostname()))
	s := &http.Server{Handler: d.handler(), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: time.Minute,
		IdleTimeout: time.Minute, MaxHeaderBytes: 1 << 14}
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	select {
	case <-ctx.Done():
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		defer cancel()
		if s.Shutdown(late) != nil { // somebody reads slowly: not any more
			err = s.Close()
		}
	case err = <-done:
	}
	if err != nil && !errors.Is(err, http.ErrServerClosed) {
		return nil, fault.New(fault.IO, "the server ended").Because(err)
	}
	return runsServeResult{d.address, dir}, nil
}

// dashboard serves the runs of a folder to the browsers that have its link.
type dashboard struct {
	dir     string
	address string // 127.0.0.1:PORT: the only Host it answers to
	session string // value of the cookie, and the bearer token of /metrics
	token   string // of the link; good for as long as the server runs
}

// tunnel is the command that makes the link work on another machine: the server answers to its own address only, so the port is the
// same there.
func (d *dashboard) tunnel(host string) string {
	_, port, _ := strings.Cut(d.address, ":")
	return "ssh -N -L " + port + ":" + d.address + " " + host
}

// hostname is this machine's name, as far as a command line can hold it.
func hostname() string {
	name, err := os.Hostname()
	if err != nil || name == "" || len(name) > 20 || strings.HasPrefix(name, "-") || strings.ContainsFunc(name, func(r rune) bool {
		return r != '.' && r != '-' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
	}) {
		return "HOST"
	}
	return name
}

// newDashboard makes a dashboard with fresh secrets.
func newDashboard(dir, address string) *dashboard {
	return &dashboard{dir: dir, address: address, session: secret(32), token: secret(16)}
}

// secret returns n random bytes in hexadecimal. Those of the link are fewer, 128 bits, so that it fits a line.
func secret(n int) string {
	b := make([]byte, n)
	rand.Read(b) // never fails: the program ends if the system has no randomness
	return hex.EncodeToString(b)
}

// link is what opens the browser.
func (d *dashboard) link() string {
	return "http://" + d.address + "/login?token=" + d.token
}

// cookieName is of this server alone: cookies do not know ports.
func (d *dashboard) cookieName() string { return "apr-" + strings.ReplaceAll(d.address, ":", "-") }

// handler checks every request before it looks at anything: Host, method, origin, then who asks.
func (d *dashboard) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /login", d.login)
	mux.HandleFunc("GET /{$}", d.private(d.list))
	mux.HandleFunc("GET /runs/{name}/{$}", d.private(d.page))
	mux.HandleFunc("GET /runs/{name}/data.json", d.private(d.update))
	mux.HandleFunc("GET /metrics", d.metrics)
	guarded := http.NewCrossOriginProtection().Handler(mux)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", report.Policy(true)+"; frame-ancestors 'none'")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-store")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		if why := d.refusal(r); why != "" {
			http.Error(w, why, http.StatusForbidden)
			return
		}
		if r.Method != http.MethodGet {
			h.Set("Allow", http.MethodGet)
			http.Error(w, "this server is read-only: GET is all it knows", http.StatusMethodNotAllowed)
			return
		}
		guarded.ServeHTTP(w, r)
	})
}

// refusal says what is wrong with where a request comes from. The Host is checked exactly, for a stranger's name may be made
// to point at this machine; a page of another origin has no business here at all.
func (d *dashboard) refusal(r *http.Request) string {
	if r.Host != d.address {
		return "wrong host"
	}
	for _, origin := range r.Header.Values("Origin") {
		if origin != "http://"+d.address {
			return "wrong origin"
		}
	}
	for _, site := range r.Header.Values("Sec-Fetch-Site") {
		if site != "same-origin" && site != "none" {
			return "asked for by another site"
		}
	}
	return ""
}

// login turns the token of the link into a cookie, which pages that other sites open do not get, and leads to a page
// whose address holds no token.
func (d *dashboard) login(w http.ResponseWriter, r *http.Request) {
	ok := equal(r.URL.Query().Get("token"), d.token)
	if !ok && !d.known(r) {
		http.Error(w, "this is not the link of this server: use the one that it printed, or start apr runs serve again for a new one", http.StatusForbidden)
		return
	}
	if ok {
		http.SetCookie(w, &http.Cookie{Name: d.cookieName(), Value: d.session, Path: "/", HttpOnly: true, SameSite: http.SameSiteStrictMode})
	}
	http.Redirect(w, r, "/", http.StatusSeeOther)
}

// equal compares secrets in a time that does not depend on where they differ.
func equal(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }

// known reports whether a request has the cookie.
func (d *dashboard) known(r *http.Request) bool {
	c, err := r.Cookie(d.cookieName())
	return err == nil && equal(c.Value, d.session)
}

// private lets only browsers in that used the link.
func (d *dashboard) private(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if !d.known(r) {
			http.Error(w, "use the link that apr runs serve printed; a new start prints a new one", http.StatusForbidden)
			return
		}
		h(w, r)
	}
}

func (d *dashboard) list(w http.ResponseWriter, _ *http.Request) {
	all, err := runs.List(d.dir)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	var b bytes.Buffer
	d.answer(w, "text/html; charset=utf-8", &b, report.WriteList(&b, all))
}

// find returns the directory of a run by its name in the folder: one that is there, so that no name leads elsewhere.
func (d *dashboard) find(r *http.Request) (string, bool) {
	paths, err := runs.Paths(d.dir)
	if err != nil {
		return "", false
	}
	for _, path := range paths {
		if filepath.Base(path) == r.PathValue("name") {
			return path, true
		}
	}
	return "", false
}

func (d *dashboard) page(w http.ResponseWriter, r *http.Request) {
	path, ok := d.find(r)
	if !ok {
		http.NotFound(w, r)
		return
	}
	version := runlog.Version(path) // before it is read: what comes meanwhile is asked for again
	rec, err := runlog.Read(path)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	var b bytes.Buffer
	d.answer(w, "text/html; charset=utf-8", &b, report.WriteLive(&b, rec, version))
}

// update answers with what is newer than ?since, or with 204 if nothing is.
func (d *dashboard) update(w http.ResponseWriter, r *http.Request) {
	path, ok := d.find(r)
	if !ok {
		http.NotFound(w, r)
		return
	}
	version := runlog.Version(path)
	if r.URL.Query().Get("since") == version {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	rec, err := runlog.Read(path)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	b, err := report.Update(rec, version)
	d.answer(w, "application/json", bytes.NewBuffer(b), err)
}

// metrics answers Prometheus, which has the token, and the browser, which has the cookie.
func (d *dashboard) metrics(w http.ResponseWriter, r *http.Request) {
	bearer, has := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !d.known(r) && !(has && equal(bearer, d.session)) {
		w.Header().Set("WWW-Authenticate", `Bearer realm="apr"`)
		http.Error(w, "the token of --metrics-token is missing", http.StatusUnauthorized)
		return
	}
	paths, err := runs.Paths(d.dir)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	var records []*runlog.Record
	for _, path := range paths {
		if rec, err := runlog.Read(path); err == nil { // one that cannot be read has no numbers; the list says why
			records = append(records, rec)
		}
	}
	d.answer(w, "text/plain; version=0.0.4; charset=utf-8", bytes.NewBufferString(report.Metrics(records)), nil)
}

// answer sends what was rendered as a whole.
func (d *dashboard) answer(w http.ResponseWriter, kind string, b *bytes.Buffer, err error) {
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", kind)
	_, _ = b.WriteTo(w) // the browser may have gone
}
