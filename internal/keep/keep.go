// Package keep holds back outputs that would replace what a command reads, by whatever name: another path, a link anywhere on the way,
// a hard link, a file beside the weights, a shard that an index names.
package keep

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"apr/format"
	"apr/internal/fault"
)

// beside are the endings of the small files of a Hugging Face model, which lie beside its weights.
var beside = []string{".json", ".txt", ".model", ".jinja"}

// ModelFiles returns what opening a model reads: the path, the files of weights, those that an index names, and the small files beside
// them. A path that is not there has none: opening it says so.
func ModelFiles(path string) []string {
	info, err := os.Stat(path)
	if path == "" || err != nil {
		return nil
	}
	files, folder := []string{path}, path
	if !info.IsDir() {
		folder = filepath.Dir(path)
	} else if file, err := format.Find(path); err == nil {
		files = append(files, file)
	}
	entries, _ := os.ReadDir(folder)
	for _, e := range entries {
		if slices.Contains(beside, filepath.Ext(e.Name())) {
			files = append(files, filepath.Join(folder, e.Name()))
		}
	}
	if f, _, err := format.Open(path); err == nil {
		if several, ok := f.(interface{ Files() []string }); ok {
			files = append(files, several.Files()...)
		}
		f.Close()
	}
	return files
}

// Inputs refuses an output that is one of the files and folders that a command reads, and an output folder that holds one: whose entry
// is on the way to it, as a file or as a link to one. An output that is not there replaces nothing.
func Inputs(out string, inputs ...string) error {
	info, err := os.Stat(out)
	if err != nil {
		return nil
	}
	for _, input := range inputs {
		in, err := os.Stat(input)
		if err != nil {
			continue // nothing is lost; reading it says what is wrong
		}
		switch {
		case os.SameFile(in, info):
			return refused(out, "is the input", input)
		case info.IsDir() && !in.IsDir() && Way(input, func(at string) bool { return entry(at, info) }):
			return refused(out, "holds the input", input)
		}
	}
	return nil
}

func refused(out, how, input string) error {
	if filepath.Clean(input) != filepath.Clean(out) {
		how += " " + input
	}
	return fault.In(fault.Invalid, out, "%s", how).WithHint("name another output; --force does not replace what is read").WithID("E-KEEP-001")
}

// entry reports whether a path is an entry of the folder that is no folder itself.
func entry(path string, folder os.FileInfo) bool {
	info, err := os.Stat(filepath.Dir(path))
	if err != nil || !os.SameFile(info, folder) {
		return false
	}
	info, err = os.Stat(path)
	return err == nil && !info.IsDir()
}

// maxLinks bounds the links on the way to a path; the kernel's bound is smaller.
const maxLinks = 255

// Way follows a path from the root, link by link, and reports whether visit says yes of anything that it comes by: files, folders and
// links.
func Way(path string, visit func(at string) bool) bool {
	at, rest := string(filepath.Separator), path
	if !filepath.IsAbs(path) {
		here, err := os.Getwd()
		if err != nil {
			return false
		}
		rest = here + string(filepath.Separator) + path
	}
	links := 0
	for names := strings.Split(rest, string(filepath.Separator)); len(names) > 0; {
		name := names[0]
		names = names[1:]
		switch name {
		case "", ".":
			continue
		case "..":
			at = filepath.Dir(at)
			continue
		}
		next := filepath.Join(at, name)
		if visit(next) {
			return true
		}
		if target, err := os.Readlink(next); err == nil && links < maxLinks {
			links++
			if filepath.IsAbs(target) {
				at = string(filepath.Separator)
			}
			names = append(strings.Split(target, string(filepath.Separator)), names...)
			continue
		}
		at = next
	}
	return false
}

// Below reports whether a path, which need not be there yet, is in a folder or in a folder within it, through whatever links.
func Below(path, folder string) bool {
	info, err := os.Stat(folder)
	if err != nil {
		return false
	}
	return Way(filepath.Dir(path), func(at string) bool {
		st, err := os.Lstat(at)
		return err == nil && st.Mode()&fs.ModeSymlink == 0 && os.SameFile(st, info)
	})
}
