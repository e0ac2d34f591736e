package main

import (
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"sync"
)

// programIdentity names the code of this process by the content of its executable, hashed when it is first asked for; empty: it
// cannot be read. The revision that a build is stamped with does not name code: an overlay, and files that git does not look at,
// change the one and not the other.
//
// The content is the same for equal code, also under go run, whose file has another name each time. It differs where bits need
// not: after a change to any command, a commit, which is stamped too, and, compiled without -trimpath, in a source tree that was
// moved.
var programIdentity = sync.OnceValue(func() string {
	const running = "/proc/self/exe" // on Linux the file that runs, also when another has taken its name since
	if id := contentOf(running); id != "" {
		return id
	}
	path, err := os.Executable()
	if err != nil {
		return ""
	}
	return contentOf(path)
})

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
