package cli

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// called is how the user calls this program, and callable the commands that are called so.
var (
	called   = "apr"
	callable []string
)

// mention is the program's name with a command behind it, in a text.
var mention = regexp.MustCompile("(^|[\\s(`'\";:])apr ([a-z]+)")

// CalledAs says how this program was called: the words that texts tell people to type begin so. A name is looked up on
// PATH by the shell; a path is kept, unless apr on PATH is the same program; that of go run is gone when it ends, so
// that texts say go run. commands are the names of the program's commands.
func CalledAs(argv0 string, commands []string) {
	called, callable = callOf(argv0), commands
}

// callOf is what a person types to call the program of argv0 again.
func callOf(argv0 string) string {
	if !strings.ContainsAny(argv0, `/\`) {
		return argv0
	}
	if strings.Contains(argv0, "go-build") && filepath.Base(filepath.Dir(argv0)) == "exe" { // of go run, gone when it ends
		return "go run ./cmd/apr"
	}
	if onPath(argv0) {
		return "apr"
	}
	if strings.ContainsAny(filepath.ToSlash(argv0), " \t\n'\"\\$&;()<>|*?[]#~`") { // on Windows \ is in every path
		return "'" + strings.ReplaceAll(argv0, "'", `'\''`) + "'"
	}
	return argv0
}

// onPath reports whether the first apr on PATH is this program.
func onPath(program string) bool {
	own, err := os.Stat(program)
	if err != nil {
		return false
	}
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		for _, name := range []string{"apr", "apr.exe"} {
			if first, err := os.Stat(filepath.Join(dir, name)); err == nil && !first.IsDir() {
				return os.SameFile(first, own)
			}
		}
	}
	return false
}

// AsCalled returns a text in which "apr COMMAND" is what the user has to type: bin/apr COMMAND, where the program was
// called so and is not on PATH. Hints of errors, the "next" of a page and what is explained are put so by this package.
func AsCalled(text string) string {
	if called == "apr" || !strings.Contains(text, "apr ") {
		return text
	}
	return mention.ReplaceAllStringFunc(text, func(found string) string {
		part := mention.FindStringSubmatch(found)
		if !slices.Contains(callable, part[2]) {
			return found
		}
		return part[1] + called + " " + part[2]
	})
}
