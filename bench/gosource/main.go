// Command gosource writes the source of Go itself as training text, which everyone who has Go has:
//
//	gosource -goroot "$(go env GOROOT)" [-except examples/gosrc/data/gosrc-val.jsonl.zst] -o FILE.jsonl.zst
//
// Each line is a document with the fields path (below src/) and text. Documents are in the order of their paths, so
// the same Go gives the same file. Left out are generated files, files above 200 kB, testdata, vendored code, and
// what -except holds: held-out text, by its path, since another version of Go has another text there.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/klauspost/compress/zstd"
)

// document is a line of the file.
type document struct {
	Path string `json:"path"`
	Text string `json:"text"`
}

// largest is the size of the largest file that is taken: larger ones are tables.
const largest = 200_000

var generated = regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT\.$`)

func main() {
	root := flag.String("goroot", "", "folder of Go, which has src: $(go env GOROOT)")
	except := flag.String("except", "examples/gosrc/data/gosrc-val.jsonl.zst", "JSON lines whose paths are left out; empty: none")
	out := flag.String("o", "", "file to write, .jsonl or .jsonl.zst")
	flag.Parse()
	if *out == "" || *root == "" || flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	n, bytes, err := write(*root, *except, *out)
	if err != nil {
		fmt.Fprintln(os.Stderr, "gosource:", err)
		os.Exit(1)
	}
	fmt.Fprintf(os.Stderr, "%s: %d documents, %.1f MB of text\n", *out, n, float64(bytes)/1e6)
}

// write makes the file, and returns how many documents and bytes of text it has.
func write(root, except, out string) (documents, bytes int, err error) {
	held, err := paths(except)
	if err != nil {
		return 0, 0, err
	}
	f, err := os.Create(out)
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	into := bufio.NewWriter(f)
	var w io.Writer = into
	if strings.HasSuffix(out, ".zst") {
		z, err := zstd.NewWriter(into, zstd.WithEncoderLevel(zstd.SpeedBestCompression), zstd.WithEncoderConcurrency(1))
		if err != nil {
			return 0, 0, err
		}
		defer func() { err = errors.Join(err, z.Close(), into.Flush()) }()
		w = z
	}
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	err = walk(filepath.Join(root, "src"), func(d document) error {
		if slices.Contains(held, d.Path) {
			return nil
		}
		documents, bytes = documents+1, bytes+len(d.Text)
		return e.Encode(d)
	})
	if err == nil && documents == 0 {
		err = fmt.Errorf("%s has no Go source in src", root)
	}
	return documents, bytes, errors.Join(err, into.Flush())
}

// walk calls f for every file that is taken, in the order of paths.
func walk(src string, f func(document) error) error {
	return filepath.WalkDir(src, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := entry.Name()
		if entry.IsDir() {
			if name == "testdata" || name == "vendor" {
				return fs.SkipDir
			}
			return nil
		}
		if !entry.Type().IsRegular() || !strings.HasSuffix(name, ".go") {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if len(text) == 0 || len(text) > largest || !utf8.Valid(text) || generated.Match(text) {
			return nil
		}
		below, err := filepath.Rel(src, path)
		if err != nil {
			return err
		}
		return f(document{filepath.ToSlash(below), string(text)})
	})
}

// paths are the paths of documents in a file of JSON lines.
func paths(file string) (list []string, err error) {
	if file == "" {
		return nil, nil
	}
	in, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	var r io.Reader = in
	if strings.HasSuffix(file, ".zst") {
		z, err := zstd.NewReader(in)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		defer z.Close()
		r = z
	}
	for d := json.NewDecoder(r); ; {
		var line document
		if err := d.Decode(&line); errors.Is(err, io.EOF) {
			return list, nil
		} else if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		if line.Path == "" {
			return nil, fmt.Errorf("%s: a document has no path", file)
		}
		list = append(list, line.Path)
	}
}
