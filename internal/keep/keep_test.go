package keep_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"apr/internal/contracttest"
	"apr/internal/keep"
)

// TestModelFiles: every small file of a model, which lies beside its weights, is read with it and no output; a file of
// another ending is.
func TestModelFiles(t *testing.T) {
	dir := t.TempDir()
	for name, kept := range map[string]bool{
		"config.json": true, "merges.txt": true, "tokenizer.model": true, "chat_template.jinja": true, "README.md": false,
	} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
		err := keep.Inputs(path, keep.ModelFiles(dir)...)
		if refused := err != nil && strings.Contains(err.Error(), "E-KEEP-001"); refused != kept {
			t.Errorf("%s as an output: %v", name, err)
		}
		contracttest.Cases(t, 1)
	}
}
