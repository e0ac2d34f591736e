package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"apr/arch"
	"apr/convert"
)

// Limits of a difference of log-probabilities, of the largest |logit|. llama.cpp takes GELU from a table of 16-bit
// floats, each of which is off by up to 2⁻¹¹ of itself; everything else is float32.
const (
	float32Limit = 5e-5
	geluLimit    = 5e-3
)

func limit(c arch.Config) float64 {
	if c.Layers[0].FFN.Act == arch.GELUTanh {
		return geluLimit
	}
	return float32Limit
}

// table prints the table of random models of every family, those named if there are names, and returns an error that
// names every model for which the table says something else than it should.
func (p peer) table(ctx context.Context, w io.Writer, dir string, names []string) error {
	var wrong []string
	fmt.Fprint(w, "| model | GGUF | prompts with the same ids | tokens that llama.cpp chooses too | least margin | log-probabilities | apr on a CPU | back as a folder | ",
		strings.Join(schemes, ", "), " of llama.cpp | blocks equal, expanded through .apr |\n|---|---|---|---|---|---|---|---|---|---|\n")
	for _, m := range randoms {
		if len(names) > 0 && !slices.Contains(names, m.Name) {
			continue
		}
		cells, err := p.family(ctx, m, dir)
		if err := errors.Join(err, discard(filepath.Join(dir, m.FolderName())+"-*")); err != nil {
			wrong = append(wrong, fmt.Sprintf("%s: %v", m.Name, err))
		}
		fmt.Fprintf(w, "| %s |\n", strings.Join(cells, " | "))
	}
	if wrong != nil {
		return errors.New(strings.Join(wrong, "\n"))
	}
	return nil
}

// discard removes the files and folders that match a pattern.
func discard(pattern string) error {
	list, err := filepath.Glob(pattern)
	for _, path := range list {
		err = errors.Join(err, os.RemoveAll(path))
	}
	return err
}

// family returns a row of the table, as far as it could be made.
func (p peer) family(ctx context.Context, m random, dir string) (cells []string, err error) {
	cells = []string{m.Name}
	add := func(format string, args ...any) { cells = append(cells, fmt.Sprintf(format, args...)) }
	folder := filepath.Join(dir, m.FolderName())
	file := folder + ".gguf"
	if err := m.Folder(".", folder); err != nil {
		return cells, err
	}
	if err := write(ctx, folder, file, convert.Options{Scheme: convert.F32, Force: true}); err != nil {
		return cells, err
	}
	j, err := judge(file)
	if err != nil {
		return cells, err
	}
	add("%s, %s", arch.GGUFMetadata(j.config)[0].Value, j.tok.Data().Model)
	if err := p.chosen(ctx, m, j, file, add); err != nil {
		return cells, err
	}
	own, err := onCPU(j, file)
	if err != nil {
		return cells, err
	}
	add("%s", own)
	n, largest, err := backToFolder(ctx, folder, file)
	if err != nil {
		return cells, err
	}
	if !(largest <= 1e-6) {
		return cells, fmt.Errorf("a folder made of the file differs by %g", largest)
	}
	add("%d tensors, ≤ %.1g", n, largest)
	return cells, p.readBack(ctx, m, j, file, add)
}

// chosen adds what llama.cpp makes of a float32 file.
func (p peer) chosen(ctx context.Context, m random, j *judged, file string, add func(string, ...any)) error {
	r, err := p.judged(ctx, j, file, prompts)
	if m.Unloadable && err != nil {
		add("")
		add("not loaded: %s", m.Differs)
		add("")
		add("")
		return nil
	}
	if err != nil {
		return err
	}
	add("%d of %d", r.sameIDs, r.prompts)
	switch {
	case m.Differs != "" && !(r.largest > limit(j.config)):
		return fmt.Errorf("the peer computes the same, although %s", m.Differs)
	case m.Differs != "":
		add("%d of %d: %s", r.tokens-r.differ-r.close, r.tokens, m.Differs)
	case r.differ > 0:
		return fmt.Errorf("the peer chooses %d other tokens", r.differ)
	case !(r.largest <= limit(j.config)):
		return fmt.Errorf("the peer's log-probabilities differ by %.2g", r.largest)
	case r.close > 0:
		add("%d of %d, %d within %g of the best", r.tokens-r.close, r.tokens, r.close, rounding)
	default:
		add("%d of %d", r.tokens, r.tokens)
	}
	if r.prompts-r.sameIDs != m.OtherIDs {
		return fmt.Errorf("the peer's ids of %d prompts are others", r.prompts-r.sameIDs)
	}
	add("%.1g", r.least)
	add("%.1g", r.largest)
	return nil
}

// cpuLimit bounds what float32 changes in a logit, of the largest: models of which a change of all weights by one rounding
// (6e-8) changes logits by 3e-6 come to 1e-5.
const cpuLimit = 2e-5

// onCPU says how far the program's own logits from a file are from the reference's.
func onCPU(j *judged, file string) (cell string, err error) {
	if what := j.config.NotComputed(); what != "" {
		return "refused: " + what, nil
	}
	d, err := j.cpuDiffers(file)
	if err == nil && !(d <= cpuLimit) {
		err = fmt.Errorf("logits on the CPU differ by %.2g", d)
	}
	return fmt.Sprintf("%.1g", d), err
}

// readBack adds how files of llama.cpp's quantizer are read.
func (p peer) readBack(ctx context.Context, m random, j *judged, file string, add func(string, ...any)) error {
	largest, through := 0.0, moved{}
	for _, scheme := range schemes {
		blocks, q, err := p.quantize(ctx, m, file, scheme)
		if err != nil {
			return fmt.Errorf("%s: %w", scheme, err)
		}
		if q.differ > 0 || !(q.largest <= limit(j.config)) {
			return fmt.Errorf("%s: llama.cpp chooses %d other tokens, and differs by %.2g", scheme, q.differ, q.largest)
		}
		largest = worse(largest, q.largest)
		one, err := throughAPR(ctx, blocks)
		if err != nil {
			return fmt.Errorf("%s through .apr: %w", scheme, err)
		}
		through.same, through.expanded = through.same+one.same, through.expanded+one.expanded
	}
	cell := "values equal"
	if m.Differs == "" {
		cell += fmt.Sprintf("; ≤ %.1g", largest)
	}
	add("%s", cell)
	add("%d; %d", through.same, through.expanded)
	return nil
}
