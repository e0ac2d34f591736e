package modelfile_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"apr/format/gguf"
	"apr/internal/contracttest"
	"apr/internal/fault"
	"apr/modelfile"
	"apr/tensor"
	"apr/tokenizer"
)

// withEmbedding copies a small model to dir and returns its file of tensors: the path, the bytes, and where the
// embedding begins and how many bytes it has.
func withEmbedding(t *testing.T) (dir, path string, file []byte, at, size int) {
	t.Helper()
	dir = t.TempDir()
	must(t, os.CopyFS(dir, os.DirFS(filepath.Join(goldens, "trajectory", "student"))))
	st, _ := open(t, dir).File.Tensor("model.embed_tokens.weight")
	raw := make([]byte, st.Size)
	_, err := st.ReadAt(raw, 0)
	must(t, err)
	path = filepath.Join(dir, "model.safetensors")
	file, err = os.ReadFile(path)
	must(t, err)
	return dir, path, file, bytes.Index(file, raw), len(raw)
}

// Zeros in rows of the embedding that no token has are those of a padded vocabulary; in rows of tokens they are not.
func TestHolesOfPaddedVocabulary(t *testing.T) {
	dir, path, file, at, size := withEmbedding(t)
	const row = 128 * 4
	clear(file[at+3000*row : at+size])
	must(t, os.WriteFile(path, file, 0o600))
	for ids, want := range map[int]int{2000: 0, 3000: 0, 3001: 0, 3007: 0, 3008: 1, 4096: 1} {
		f := open(t, dir)
		f.ReadOutline = func() (tokenizer.Outline, error) { return tokenizer.Outline{Tokens: ids}, nil }
		if lines, err := f.Holes(false); err != nil || len(lines) > 0 {
			t.Errorf("nothing was read: %v, %q", err, lines)
		}
		var said []string
		f.Warn, f.Fresh = func(line string) { said = append(said, line) }, true
		for range 2 {
			_, err := f.WeightsSHA256()
			must(t, err)
		}
		if len(said) != want {
			t.Errorf("%d tokens: %q", ids, said)
		}
		lines, err := f.Holes(false)
		must(t, err)
		if len(lines) != want {
			t.Errorf("%d tokens: %q", ids, lines)
		}
	}
}

// Pieces of a download that are missing here and there are told by how many bytes they are together.
func TestManyShortHoles(t *testing.T) {
	contracttest.Cases(t, 1)
	dir, path, file, at, _ := withEmbedding(t)
	const piece = 16 << 10
	for _, pieces := range []int{3, 40} { // of 128
		for i := range pieces {
			clear(file[at+2*i*piece : at+(2*i+1)*piece])
		}
		must(t, os.WriteFile(path, file, 0o600))
		f := open(t, dir)
		_, err := f.WeightsSHA256()
		must(t, err)
		lines, err := f.Holes(false)
		must(t, err)
		if told := len(lines) == 1 && strings.Contains(lines[0], "40 runs are zero"); told != (pieces == 40) || !told && len(lines) > 0 {
			t.Errorf("%d pieces of %d bytes: %q", pieces, piece, lines)
		}
	}
}

// cleared writes zeros in the place of a stored tensor of the model at path, which file holds.
func cleared(t *testing.T, path, file, name string) {
	t.Helper()
	st, ok := open(t, path).Stored.Tensor(name)
	if !ok {
		t.Fatalf("%s: no tensor %s", path, name)
	}
	raw := make([]byte, st.Size)
	_, err := st.ReadAt(raw, 0)
	must(t, err)
	b, err := os.ReadFile(file)
	must(t, err)
	if bytes.Count(b, raw) != 1 {
		t.Fatalf("%s is in the file %d times", name, bytes.Count(b, raw))
	}
	clear(b[bytes.Index(b, raw):][:len(raw)])
	must(t, os.WriteFile(file, b, 0o600))
}

// Norms of Gemma multiply by w+1: zeros of w are those of a new model, in a folder; GGUF has w+1, where zeros are a hole.
func TestZeroNormOfGemma(t *testing.T) {
	dir := t.TempDir()
	must(t, os.CopyFS(dir, os.DirFS(filepath.Join(goldens, "families", "gemma2"))))
	f := open(t, dir)
	stored, err := modelfile.GGUFTensors(f.Config, slotSources(t, f, tensor.BF16))
	must(t, err)
	path := filepath.Join(dir, "m.gguf")
	must(t, gguf.Write(path, stored, gguf.Options{Metadata: modelfile.GGUFMetadata(f.Config, nil, stored, modelfile.GGUFOrigin{})}))
	cleared(t, path, path, "blk.0.attn_norm.weight")
	if _, err := open(t, path).WeightsSHA256(); err == nil || !strings.Contains(err.Error(), `tensor "blk.0.attn_norm.weight": all `) || fault.KindOf(err) != fault.Invalid {
		t.Errorf("GGUF: %v", err)
	}
	contracttest.Cases(t, 1)
	cleared(t, dir, filepath.Join(dir, "model.safetensors"), "model.layers.0.input_layernorm.weight")
	if _, err := open(t, filepath.Join(dir, "model.safetensors")).WeightsSHA256(); err != nil {
		t.Errorf("folder: %v", err)
	}
	contracttest.Cases(t, 1)
}
