package emulator

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// overlayVariable names a file as -overlay of the go command has it, which tells tests of which sources others take the
// place. The go command knows it of Go's sources alone.
const overlayVariable = "APR_EMULATOR_OVERLAY"

// overlaid returns a copy of the folder of kernels in which sources are replaced as the overlay says: the folder itself
// if it replaces none of them.
func (b *builder) overlaid() (string, error) {
	list := os.Getenv(overlayVariable)
	if list == "" {
		return b.kernels, nil
	}
	text, err := os.ReadFile(list)
	if err != nil {
		return "", err
	}
	var overlay struct{ Replace map[string]string }
	if err := json.Unmarshal(text, &overlay); err != nil {
		return "", fmt.Errorf("emulator: %s: %w", list, err)
	}
	replaced := map[string][]byte{}
	h := sha256.New()
	for path, by := range overlay.Replace {
		if filepath.Dir(path) != b.kernels || !strings.HasPrefix(filepath.Ext(path), ".cu") {
			continue
		}
		if replaced[filepath.Base(path)], err = os.ReadFile(by); err != nil {
			return "", err
		}
	}
	if len(replaced) == 0 {
		return b.kernels, nil
	}
	sources, _ := filepath.Glob(filepath.Join(b.kernels, "*.cu*")) // the pattern is well formed
	texts := make([][]byte, len(sources))
	for i, path := range sources {
		if texts[i] = replaced[filepath.Base(path)]; texts[i] == nil {
			if texts[i], err = os.ReadFile(path); err != nil {
				return "", err
			}
		}
		fmt.Fprintln(h, filepath.Base(path), len(texts[i]))
		h.Write(texts[i])
	}
	dir := filepath.Join(b.cache, "overlay-"+hex.EncodeToString(h.Sum(nil)[:16]))
	if fresh(dir) {
		return dir, nil
	}
	temp, err := os.MkdirTemp(b.cache, "overlay")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(temp)
	for i, path := range sources {
		if err := os.WriteFile(filepath.Join(temp, filepath.Base(path)), texts[i], 0o600); err != nil {
			return "", err
		}
	}
	if err := os.Rename(temp, dir); err != nil && !fresh(dir) { // another process may have been faster
		return "", err
	}
	return dir, nil
}
