package blas

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"apr/internal/atomicfile"
	"apr/internal/strictjson"
)

// The file of remembered choices is one JSON object:
//
//	{"device":"NVIDIA H200","format":"apr-gemm-1","library":130002,
//	 "plans":{"gemm/nt/8192x4608x3584/bf16":{"algo":"66/tile=128x256/stages=35","ms":0.38}}}
//
// It names algorithms and holds nothing that is handed to the library: a name counts only if the library itself proposes
// an algorithm of that name for the shape. So a file of any content can cost speed at worst.
const (
	choicesFormat   = "apr-gemm-1"
	maxChoicesBytes = 4 << 20
)

// known is a remembered choice.
type known struct {
	Algo string
	Ms   float64
}

// choices are the remembered choices by Shape.Key.
type choices map[string]known

// choicesPath names the file for a device and a version of the library.
func choicesPath(dir, device string, version int) string {
	slug := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			return r
		case r >= 'A' && r <= 'Z':
			return r - 'A' + 'a'
		}
		return '-'
	}, device)
	return filepath.Join(dir, fmt.Sprintf("gemm-%s-%d.json", slug, version))
}

// readChoices reads the file; none is no error. On an error the choices are empty.
func readChoices(path, device string, version int) (choices, error) {
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		return choices{}, nil
	}
	root, err := strictjson.ParseFile(path, maxChoicesBytes, strictjson.Options{})
	if err != nil {
		return choices{}, err
	}
	f := strictjson.NewFields(root)
	format, name, library := f.Str("format"), f.Str("device"), f.Int("library")
	plans := f.Value("plans")
	if err := f.Err(); err != nil {
		return choices{}, err
	}
	if format != choicesFormat || name != device || library != int64(version) {
		return choices{}, fmt.Errorf("is of format %q, device %q and library %d", format, name, library)
	}
	if err := plans.Expect(strictjson.Object); err != nil {
		return choices{}, err
	}
	c := choices{}
	for key, v := range plans.Members() {
		p := strictjson.NewFields(v)
		k := known{Algo: p.Str("algo"), Ms: p.Float("ms")}
		if err := p.Err(); err != nil {
			return choices{}, err
		}
		c[key] = k
	}
	return c, nil
}

// write replaces the file by c and whatever else the file has by now.
func (c choices) write(path, device string, version int) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	plans := map[string]any{}
	others, _ := readChoices(path, device, version) // a file that cannot be read is replaced
	for _, set := range []choices{others, c} {
		for key, k := range set {
			plans[key] = map[string]any{"algo": k.Algo, "ms": k.Ms}
		}
	}
	text, err := strictjson.AppendCanonical(nil, map[string]any{
		"format": choicesFormat, "device": device, "library": version, "plans": plans,
	})
	if err != nil {
		return err
	}
	f, err := atomicfile.Create(path, true)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.Write(append(text, '\n')); err != nil {
		return err
	}
	return f.Commit()
}
