package modelfile_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"apr/tokenizer"
)

// Zeros in rows of the embedding that no token has are those of a padded vocabulary; in rows of tokens they are not.
func TestHolesOfPaddedVocabulary(t *testing.T) {
	dir := t.TempDir()
	must(t, os.CopyFS(dir, os.DirFS(filepath.Join(goldens, "trajectory", "student"))))
	st, _ := open(t, dir).File.Tensor("model.embed_tokens.weight")
	raw := make([]byte, st.Size)
	_, err := st.ReadAt(raw, 0)
	must(t, err)
	path := filepath.Join(dir, "model.safetensors")
	file, err := os.ReadFile(path)
	must(t, err)
	const row = 128 * 4
	at := bytes.Index(file, raw)
	clear(file[at+3000*row : at+len(raw)])
	must(t, os.WriteFile(path, file, 0o600))
	for ids, want := range map[int]int{2000: 0, 3000: 0, 3001: 0, 3007: 0, 3008: 1, 4096: 1} {
		f := open(t, dir)
		f.ReadOutline = func() (tokenizer.Outline, error) { return tokenizer.Outline{Tokens: ids}, nil }
		if lines, err := f.Holes(); err != nil || len(lines) > 0 {
			t.Errorf("nothing was read: %v, %q", err, lines)
		}
		var said []string
		f.Warn = func(line string) { said = append(said, line) }
		for range 2 {
			_, err := f.WeightsSHA256()
			must(t, err)
		}
		if len(said) != want {
			t.Errorf("%d tokens: %q", ids, said)
		}
		lines, err := f.Holes()
		must(t, err)
		if len(lines) != want {
			t.Errorf("%d tokens: %q", ids, lines)
		}
	}
}
