package main

import (
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"

	"apr/hub/hubtest"
)

// canary is the token of scripts with a hub; no output may hold it.
const canary = "hf_canaryCANARY0123456789"

// hubKey is where a script keeps its hub.
type hubKey struct{}

// scriptHub is the hub of a script.
type scriptHub struct{ *hubtest.Server }

// hubCommand starts and steers a hub of this machine with the repository org/name:
//
//	hub start FOLDER          serves the files of a folder as a model, and sets HF_ENDPOINT, HF_HOME and HF_TOKEN
//	hub data FOLDER           the same, as a data set
//	hub sent MIN MAX          requires so many bytes of content to have been sent
//	hub quiet                 requires that nobody asked anything
//	hub cut FILE BYTES        breaks the first transfer of a file after so many bytes
//	hub answer KIND STATUS    answers every request of a kind (list, head, get, storage) with a status
//	hub list NAME…            lists these files instead
//	hub spoil FILE            sends another content of the same length
//	hub well                  behaves again, and forgets what was asked
//	hub secret                requires that stdout and stderr do not hold the token
func hubCommand(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) == 0 {
		ts.Fatalf("usage: hub VERB …")
	}
	h := ts.Value(hubKey{}).(*scriptHub)
	if args[0] == "start" || args[0] == "data" {
		h.start(ts, args[1])
		h.Dataset = args[0] == "data"
		return
	}
	switch verb, args := args[0], args[1:]; verb {
	case "sent":
		if n := h.Sent(); n < number(ts, args[0]) || n > number(ts, args[1]) {
			ts.Fatalf("%d bytes sent, want %s to %s", n, args[0], args[1])
		}
	case "quiet":
		if calls := h.Calls(""); len(calls) > 0 {
			ts.Fatalf("asked for %+v", calls)
		}
	case "well":
		h.Handle(nil)
		h.Reset()
	case "secret":
		if strings.Contains(ts.ReadFile("stdout")+ts.ReadFile("stderr"), canary) {
			ts.Fatalf("the token is in the output")
		}
	default:
		h.Handle(h.misbehaviour(ts, verb, args))
	}
}

func number(ts *testscript.TestScript, s string) int64 {
	n, err := strconv.ParseInt(s, 10, 64)
	ts.Check(err)
	return n
}

// start serves a folder.
func (h *scriptHub) start(ts *testscript.TestScript, folder string) {
	files := map[string][]byte{}
	dir := ts.MkAbs(folder)
	ts.Check(filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		files[filepath.ToSlash(name)], err = os.ReadFile(path)
		return err
	}))
	h.Server = hubtest.New("org/name", files)
	ts.Defer(h.Close)
	ts.Setenv("HF_ENDPOINT", h.Hub.URL)
	ts.Setenv("HF_HOME", ts.MkAbs("hf"))
	ts.Setenv("HF_TOKEN", canary)
}

// misbehaviour returns what a verb asks for.
func (h *scriptHub) misbehaviour(ts *testscript.TestScript, verb string, args []string) hubtest.Handler {
	switch verb {
	case "cut":
		n := int(number(ts, args[1]))
		return func(c hubtest.Call, w http.ResponseWriter, r *http.Request) bool {
			if c.Name != args[0] || c.Nth > 0 || c.Kind == hubtest.Head || hubtest.Large(c.Name) && c.Kind == hubtest.Get {
				return false
			}
			h.Cut(w, r, h.Files[c.Name], n)
			return true
		}
	case "answer":
		status := int(number(ts, args[1]))
		return func(c hubtest.Call, w http.ResponseWriter, _ *http.Request) bool {
			if string(c.Kind) == args[0] {
				http.Error(w, "told "+c.Auth, status)
			}
			return string(c.Kind) == args[0]
		}
	case "list":
		return func(c hubtest.Call, w http.ResponseWriter, _ *http.Request) bool {
			if c.Kind == hubtest.List {
				hubtest.WriteListing(w, h.Repo, hubtest.Commit, args)
			}
			return c.Kind == hubtest.List
		}
	case "spoil":
		return func(c hubtest.Call, w http.ResponseWriter, r *http.Request) bool {
			if c.Name != args[0] || c.Kind == hubtest.Head || hubtest.Large(c.Name) && c.Kind == hubtest.Get {
				return false
			}
			w.Header().Set("Content-Length", fmt.Sprint(len(h.Files[c.Name])))
			_, _ = w.Write(make([]byte, len(h.Files[c.Name]))) // the client may have gone
			return true
		}
	}
	ts.Fatalf("hub: unknown verb %q", verb)
	return nil
}
