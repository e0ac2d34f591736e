package adapter

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"

	"apr/arch"
	"apr/internal/fault"
	"apr/modelfile"
	"apr/tensor"
)

// The shortest runs of zero bytes in A and B that are reported, as in the matrices of a model. Rows of B in the head
// belong to tokens; a token that no text contains keeps a row of zeros, so the limit is higher there.
const (
	longHole   = 4 << 10
	tokensHole = 64 << 10
)

// maxAlike bounds how many findings of one kind are listed.
const maxAlike = 3

// damage checks the bytes of A and B of every module by [modelfile.Content], as commands check a model. It refuses
// values that no trained model has, unless odd is set, and keeps warnings of runs of zeros and of equal matrices in
// a.doubts. Equal matrices are an error in a model, but only a warning here: some methods share A between modules.
func (a *Adapter) damage(path string, by map[string]*pair, used map[string][]Module, odd bool) error {
	content := modelfile.NewContent(&modelfile.Container{Path: path, ReadConfig: func() (arch.Config, error) {
		return arch.Config{}, errors.New("an adapter has none")
	}})
	var holes, copies []string
	isA, seen := map[string]bool{}, map[[sha256.Size]byte]string{}
	for _, name := range slices.Sorted(maps.Keys(used)) {
		p := by[name]
		isA[p.a.Name] = true
		twins := [2]string{}
		for i, t := range []tensor.Stored{p.a, p.b} {
			raw := make([]byte, t.Size)
			if n, err := t.ReadAt(raw, 0); n < len(raw) {
				return fault.In(fault.IO, path, "cannot be read").At("tensor %q", t.Name).Because(err)
			}
			if err := content.Look(t, raw, 0); err != nil {
				return err
			}
			twins[i] = twin(seen, t, raw)
			found, err := holesOf(t, used[name], i == 1)
			if err != nil {
				return err
			}
			holes = append(holes, found...)
		}
		if of := by[pairOf(by, twins[0])]; of != nil && of.b.Name == twins[1] {
			continue // judge tells a module that is there twice
		}
		for i, t := range []tensor.Stored{p.a, p.b} {
			if twins[i] != "" {
				copies = append(copies, fmt.Sprintf("%s: tensor %q has the same bytes as %q: was one copied over the other?",
					path, t.Name, twins[i]))
			}
		}
	}
	lines, err := odds(path, content, isA, odd)
	a.doubts = slices.Concat(few(path, lines), few(path, holes), few(path, copies))
	return err
}

// odds returns a warning for each doubtful tensor, or, unless odd is set, the first bad one as a fault. It skips an A
// that holds one value only: judge refuses that with a message of its own.
func odds(path string, content *modelfile.Content, isA map[string]bool, odd bool) (lines []string, err error) {
	all, err := content.Findings()
	for _, f := range all {
		switch {
		case f.Check == "content.duplicate" || f.Check == "content.constant" && isA[f.Tensor]:
		case f.Bad && !odd:
			return nil, fault.In(fault.Invalid, path, "%s", f.Message).At("tensor %q", f.Tensor).
				WithHint("fetch the adapter again, or --allow-odd-weights of distill and export if it is meant").
				WithID("E-MODEL-050")
		default:
			lines = append(lines, fmt.Sprintf("%s: tensor %q: %s", path, f.Tensor, f.Message))
		}
	}
	return lines, err
}

// twin returns the name of an earlier tensor with the same bytes; "": none, or it is zero.
func twin(seen map[[sha256.Size]byte]string, t tensor.Stored, raw []byte) string {
	if !slices.ContainsFunc(raw, func(b byte) bool { return b != 0 }) {
		return ""
	}
	h := sha256.New()
	fmt.Fprintf(h, "%s%v\x00", t.DType, t.Shape)
	h.Write(raw)
	key := [sha256.Size]byte(h.Sum(nil))
	if _, ok := seen[key]; !ok {
		seen[key] = t.Name
		return ""
	}
	return seen[key]
}

// pairOf returns the matrix whose A has that name.
func pairOf(by map[string]*pair, a string) string {
	for name, p := range by {
		if p.a.Name == a {
			return name
		}
	}
	return ""
}

// holesOf returns the lines of long runs of one value. A matrix of nothing else is judged elsewhere, and so is a B in
// which
// all rows of a slot are zero, as it is written where another slot of the file's matrix alone has an adapter.
func holesOf(t tensor.Stored, ms []Module, isB bool) (lines []string, err error) {
	least := int64(longHole)
	if isB && len(ms) > 0 && ms[0].Slot.Role == arch.Head {
		least = tokensHole
	}
	if isB && slices.ContainsFunc(ms, Module.silent) {
		return nil, nil
	}
	holes, err := t.Holes()
	for _, h := range holes {
		if h.Size >= least && h.Size < t.Held().Size {
			lines = append(lines, fmt.Sprintf("%s: tensor %q: %s", h.Path, t.Name, h))
		}
	}
	return lines, err
}

// silent reports whether B is zero.
func (m Module) silent() bool {
	return !slices.ContainsFunc(m.B, func(x float32) bool { return x != 0 })
}

// few returns the first of lines, and how many more there are.
func few(path string, lines []string) []string {
	if more := len(lines) - maxAlike; more > 0 {
		return append(lines[:maxAlike:maxAlike], fmt.Sprintf("%s: %d more findings like it", path, more))
	}
	return lines
}
