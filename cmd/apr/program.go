package main

import (
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
)

// programIdentity names the code of this process: the revision of a clean source tree with what it was compiled for, else the
// content of the executable. Empty: the executable cannot be read.
//
// The content is the same for equal code, also under go run, whose file has another name each time. It differs where bits need
// not: after a change to any command, and, compiled without -trimpath, in a source tree that was moved.
var programIdentity = sync.OnceValue(func() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		if id := stampOf(info); id != "" {
			return id
		}
	}
	path, err := os.Executable()
	if err != nil {
		return ""
	}
	return contentOf(path)
})

// stampOf names the code of a build from a clean tree of a known revision; empty for any other.
func stampOf(info *debug.BuildInfo) string {
	revision, clean, built := "", false, []string{}
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			revision = s.Value
		case s.Key == "vcs.modified":
			clean = s.Value == "false"
		case !strings.HasPrefix(s.Key, "vcs") && s.Key != "-trimpath" && s.Key != "-buildmode": // tags, architecture, compiler flags
			built = append(built, s.Key+"="+s.Value)
		}
	}
	local := func(m *debug.Module) bool { return m.Replace != nil && m.Replace.Version == "" } // a folder, which may have any content
	if revision == "" || !clean || slices.ContainsFunc(info.Deps, local) {
		return ""
	}
	slices.Sort(built)
	return fmt.Sprintf("revision %s, %s, %s", revision, info.GoVersion, strings.Join(built, " "))
}

// contentOf names an executable by its content.
func contentOf(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return ""
	}
	return fmt.Sprintf("executable %x", h.Sum(nil))
}
