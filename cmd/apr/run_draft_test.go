package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestDraftTokenizer: a draft that means something else by an id is refused, and the difference named.
func TestDraftTokenizer(t *testing.T) {
	const model = "../../testdata/models/gosrc"
	other := t.TempDir()
	entries, err := os.ReadDir(model)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join(model, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(e.Name(), "tokenizer") {
			b = []byte(strings.ReplaceAll(string(b), "<|endoftext|>", "<|endoftexts|>"))
		}
		if err := os.WriteFile(filepath.Join(other, e.Name()), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	code, v := callIn(t, nil, "run", model, "x", "--cpu", "--draft", other)
	if text := fmt.Sprint(v["error"]); code != 5 || !strings.Contains(text, "its tokenizer differs from that of") {
		t.Errorf("exit %d: %s", code, text)
	}
}
