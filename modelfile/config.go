package modelfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"apr/arch"
	"apr/format"
	"apr/internal/fault"
	"apr/internal/readfile"
)

const (
	maxConfigBytes = 16 << 20
	generationFile = "generation_config.json"
)

// ReadConfig reads a Hugging Face config.json, and the ids that end a text from the generation_config.json beside it, if
// there is one; see arch.Parse. Keys in allow are accepted unread.
func ReadConfig(path string, allow ...string) (arch.Config, error) {
	if kind, err := format.Detect(path); err == nil {
		return arch.Config{}, fault.In(fault.Format, path, "is a model file (%s), not a configuration", kind).
			WithHint("--student %s starts from its weights; for a new student of its shape, give its config.json", path).
			WithID("E-CONFIG-019")
	}
	text, err := readfile.String(path, maxConfigBytes)
	if err != nil {
		return arch.Config{}, err
	}
	opt := arch.Options{AllowKeys: allow}
	beside := filepath.Join(filepath.Dir(path), generationFile)
	if _, err := os.Lstat(beside); filepath.Base(path) == "config.json" && !errors.Is(err, fs.ErrNotExist) {
		opt.GenerationPath = beside
		if opt.Generation, err = readfile.String(beside, maxConfigBytes); err != nil {
			return arch.Config{}, err
		}
		if strings.TrimSpace(opt.Generation) == "" {
			return arch.Config{}, fault.In(fault.Format, beside, "is empty").WithHint("fetch it again; remove it if the model has none").WithID("E-CONFIG-018")
		}
	}
	return arch.Parse(path, text, opt)
}
