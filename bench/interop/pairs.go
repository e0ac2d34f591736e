package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"apr/convert"
)

// forms are what a model can be converted to, by a name for a file in a folder.
var forms = []struct{ name, file string }{
	{"HF folder", "hf"}, {"safetensors", "m.safetensors"}, {"GGUF", "m.gguf"}, {".apr", "m.apr"},
}

// pairs converts each form to each, with types kept, and compares what is read back with where it came from.
func pairs(ctx context.Context, folder, dir string) error {
	fmt.Fprintln(os.Stdout, "| from | to | read back by | tensors | bytes differ | largest difference | least cosine | metadata, tokenizer |")
	fmt.Fprintln(os.Stdout, "|---|---|---|---|---|---|---|---|")
	blocks := filepath.Join(dir, "blocks.gguf")
	if err := write(ctx, folder, blocks, convert.Options{Scheme: convert.Q4_K_M}); err != nil {
		return err
	}
	sources := []struct{ name, path string }{{"HF folder, bf16", folder}}
	for _, f := range forms[1:] {
		path := filepath.Join(dir, "from-"+f.file)
		if err := write(ctx, folder, path, convert.Options{}); err != nil {
			return err
		}
		sources = append(sources, struct{ name, path string }{f.name + ", bf16", path})
	}
	sources = append(sources, struct{ name, path string }{"GGUF, q4_k_m", blocks})
	for i, s := range sources {
		for _, f := range forms {
			out := filepath.Join(dir, fmt.Sprint(i, "-", f.file))
			if err := write(ctx, s.path, out, convert.Options{}); err != nil {
				return err
			}
			if err := row(ctx, s.name, f.name, s.path, out); err != nil {
				return err
			}
		}
	}
	return nil
}

// write converts a model.
func write(ctx context.Context, in, out string, opt convert.Options) error {
	c, err := convert.Open(in)
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = convert.Write(ctx, c, out, opt)
	return err
}

// row compares a model with what became of it.
func row(ctx context.Context, from, to, in, out string) error {
	a, err := convert.Open(in)
	if err != nil {
		return err
	}
	defer a.Close()
	b, err := convert.Open(out)
	if err != nil {
		return err
	}
	defer b.Close()
	r, err := convert.Diff(ctx, a, b, convert.DiffOptions{Values: true}, nil)
	if err != nil {
		return err
	}
	largest, cosine := 0.0, 1.0
	for _, t := range r.Tensors {
		if t.MaxAbs == nil {
			return fmt.Errorf("%s: tensor %q was not measured", out, t.Name)
		}
		if !(*t.MaxAbs <= largest) {
			largest = *t.MaxAbs
		}
		if !(*t.Cosine >= cosine) {
			cosine = *t.Cosine
		}
	}
	same := "same"
	if n := len(r.OnlyA) + len(r.OnlyB); n > 0 {
		return fmt.Errorf("%s: %d tensors are in one model only", out, n)
	}
	if len(r.Metadata) > 0 {
		var keys []string
		for _, m := range r.Metadata {
			keys = append(keys, fmt.Sprintf("%s: %v → %v", m.Key, m.A, m.B))
		}
		same = strings.Join(keys, ", ")
	}
	fmt.Fprintf(os.Stdout, "| %s | %s | apr | %d | %d | %.3g | %.7f | %s |\n", from, to, r.Compared, r.Compared-r.Equal, largest, cosine, same)
	return nil
}
