package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/klauspost/compress/zstd"
)

// The two parts of Go's source, by the path of a document.
const (
	toolsSource   = "tools"   // below cmd/
	librarySource = "library" // everything else
)

// specialist begins the names of records about second teachers.
const specialist = "specialist of the "

// rateFurther is the learning rate at which the teacher is trained further.
const rateFurther = 3e-4

// specialists makes two teachers of one vocabulary: the teacher, trained further on either part of the text alone.
// It takes each the tokens of one run.
func (w *workshop) specialists(ctx context.Context, p *files) (err error) {
	if p.routed, _, err = w.make("routed.jsonl", func(path string) error { return split(w.data, path, "") }); err != nil {
		return err
	}
	for source, path := range map[string]*string{toolsSource: &p.tools, librarySource: &p.library} {
		text, _, err := w.make(source+".jsonl", func(path string) error { return split(w.data, path, source) })
		if err != nil {
			return err
		}
		*path, _, err = w.make("teacher-"+source+".apr", func(path string) error {
			return w.trainFurther(ctx, source, text, path)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// trainFurther trains the teacher on a text, writes it to path, and notes how it scores.
func (w *workshop) trainFurther(ctx context.Context, source, text, path string) error {
	dir := filepath.Join(w.work, "runs", "teacher-"+source)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	r := record{Variant: specialist + source, Seed: 1, Factor: 1, Rate: rateFurther, Status: done}
	run := filepath.Join(dir, "run")
	args := append([]string{"distill", "--student", w.teacher, "--alpha", "0", "-d", text}, w.common(run, w.Tokens, rateFurther, 1)...)
	if err := w.trainLeg(ctx, run, args, &r); err != nil {
		return err
	}
	if err := w.score(ctx, filepath.Join(run, "student.apr"), &r); err != nil {
		return err
	}
	if err := os.Rename(filepath.Join(run, "student.apr"), path); err != nil {
		return err
	}
	if err := w.into.Append(r); err != nil {
		return err
	}
	return os.RemoveAll(dir)
}

// sourceOf names the part of Go's source that a path belongs to.
func sourceOf(path string) string {
	if strings.HasPrefix(path, "cmd/") {
		return toolsSource
	}
	return librarySource
}

// split copies the documents of a file of JSON lines that have the source only, or all, and gives each the field
// source.
func split(from, to, only string) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	var r io.Reader = in
	if strings.HasSuffix(from, ".zst") {
		z, err := zstd.NewReader(in)
		if err != nil {
			return fmt.Errorf("%s: %w", from, err)
		}
		defer z.Close()
		r = z
	}
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	lines, wrote, into := bufio.NewScanner(r), 0, bufio.NewWriter(out)
	lines.Buffer(nil, 64<<20)
	for n := 1; lines.Scan(); n++ {
		var d struct {
			Path   string `json:"path"`
			Text   string `json:"text"`
			Source string `json:"source"`
		}
		if err := json.Unmarshal(lines.Bytes(), &d); err != nil {
			return fmt.Errorf("%s, line %d: %w", from, n, err)
		}
		if d.Path == "" || d.Text == "" {
			return fmt.Errorf("%s, line %d: no path or no text; parts of the text are told by the path", from, n)
		}
		if d.Source = sourceOf(d.Path); only != "" && d.Source != only {
			continue
		}
		line, err := json.Marshal(d)
		if err != nil {
			return err
		}
		if _, err := into.Write(append(line, '\n')); err != nil {
			return err
		}
		wrote++
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("%s: %w", from, err)
	}
	if wrote == 0 {
		return fmt.Errorf("%s: no document of source %q", from, only)
	}
	return into.Flush()
}
